//! Distribution of layers over the devices and the host.

use build_info::Bytes;

use super::need::Need;
use crate::offload::{CpuMoe, Offload};

/// Layers of a model on devices, as found by the search.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerPlan {
    /// Requested offload settings, with numbers instead of `auto`.
    pub offload: Offload,
    /// Number of layers on devices; the output counts as one layer.
    pub layers: u32,
    /// Number of all layers, including the output.
    pub all: u32,
    /// Number of layers whose experts stay on the host.
    pub n_cpu_moe: u32,
    /// Memory needed on each device and on the host.
    pub needs: Vec<Need>,
    /// Additional memory that the first layer would need; `None` if at least one layer fits.
    pub missing: Option<Bytes>,
    /// Memory that stays free on each device.
    pub kept: Bytes,
}

impl LayerPlan {
    /// True if as much of the model as possible is on devices, with the experts of `n_cpu_moe` layers on the host.
    pub fn is_whole(&self, n_cpu_moe: CpuMoe) -> bool {
        self.layers == self.all && self.n_cpu_moe == n_cpu_moe.of(self.all - 1)
    }

    /// Returns the maximum memory that contexts will use on a device. Everything that is loaded earlier must leave
    /// this memory free.
    pub fn awaited(&self) -> Bytes {
        let contexts = self.needs.iter().filter(|need| !need.host);
        let contexts = contexts.map(|need| need.cache_bytes.0 + need.compute_bytes.0 + need.runtime_bytes.0);
        Bytes(contexts.max().unwrap_or(0))
    }
}
