//! Options of loading a model.

use crate::offload::Offload;
use crate::options::LoadMode;

/// How a model is loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelOptions {
    /// How the weights come into memory.
    pub load_mode: LoadMode,
    /// Whether weights may be rearranged for the CPU's kernels: faster prefill, a copy of the weights.
    pub repack: bool,
    /// Whether only the vocabulary is loaded: such a model tokenises and does nothing else.
    pub vocab_only: bool,
    /// Whether nothing is read and nothing allocated: of such a model and its contexts it can be told what they would take,
    /// and they compute nothing.
    pub no_alloc: bool,
    /// Which devices take which layers.
    pub offload: Offload,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self {
            load_mode: LoadMode::default(),
            repack: true,
            vocab_only: false,
            no_alloc: false,
            offload: Offload::default(),
        }
    }
}
