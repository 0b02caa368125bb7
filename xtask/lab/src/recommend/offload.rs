//! Number of layers that fit on the GPUs, computed from the sizes of the layers. The engine instead asks llama.cpp
//! for the memory of each number of layers (`llama::fit::choose`), which requires a GPU.

use build_info::host::Gpu;
use build_info::{Bytes, Host};
use serde::Serialize;

use super::fit::{compute_buffer, reserve};
use super::model_facts::ModelFacts;

/// Part of the model that goes to the GPUs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Offload {
    /// Names of the GPUs that share the layers. If no layer fits, name of the largest GPU.
    pub gpu: String,
    /// Number of GPUs that share the layers.
    pub gpus: u64,
    /// Total memory of the GPUs that share the layers. The amount of free memory is unknown.
    pub memory: Bytes,
    /// Total memory that is left to the driver and the display.
    pub reserve: Bytes,
    /// Size of the KV cache of all layers at this context.
    pub kv: Bytes,
    /// Total size of the compute buffers on the GPUs.
    pub compute: Bytes,
    /// Size of the largest layer with its keys and values.
    pub layer: Bytes,
    /// Number of layers that fit. As in llama.cpp, the output matrix is counted as one more layer.
    pub layers: u64,
    /// Total number of layers, including the output matrix.
    pub of_layers: u64,
    /// For a mixture of experts: number of layers whose experts stay in main memory while all other tensors are on
    /// the GPUs. `None` if the other tensors do not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers_with_experts_on_cpu: Option<u64>,
}

impl Offload {
    /// Computes the offload of `model` to the GPUs of `host`. Returns `None` if there is no GPU. The engine
    /// distributes layers over all GPUs in proportion to their free memory.
    pub fn of(model: &ModelFacts, host: &Host, n_ctx: u32, n_ubatch: u32) -> Option<Self> {
        let compute = compute_buffer(model, n_ctx, n_ubatch);
        let kv = model.kv.f16.0.saturating_mul(n_ctx.into());
        let kv_of_layer = kv.checked_div(model.kv.layers).unwrap_or(0);
        let layers: Vec<(u64, u64)> = (0..model.layers).map(|layer| model.layer_bytes(layer)).collect();
        let largest = layers.iter().map(|(all, _)| all.saturating_add(kv_of_layer)).max().unwrap_or(0);
        let room = |gpu: &&Gpu| gpu.memory.0.saturating_sub(reserve(gpu.memory).0).saturating_sub(compute.0);
        let mut gpus: Vec<&Gpu> = host.gpus.iter().filter(|gpu| room(gpu) >= largest).collect();
        if gpus.is_empty() {
            gpus.push(host.gpus.iter().max_by_key(|gpu| gpu.memory)?);
        }
        let sum = |of: &dyn Fn(&&Gpu) -> u64| gpus.iter().map(of).fold(0, u64::saturating_add);
        let count = gpus.len() as u64;
        let fit = sum(&|gpu| room(gpu).checked_div(largest).unwrap_or(0)).min(model.layers);
        // A layer is not split between GPUs, so each GPU except the last may leave room for up to one layer unused.
        let room = sum(&room).saturating_sub((count - 1).saturating_mul(largest));
        let in_layers = layers.iter().fold(0u64, |all, (layer, _)| all.saturating_add(*layer));
        // The output matrix belongs to no layer. The embedding stays in main memory; a tied embedding is in both
        // memories.
        let output = output_bytes(model);
        let experts_on_cpu = experts_on_cpu(&layers, room.checked_sub(kv), output);
        let whole = sum3(in_layers, kv, output);
        let of_layers = model.layers + 1;
        let fit = if whole <= room { of_layers } else { fit };
        Some(Self {
            gpu: names(&gpus),
            gpus: count,
            memory: Bytes(sum(&|gpu| gpu.memory.0)),
            reserve: Bytes(sum(&|gpu| reserve(gpu.memory).0)),
            kv: Bytes(kv),
            compute: Bytes(compute.0.saturating_mul(count)),
            layer: Bytes(largest),
            layers: fit,
            of_layers,
            layers_with_experts_on_cpu: experts_on_cpu.filter(|_| model.experts.is_some() && fit < of_layers),
        })
    }

    /// True if the whole model fits on the GPUs.
    pub fn is_whole(&self) -> bool {
        self.layers == self.of_layers
    }
}

/// Lists the GPUs as text: `2 × NVIDIA L4 and NVIDIA A10`.
fn names(gpus: &[&Gpu]) -> String {
    let mut names: Vec<&str> = gpus.iter().map(|gpu| gpu.name.as_str()).collect();
    names.sort_unstable();
    let alike = names.chunk_by(|a, b| a == b).map(|alike| match alike.len() {
        1 => alike[0].to_string(),
        many => format!("{many} × {}", alike[0]),
    });
    alike.collect::<Vec<_>>().join(" and ")
}

fn output_bytes(model: &ModelFacts) -> u64 {
    let name = if model.tied { "token_embd.weight" } else { "output.weight" };
    model.tensors.iter().find(|tensor| tensor.name == name).map_or(0, |tensor| tensor.bytes())
}

/// Returns the minimum number of layers whose experts must stay in main memory so that all other tensors fit into
/// `room`.
fn experts_on_cpu(layers: &[(u64, u64)], room: Option<u64>, output: u64) -> Option<u64> {
    let mut need = layers.iter().fold(output, |all, (layer, _)| all.saturating_add(*layer));
    let room = room?;
    for (behind, (_, experts)) in (0u64..).zip(layers) {
        if need <= room {
            return Some(behind);
        }
        need = need.saturating_sub(*experts);
    }
    (need <= room).then_some(layers.len() as u64)
}

fn sum3(a: u64, b: u64, c: u64) -> u64 {
    a.saturating_add(b).saturating_add(c)
}
