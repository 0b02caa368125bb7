//! Options for loading a model.

use crate::offload::Offload;
use crate::options::LoadMode;

/// Options for loading a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelOptions {
    /// Method of loading the weights into memory.
    pub load_mode: LoadMode,
    /// True if weights may be repacked for the CPU's kernels. Repacking makes prefill faster, but needs a copy of the
    /// weights.
    pub repack: bool,
    /// True if only the vocabulary is loaded. Such a model can only tokenise.
    pub vocab_only: bool,
    /// True if nothing is read or allocated. Such a model and its contexts can estimate their memory, but cannot
    /// compute.
    pub no_alloc: bool,
    /// Devices, and the number of layers that they hold.
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
