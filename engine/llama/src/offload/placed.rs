//! Devices that take the layers of a model.

use super::ask::{CpuMoe, GpuLayers};
use super::worker;
use crate::devices::Device;

/// Layers of a model on devices. By default there are none, and the CPU computes alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placed {
    /// Devices that are passed to llama.cpp; `None` to let llama.cpp choose. An empty list means the CPU alone.
    pub list: Option<Vec<Device>>,
    /// Devices that take layers, or compute on the host's weights.
    pub takers: Vec<Device>,
    /// Number of layers that they take.
    pub layers: GpuLayers,
    /// Number of layers whose experts stay on the host.
    pub n_cpu_moe: CpuMoe,
    /// True if weights on the host may lie in memory that devices read fast. This is faster if devices compute on
    /// them, but prevents repacking them for the CPU.
    pub host_buffers: bool,
}

impl Placed {
    /// True if devices take layers.
    pub fn is_offloaded(&self) -> bool {
        !self.takers.is_empty() && self.layers.number() != 0
    }

    /// Number of layers on devices, out of `n_layer` layers and the output.
    pub fn layers_of(&self, n_layer: u32) -> u32 {
        if self.takers.is_empty() { 0 } else { self.layers.of(n_layer) }
    }

    /// Part of `all` bytes that lies in this machine's memory, if `n_layer` layers have equal shares of them.
    pub fn here(&self, all: u64, n_layer: u32) -> u64 {
        let here = n_layer.saturating_sub(self.layers_of(n_layer));
        (u128::from(all) * u128::from(here)).checked_div(u128::from(n_layer)).map_or(all, |part| part as u64)
    }

    /// Names of the devices, separated by commas; a worker's device with its address.
    pub fn names(&self) -> String {
        let name = |device: &Device| match device.is_remote() {
            true => format!("{} ({})", device.name, worker::spoken(&device.description)),
            false => device.name.clone(),
        };
        self.takers.iter().map(name).collect::<Vec<_>>().join(", ")
    }
}
