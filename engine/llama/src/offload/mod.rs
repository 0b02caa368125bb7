//! Devices that compute in addition to the CPU, and the layers that they hold. Contains the settings, and resolves them
//! for the available devices.

mod ask;
mod place;
mod placed;
mod worker;

pub use ask::{CpuMoe, Devices, GpuLayers, TensorSplit};
pub use place::{local_weights, may_use, n_layer, place, without_faulty};
pub use placed::Placed;
pub use worker::{DEFAULT_PORT, NO_RPC, Worker, Workers, any as any_worker, connect, is_called, spoken};

use build_info::Bytes;

use crate::options::SplitMode;

/// Default memory that stays free on each device. The reserve is for other programs, such as the desktop, and for
/// errors in the estimate. llama.cpp's tools keep 1024 MiB free (`--fit-target`), with a similar estimate; on a
/// GPU with 8 GiB, the difference is four layers of an 8B model.
pub const DEFAULT_FIT_TARGET: Bytes = Bytes::mib(512);

/// Offload settings of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Offload {
    /// Number of layers that go to devices.
    pub gpu_layers: GpuLayers,
    /// True if the number is the build profile's default. If no device is available, a default causes no error; only
    /// [`RequireGpu`](crate::options::RequireGpu) can then cause one.
    pub is_default: bool,
    /// Number of layers that keep their experts on the host.
    pub n_cpu_moe: CpuMoe,
    /// Memory that stays free on each device when the number of layers is `auto`.
    pub fit_target: Bytes,
    /// Devices that may hold layers.
    pub devices: Devices,
    /// Method by which several devices share the layers.
    pub split_mode: SplitMode,
    /// Proportions in which devices share the layers [default: in proportion to their free memory].
    pub tensor_split: TensorSplit,
    /// Index of the single device that [`SplitMode::None`] uses, among the devices that may hold layers.
    pub main_gpu: u32,
    /// True if devices also compute with weights in the host's memory.
    pub op_offload: bool,
    /// Workers on other machines, whose devices are used like local devices.
    pub workers: Workers,
}

impl Default for Offload {
    fn default() -> Self {
        Self {
            gpu_layers: GpuLayers::default(),
            is_default: false,
            n_cpu_moe: CpuMoe::default(),
            fit_target: DEFAULT_FIT_TARGET,
            devices: Devices::default(),
            split_mode: SplitMode::default(),
            tensor_split: TensorSplit::default(),
            main_gpu: 0,
            op_offload: true,
            workers: Workers::default(),
        }
    }
}

impl Offload {
    /// Checks that the settings can be combined, on any machine.
    ///
    /// # Errors
    /// If settings conflict. The message contains the remedy.
    pub fn check(&self) -> Result<(), String> {
        let one = self.split_mode == SplitMode::None;
        if one && !self.tensor_split.0.is_empty() {
            return Err(format!(
                "--tensor-split {} cannot be used with --split-mode none, which puts all layers on one device\nhint: \
                 remove one of them",
                self.tensor_split
            ));
        }
        if !one && self.main_gpu != 0 {
            return Err(format!(
                "--main-gpu {} needs --split-mode none: the flag selects the one device that holds all layers, but \
                 --split-mode {} spreads layers over all devices\nhint: add --split-mode none, or choose devices with \
                 --devices",
                self.main_gpu, self.split_mode
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_go_together_is_told() {
        let split: TensorSplit = "3,1".parse().expect("a split");
        let cases = [
            (Offload::default(), None),
            (Offload { main_gpu: 1, split_mode: SplitMode::None, ..Offload::default() }, None),
            (Offload { main_gpu: 1, ..Offload::default() }, Some("--main-gpu 1 needs --split-mode none")),
            (Offload { tensor_split: split.clone(), ..Offload::default() }, None),
            (
                Offload { tensor_split: split, split_mode: SplitMode::None, ..Offload::default() },
                Some("--tensor-split 3,1 cannot be used with --split-mode none"),
            ),
        ];
        for (offload, expected) in cases {
            let found = offload.check().err();
            match expected {
                None => assert_eq!(found, None, "{offload:?}"),
                Some(words) => assert!(found.as_ref().is_some_and(|why| why.contains(words)), "{found:?}"),
            }
        }
    }
}
