//! Run-time defaults that a profile sets for its program. These defaults are not compiled in: command-line options,
//! environment variables and tuning records override them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Table `[defaults]` of a build profile. The engine chooses the value of an absent key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Defaults {
    /// Number of layers on devices other than the CPU, counted from the last layer (`n_gpu_layers`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_layers: Option<Layers>,
    /// Number of layers, counted from the first layer, whose experts stay in host memory (`tensor_buft_overrides`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_cpu_moe: Option<Layers>,
    /// True if the K and V caches are on the devices of their layers; false if they stay in host memory
    /// (`offload_kqv`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_offload: Option<bool>,
    /// True if devices evaluate prompts even if the weights are in host memory (`op_offload`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_offload: Option<bool>,
    /// Flash attention (`flash_attn_type`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flash_attention: Option<FlashAttention>,
    /// True if ggml launches captured CUDA graphs; if false, `GGML_CUDA_DISABLE_GRAPHS=1` is set for ggml.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda_graphs: Option<bool>,
    /// True if ggml fuses several operations into one kernel; if false, `GGML_CUDA_DISABLE_FUSION=1` is set for ggml.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda_fusion: Option<bool>,
}

impl Defaults {
    /// Keys of the table.
    pub const KEYS: [&str; 7] = [
        "gpu_layers",
        "n_cpu_moe",
        "kv_offload",
        "op_offload",
        "flash_attention",
        "cuda_graphs",
        "cuda_fusion",
    ];

    /// Returns these defaults, with absent keys taken from `other`.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self {
            gpu_layers: self.gpu_layers.or(other.gpu_layers),
            n_cpu_moe: self.n_cpu_moe.or(other.n_cpu_moe),
            kv_offload: self.kv_offload.or(other.kv_offload),
            op_offload: self.op_offload.or(other.op_offload),
            flash_attention: self.flash_attention.or(other.flash_attention),
            cuda_graphs: self.cuda_graphs.or(other.cuda_graphs),
            cuda_fusion: self.cuda_fusion.or(other.cuda_fusion),
        }
    }

    /// True if no key is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Defaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = |on: bool| if on { "on" } else { "off" }.to_string();
        let values = [
            self.gpu_layers.map(|layers| layers.to_string()),
            self.n_cpu_moe.map(|layers| layers.to_string()),
            self.kv_offload.map(on),
            self.op_offload.map(on),
            self.flash_attention.map(|mode| mode.to_string()),
            self.cuda_graphs.map(on),
            self.cuda_fusion.map(on),
        ];
        let said = Self::KEYS.iter().zip(values).filter_map(|(key, value)| Some(format!("{key} {}", value?)));
        f.pad(&said.collect::<Vec<_>>().join(", "))
    }
}

/// Number of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "Written", into = "Written")]
pub enum Layers {
    /// Number of layers that the engine chooses from the model and the free memory.
    Auto,
    /// All layers.
    All,
    /// Exactly this many layers.
    Some(u32),
}

/// Number of layers as written in a file: 20, "all", "auto".
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "expected a number of layers, \"all\" or \"auto\"")]
enum Written {
    Number(i64),
    Word(String),
}

impl TryFrom<Written> for Layers {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let wrong =
            |what: String| format!("{what} is not a number of layers: use 0 or more, \"all\" or \"auto\"");
        match written {
            Written::Number(number) => match u32::try_from(number) {
                // llama.cpp stores the number of layers as an `int`.
                Ok(layers) if i32::try_from(layers).is_ok() => Ok(Layers::Some(layers)),
                _ => Err(wrong(number.to_string())),
            },
            Written::Word(word) => match word.as_str() {
                "auto" => Ok(Layers::Auto),
                "all" => Ok(Layers::All),
                _ => Err(wrong(format!("{word:?}"))),
            },
        }
    }
}

impl From<Layers> for Written {
    fn from(layers: Layers) -> Self {
        match layers {
            Layers::Some(layers) => Written::Number(layers.into()),
            word => Written::Word(word.to_string()),
        }
    }
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layers::Auto => f.pad("auto"),
            Layers::All => f.pad("all"),
            Layers::Some(layers) => fmt::Display::fmt(layers, f),
        }
    }
}

