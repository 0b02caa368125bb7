//! The layers that go to devices.

use build_info::Bytes;

use super::need::Need;
use crate::offload::{CpuMoe, Offload};

/// Where the layers of a model go, found by what fits.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerPlan {
    /// What was asked for, with numbers in place of `auto`.
    pub offload: Offload,
    /// Layers on devices, the output counted as one.
    pub layers: u32,
    /// All of them.
    pub all: u32,
    /// Layers whose experts stay on the host.
    pub n_cpu_moe: u32,
    /// What it takes.
    pub needs: Vec<Need>,
    /// Where no layer finds room: what is missing for one.
    pub missing: Option<Bytes>,
    /// Memory that stays free on each device.
    pub kept: Bytes,
}

impl LayerPlan {
    /// True if as much of the model is on devices as can be, with the experts of `n_cpu_moe` layers on the host.
    pub fn is_whole(&self, n_cpu_moe: CpuMoe) -> bool {
        self.layers == self.all && self.n_cpu_moe == n_cpu_moe.of(self.all - 1)
    }

    /// The most that contexts are to take of a device, which what is loaded before them must leave free.
    pub fn awaited(&self) -> Bytes {
        let contexts = self.needs.iter().filter(|need| !need.host);
        let contexts = contexts.map(|need| need.cache_bytes.0 + need.compute_bytes.0 + need.runtime_bytes.0);
        Bytes(contexts.max().unwrap_or(0))
    }
}
