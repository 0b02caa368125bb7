//! GPU with its state.

use build_info::Bytes;
use build_info::host::Gpu;

use crate::nvml::ComputeMode;

/// GPU that a program would see, and its state.
#[derive(Clone, Debug, PartialEq)]
pub struct Card {
    /// Description of the GPU.
    pub gpu: Gpu,
    /// Memory used by all processes and the driver; `None` if unknown.
    pub used: Option<Bytes>,
    /// Restriction on the processes that may compute on the GPU.
    pub mode: ComputeMode,
    /// True if the driver keeps the GPU initialised while no program uses it; `None` if unknown.
    pub persistence_mode: Option<bool>,
    /// Performance state, from 0 (fastest clocks) to 15; `None` if unknown.
    pub performance_state: Option<u32>,
}
