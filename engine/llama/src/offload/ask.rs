//! Offload settings of a request, parsed from flags and configuration files.

use std::fmt;
use std::str::FromStr;

use build_info::defaults::Layers;

/// Number of layers that go to devices, counted from the last layer. The output counts as an additional layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuLayers {
    /// As many layers as fit on the available devices: see `fit` of the engine.
    #[default]
    Auto,
    /// All layers; an error if no device is available.
    All,
    /// The given number of layers; an error if the number is not 0 and no device is available.
    Some(u32),
}

impl GpuLayers {
    /// Returns the number as llama.cpp expects it: a negative number means all layers.
    pub fn number(self) -> i32 {
        match self {
            GpuLayers::Auto | GpuLayers::All => -1,
            GpuLayers::Some(layers) => i32::try_from(layers).unwrap_or(i32::MAX),
        }
    }

    /// Returns the number of layers for a model with `layers` layers and an output.
    pub fn of(self, layers: u32) -> u32 {
        match self {
            GpuLayers::Auto | GpuLayers::All => layers.saturating_add(1),
            GpuLayers::Some(some) => some.min(layers.saturating_add(1)),
        }
    }
}

impl fmt::Display for GpuLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuLayers::Auto => f.pad("auto"),
            GpuLayers::All => f.pad("all"),
            GpuLayers::Some(layers) => fmt::Display::fmt(layers, f),
        }
    }
}

impl From<Layers> for GpuLayers {
    fn from(layers: Layers) -> Self {
        match layers {
            Layers::Auto => GpuLayers::Auto,
            Layers::All => GpuLayers::All,
            Layers::Some(layers) => GpuLayers::Some(layers),
        }
    }
}

impl FromStr for GpuLayers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(GpuLayers::Auto),
            // llama.cpp's tools accept this spelling.
            "all" | "-1" => Ok(GpuLayers::All),
            _ => match text.parse::<u32>() {
                Ok(layers) if layers <= i32::MAX.cast_unsigned() => Ok(GpuLayers::Some(layers)),
                _ => Err(format!("{text:?} is not a number of layers: use 0 or more, all or auto")),
            },
        }
    }
}

/// Number of layers, counted from the first, that keep their experts in host memory. The other tensors of such a layer
/// are placed with the layer. A token reads only a few of the experts, but all of the other tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuMoe {
    /// The smallest number with which all layers fit if the number of layers on devices is `auto`; otherwise 0.
    #[default]
    Auto,
    /// All layers.
    All,
    /// The given number of layers.
    Some(u32),
}

/// Pattern for the names of the experts' matrices, as in llama.cpp's own tools (`LLM_FFN_EXPS_REGEX` in
/// common/common.h).
const EXPERTS: &str = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps";

impl CpuMoe {
    /// Returns the number of layers for a model with `layers` layers; 0 for `auto`, until the search has determined
    /// the number.
    pub fn of(self, layers: u32) -> u32 {
        match self {
            CpuMoe::Auto => 0,
            CpuMoe::All => layers,
            CpuMoe::Some(some) => some.min(layers),
        }
    }

    /// Returns patterns for the names of the tensors that stay on the host.
    pub fn patterns(self) -> Vec<String> {
        match self {
            CpuMoe::Auto => Vec::new(),
            CpuMoe::All => vec![EXPERTS.to_string()],
            // llama.cpp applies each pattern to every tensor, so a single pattern covers all layers.
            CpuMoe::Some(0) => Vec::new(),
            CpuMoe::Some(some) => {
                let layers: Vec<String> = (0..some.min(MOST_LAYERS)).map(|layer| layer.to_string()).collect();
                vec![format!(r"blk\.({}){EXPERTS}", layers.join("|"))]
            }
        }
    }
}

/// Maximum number of layers in a model: llama.cpp's `LLAMA_MAX_LAYERS`.
const MOST_LAYERS: u32 = 512;

impl fmt::Display for CpuMoe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CpuMoe::Auto => f.pad("auto"),
            CpuMoe::All => f.pad("all"),
            CpuMoe::Some(layers) => fmt::Display::fmt(layers, f),
        }
    }
}

impl From<Layers> for CpuMoe {
    fn from(layers: Layers) -> Self {
        match layers {
            Layers::Auto => CpuMoe::Auto,
            Layers::All => CpuMoe::All,
            Layers::Some(layers) => CpuMoe::Some(layers),
        }
    }
}

impl FromStr for CpuMoe {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(CpuMoe::Auto),
            "all" => Ok(CpuMoe::All),
            _ => match text.parse::<u32>() {
                Ok(layers) if layers <= i32::MAX.cast_unsigned() => Ok(CpuMoe::Some(layers)),
                _ => Err(format!("{text:?} is not a number of layers: use 0 or more, all or auto")),
            },
        }
    }
}