/// Mode of flash attention, which computes attention in one fused operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum FlashAttention {
    /// On if the device supports it.
    Auto,
    /// Always on.
    On,
    /// Always off.
    Off,
}

impl fmt::Display for FlashAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            FlashAttention::Auto => "auto",
            FlashAttention::On => "on",
            FlashAttention::Off => "off",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::record::BuildInfo;

    #[test]
    fn layers_are_a_number_or_a_word_and_what_is_neither_is_told() {
        let cases = [("0", Layers::Some(0)), ("\"all\"", Layers::All), ("\"auto\"", Layers::Auto)];
        for (text, expected) in cases {
            assert_eq!(serde_json::from_str::<Layers>(text).ok(), Some(expected), "{text}");
            assert_eq!(serde_json::to_string(&expected).ok().as_deref(), Some(text));
        }
        for (text, words) in [
            ("-1", "-1 is not a number of layers: use 0 or more, \"all\" or \"auto\""),
            ("2147483648", "2147483648 is not a number of layers"),
            ("\"most\"", "\"most\" is not a number of layers"),
            ("true", "expected a number of layers, \"all\" or \"auto\""),
        ] {
            let error = serde_json::from_str::<Layers>(text).map_err(|error| error.to_string());
            assert!(error.as_ref().is_err_and(|error| error.contains(words)), "{text}: {error:?}");
        }
    }

    #[test]
    fn the_first_that_says_something_counts_and_every_key_is_shown() {
        let all = Defaults {
            gpu_layers: Some(Layers::Some(7)),
            n_cpu_moe: Some(Layers::All),
            kv_offload: Some(false),
            op_offload: Some(true),
            flash_attention: Some(FlashAttention::Off),
            cuda_graphs: Some(false),
            cuda_fusion: Some(true),
        };
        let own = Defaults { gpu_layers: Some(Layers::Auto), ..Defaults::default() };
        assert_eq!(own.or(&all), Defaults { gpu_layers: Some(Layers::Auto), ..all.clone() });
        assert_eq!(Defaults::default().or(&all), all);
        assert_eq!(
            all.to_string(),
            "gpu_layers 7, n_cpu_moe all, kv_offload off, op_offload on, flash_attention off, cuda_graphs off, cuda_fusion on"
        );
        assert_eq!(own.to_string(), "gpu_layers auto");
        assert!(Defaults::default().is_empty() && !own.is_empty());
        let keys = serde_json::to_value(&all).expect("JSON");
        let keys = keys.as_object().expect("a table");
        assert!(
            keys.len() == Defaults::KEYS.len() && Defaults::KEYS.iter().all(|key| keys.contains_key(*key))
        );
    }

    #[test]
    fn a_record_without_the_table_is_read_and_one_with_it_comes_back() {
        let older = include_bytes!("../../fixtures/builds/cuda-4060ti.json");
        let mut build = BuildInfo::parse(older, Path::new("older")).expect("an older record");
        assert!(build.defaults.is_empty());
        let text = serde_json::to_string(&build).expect("JSON");
        assert!(!text.contains("\"defaults\""), "{text}");
        build.defaults.gpu_layers = Some(Layers::All);
        let text = serde_json::to_vec(&build).expect("JSON");
        assert_eq!(BuildInfo::parse(&text, Path::new("newer")).expect("a record"), build);
        // Version 1.6 of the format called the table `runtime`.
        let older = String::from_utf8(text.clone()).expect("UTF-8").replace("\"defaults\"", "\"runtime\"");
        assert_eq!(BuildInfo::parse(older.as_bytes(), Path::new("1.6")).expect("a record"), build);
        // A later minor version may contain unknown fields.
        let mut more: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        more["defaults"]["later"] = true.into();
        let more = serde_json::to_vec(&more).expect("JSON");
        assert_eq!(BuildInfo::parse(&more, Path::new("later")).expect("a record"), build);
    }
}
