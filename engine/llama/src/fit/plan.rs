//! Distribution of layers over the devices and the host.

use build_info::Bytes;

use super::need::Need;
use crate::offload::{CpuMoe, Offload};

/// Layers of a model on devices, as found by the search for what fits.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerPlan {
    /// Offload settings of the request, with numbers instead of `auto`.
    pub offload: Offload,
    /// Number of layers on devices; the output counts as one.
    pub layers: u32,
    /// Number of all layers, including the output.
    pub all: u32,
    /// Number of layers whose experts stay on the host.
    pub n_cpu_moe: u32,
    /// Memory needed on each device and on the host.
    pub needs: Vec<Need>,
    /// Memory missing for the first layer; `None` if at least one layer fits.
    pub missing: Option<Bytes>,
    /// Memory that stays free on each device.
    pub kept: Bytes,
}

impl LayerPlan {
    /// True if as much of the model as possible is on devices, with the experts of `n_cpu_moe` layers on the host.
    pub fn is_whole(&self, n_cpu_moe: CpuMoe) -> bool {
        self.layers == self.all && self.n_cpu_moe == n_cpu_moe.of(self.all - 1)
    }

    /// Largest memory that contexts will take of a device. Everything that is loaded before them must leave it free.
    pub fn awaited(&self) -> Bytes {
        let contexts = self.needs.iter().filter(|need| !need.host);
        let contexts = contexts.map(|need| need.cache_bytes.0 + need.compute_bytes.0 + need.runtime_bytes.0);
        Bytes(contexts.max().unwrap_or(0))
    }
}