/// Devices that may hold layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// All GPUs of this machine and of workers.
    #[default]
    Auto,
    /// No device: only the CPU computes.
    None,
    /// The devices with these names, in this order.
    Named(Vec<String>),
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Devices::Auto => f.pad("auto"),
            Devices::None => f.pad("none"),
            Devices::Named(names) => f.pad(&names.join(",")),
        }
    }
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => return Ok(Devices::Auto),
            "none" => return Ok(Devices::None),
            _ => {}
        }
        let names: Vec<String> = text.split(',').map(|name| name.trim().to_string()).collect();
        if names.iter().any(String::is_empty) {
            return Err(format!(
                "{text:?} is not a list of devices\nhint: use names like CUDA0,CUDA1, or none, or auto; `anneal info` \
                 lists them"
            ));
        }
        match names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            Some((_, twice)) => Err(format!("{twice} is listed twice\nhint: list each device once")),
            None => Ok(Devices::Named(names)),
        }
    }
}

/// Proportions in which devices share layers; empty for the default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TensorSplit(pub Vec<f32>);

impl TensorSplit {
    /// Checks and wraps the proportions `shares`.
    ///
    /// # Errors
    /// If a share is negative or not a number, or if all shares are zero. The error is a message for the user.
    pub fn new(shares: Vec<f32>) -> Result<Self, String> {
        let possible = |share: &f32| share.is_finite() && *share >= 0.0;
        match shares.iter().all(possible) && shares.iter().any(|share| *share > 0.0) {
            true => Ok(TensorSplit(shares)),
            false => Err("use one number per device, 0 or more and not all 0; for example, 3,1".to_string()),
        }
    }
}

impl fmt::Display for TensorSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares: Vec<String> = self.0.iter().map(f32::to_string).collect();
        match shares.is_empty() {
            true => f.pad("by free memory"),
            false => f.pad(&shares.join(",")),
        }
    }
}

impl FromStr for TensorSplit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // llama.cpp's tools also accept a slash.
        let shares = text.split([',', '/']).map(|share| share.trim().parse::<f32>());
        let shares: Result<Vec<f32>, _> = shares.collect();
        match shares {
            Ok(shares) => TensorSplit::new(shares).map_err(|why| format!("{text:?}: {why}")),
            Err(_) => {
                Err(format!("{text:?} is not a proportion: use one number per device; for example, 3,1"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_a_number_all_or_auto() {
        let cases = [
            ("auto", GpuLayers::Auto, -1, 33),
            ("all", GpuLayers::All, -1, 33),
            ("-1", GpuLayers::All, -1, 33),
            ("0", GpuLayers::Some(0), 0, 0),
            ("20", GpuLayers::Some(20), 20, 20),
            ("99", GpuLayers::Some(99), 99, 33),
        ];
        for (text, expected, number, of_32) in cases {
            let found: GpuLayers = text.parse().expect(text);
            assert_eq!((found, found.number(), found.of(32)), (expected, number, of_32), "{text}");
        }
        for text in ["", "x", "-2", "1.5", "4294967295"] {
            assert!(text.parse::<GpuLayers>().is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn experts_that_stay_are_named_by_layer() {
        let experts = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps";
        let cases = [
            ("auto", CpuMoe::Auto, 0, vec![]),
            ("0", CpuMoe::Some(0), 0, vec![]),
            ("all", CpuMoe::All, 32, vec![experts.to_string()]),
            ("2", CpuMoe::Some(2), 2, vec![format!(r"blk\.(0|1){experts}")]),
            ("99", CpuMoe::Some(99), 32, vec![]),
        ];
        for (text, expected, of_32, patterns) in cases {
            let found: CpuMoe = text.parse().expect(text);
            assert_eq!(
                (found, found.of(32), found.to_string()),
                (expected, of_32, text.to_string()),
                "{text}"
            );
            assert!(text == "99" || found.patterns() == patterns, "{text}: {:?}", found.patterns());
        }
        for text in ["", "x", "-1", "1.5"] {
            assert!(text.parse::<CpuMoe>().is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn devices_are_names_none_or_auto() {
        assert_eq!("auto".parse(), Ok(Devices::Auto));
        assert_eq!("none".parse(), Ok(Devices::None));
        let named = Devices::Named(vec!["CUDA1".to_string(), "RPC0".to_string()]);
        assert_eq!("CUDA1, RPC0".parse(), Ok(named.clone()));
        assert_eq!(named.to_string(), "CUDA1,RPC0");
        for (text, words) in [("", "not a list"), ("a,,b", "not a list"), ("a,a", "listed twice")] {
            let found = text.parse::<Devices>().expect_err(text);
            assert!(found.contains(words), "{found}");
        }
    }

    #[test]
    fn a_split_is_positive_numbers() {
        assert_eq!("3,1".parse(), Ok(TensorSplit(vec![3.0, 1.0])));
        assert_eq!("0/0.5".parse(), Ok(TensorSplit(vec![0.0, 0.5])));
        for text in ["", "a", "1,-1", "0,0", "nan", "inf,1", "1,"] {
            assert!(text.parse::<TensorSplit>().is_err(), "{text:?} was accepted");
        }
    }
}
