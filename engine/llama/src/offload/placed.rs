//! Devices that take the layers of a model.

use super::ask::{CpuMoe, GpuLayers};
use super::worker;
use crate::devices::Device;

/// Where layers of a model go. By default nowhere: the CPU computes alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placed {
    /// The devices that llama.cpp is given; `None` where it shall choose itself. An empty list is the CPU alone.
    pub list: Option<Vec<Device>>,
    /// Those that take layers, or work on the host's weights.
    pub takers: Vec<Device>,
    /// How many layers they take.
    pub layers: GpuLayers,
    /// Of how many of them the experts stay on the host.
    pub n_cpu_moe: CpuMoe,
    /// Whether weights of the host may lie in memory that devices read fast. It pays where they compute on them, and weights
    /// that lie there are not repacked for the CPU.
    pub host_buffers: bool,
}

impl Placed {
    /// Whether devices take layers.
    pub fn is_offloaded(&self) -> bool {
        !self.takers.is_empty() && self.layers.number() != 0
    }

    /// How many of `n_layer` layers and the output devices take.
    pub fn layers_of(&self, n_layer: u32) -> u32 {
        if self.takers.is_empty() { 0 } else { self.layers.of(n_layer) }
    }

    /// The part of `all` bytes, which `n_layer` layers share alike, that is in this machine's memory.
    pub fn here(&self, all: u64, n_layer: u32) -> u64 {
        let here = n_layer.saturating_sub(self.layers_of(n_layer));
        (u128::from(all) * u128::from(here)).checked_div(u128::from(n_layer)).map_or(all, |part| part as u64)
    }

    /// The devices' names, with a comma between them; of a worker with its address.
    pub fn names(&self) -> String {
        let name = |device: &Device| match device.is_remote() {
            true => format!("{} ({})", device.name, worker::spoken(&device.description)),
            false => device.name.clone(),
        };
        self.takers.iter().map(name).collect::<Vec<_>>().join(", ")
    }
}
