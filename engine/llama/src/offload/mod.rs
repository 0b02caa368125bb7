//! Which devices compute beside the CPU, and which layers of a model they take: what can be asked for, and what becomes of
//! it on the devices that there are.

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

/// What stays free on each device unless told otherwise: for what other programs take meanwhile, a screen for one, and for
/// what the estimate does not know. llama.cpp's tools keep 1024 MiB (`--fit-target`), from a number of layers that they reckon
/// likewise; on a card of 8 GiB that is four layers of an 8B model.
pub const DEFAULT_FIT_TARGET: Bytes = Bytes::mib(512);

/// What is asked for, of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Offload {
    /// How many layers go to devices.
    pub gpu_layers: GpuLayers,
    /// Whether it is a default of the build's profile, which is no error where there is no device: whether one is required is
    /// another question.
    pub is_default: bool,
    /// Of how many layers of a mixture the experts stay on the host.
    pub n_cpu_moe: CpuMoe,
    /// What stays free on each device, where the number of layers is found.
    pub fit_target: Bytes,
    /// Which devices may take them.
    pub devices: Devices,
    /// How several devices share them.
    pub split_mode: SplitMode,
    /// In which proportion; by the free memory of each where nothing is asked for.
    pub tensor_split: TensorSplit,
    /// The one device of [`SplitMode::None`], by its place among those that may take layers.
    pub main_gpu: u32,
    /// Whether devices also compute on weights that lie in the host's memory.
    pub op_offload: bool,
    /// Workers on other machines, whose devices are used like those of this one.
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
    /// Sees that what is asked for can be meant together, whatever the devices are.
    ///
    /// # Errors
    /// In words, what does not go together and what to leave out.
    pub fn check(&self) -> Result<(), String> {
        let one = self.split_mode == SplitMode::None;
        if one && !self.tensor_split.0.is_empty() {
            return Err(format!(
                "--tensor-split {} with --split-mode none, which puts all layers on one device: leave one of them out",
                self.tensor_split
            ));
        }
        if !one && self.main_gpu != 0 {
            return Err(format!(
                "--main-gpu {} without --split-mode none: it chooses the one device that takes all layers, and with \
                 --split-mode {} they all take some; give both, or choose devices with --devices",
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
            (Offload { main_gpu: 1, ..Offload::default() }, Some("--main-gpu 1 without --split-mode none")),
            (Offload { tensor_split: split.clone(), ..Offload::default() }, None),
            (
                Offload { tensor_split: split, split_mode: SplitMode::None, ..Offload::default() },
                Some("--tensor-split 3,1 with --split-mode none"),
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
