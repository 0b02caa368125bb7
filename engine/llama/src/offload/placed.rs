//! Devices that hold the layers of a model.

use super::ask::{CpuMoe, GpuLayers};
use super::worker;
use crate::devices::Device;

/// Placement of a model's layers. By default, no layers are on devices, and only the CPU computes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placed {
    /// Devices that are passed to llama.cpp; `None` to let llama.cpp choose. With an empty list, only the CPU
    /// computes.
    pub list: Option<Vec<Device>>,
    /// Devices that store layers, or that compute with the host's weights.
    pub takers: Vec<Device>,
    /// Number of layers on the devices.
    pub layers: GpuLayers,
    /// Number of layers whose experts stay on the host.
    pub n_cpu_moe: CpuMoe,
    /// True if weights on the host may be in memory that devices can read quickly. Such memory speeds up devices that
    /// compute with these weights, but prevents repacking the weights for the CPU.
    pub host_buffers: bool,
}

impl Placed {
    /// True if devices store layers.
    pub fn is_offloaded(&self) -> bool {
        !self.takers.is_empty() && self.layers.number() != 0
    }

    /// Returns the number of layers on devices, out of `n_layer` layers and the output.
    pub fn layers_of(&self, n_layer: u32) -> u32 {
        if self.takers.is_empty() { 0 } else { self.layers.of(n_layer) }
    }

    /// Returns how many of `all` bytes are in this machine's memory if the bytes are spread evenly over `n_layer`
    /// layers.
    pub fn here(&self, all: u64, n_layer: u32) -> u64 {
        let here = n_layer.saturating_sub(self.layers_of(n_layer));
        (u128::from(all) * u128::from(here)).checked_div(u128::from(n_layer)).map_or(all, |part| part as u64)
    }

    /// Returns the names of the devices, separated by commas. A worker's device is followed by its address.
    pub fn names(&self) -> String {
        let name = |device: &Device| match device.is_remote() {
            true => format!("{} ({})", device.name, worker::spoken(&device.description)),
            false => device.name.clone(),
        };
        self.takers.iter().map(name).collect::<Vec<_>>().join(", ")
    }
}
