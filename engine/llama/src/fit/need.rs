//! What is taken of each device and of the host.

use build_info::Bytes;
use serde::Serialize;

use crate::devices::Device;

/// What CUDA's libraries take of a GPU beside the buffers of llama.cpp, once the device is there: the workspace of cuBLAS, 32 MiB
/// on Hopper and 4 MiB before (NVIDIA's cuBLAS reference, `cublasSetWorkspace`), CUDA graphs, and the pool from which ggml-cuda
/// takes what it quantises and unpacks for a product. An assumption, on the safe side for models whose largest matrix has
/// fewer than 50 M values; it was not measured here.
///
/// The context of CUDA itself, 200 to 600 MiB, is not among it: ggml asks the driver for free memory from within that context,
/// so that what is free is without it.
pub const CUDA_RUNTIME: Bytes = Bytes::mib(128);

/// The name of what is no device.
const HOST: &str = "host";

/// What is taken of one kind of buffer, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Whose it is, by ggml's name: `CUDA0`.
    pub device: String,
    /// ggml's name of the kind: `CUDA0`, `CUDA_Host`, `CPU_Mapped`.
    pub buffer: String,
    /// Whether it lies in the host's memory.
    pub is_host: bool,
    /// Of weights. A mapped file counts with all that lies between its first and last tensor of the kind.
    pub weights: u64,
    /// Of K, V and recurrent state.
    pub cache: u64,
    /// Of graphs.
    pub compute: u64,
}

/// What a model takes of one device, or of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Need {
    /// `host`, or ggml's name of the device.
    pub device: String,
    /// Whether it is the host.
    pub host: bool,
    /// Weights, as they are laid out there; adapters included.
    pub weights_bytes: Bytes,
    /// K, V and recurrent states.
    pub cache_bytes: Bytes,
    /// Buffers of the largest graph.
    pub compute_bytes: Bytes,
    /// What the device's own libraries take besides: [`CUDA_RUNTIME`]. Part of no buffer, so it is estimated only.
    pub runtime_bytes: Bytes,
    /// All memory of the device; `None` of the host, and where a device does not tell.
    #[serde(rename = "memory_total_bytes", skip_serializing_if = "Option::is_none")]
    pub total: Option<Bytes>,
    /// What is free of it; of the host, what this process can have.
    #[serde(rename = "memory_free_bytes", skip_serializing_if = "Option::is_none")]
    pub free: Option<Bytes>,
}

impl Need {
    /// All buffers: without what the device's libraries take.
    pub fn buffers(&self) -> Bytes {
        Bytes(self.weights_bytes.0.saturating_add(self.cache_bytes.0).saturating_add(self.compute_bytes.0))
    }

    /// Everything.
    pub fn all(&self) -> Bytes {
        Bytes(self.buffers().0.saturating_add(self.runtime_bytes.0))
    }
}

/// What the libraries of `device` take besides buffers.
pub fn runtime(device: &Device) -> Bytes {
    if device.backend == "CUDA" { CUDA_RUNTIME } else { Bytes(0) }
}

/// What is `taken` by the device that it is of: each of `takers`, in their order, then the host. `contexts` like the one that
/// was asked, and `adapters`, bytes which are shared as weights are.
pub fn add_up(taken: &[Taken], takers: &[Device], contexts: u32, adapters: u64) -> Vec<Need> {
    let named = |device: &Device| Need {
        device: device.name.clone(),
        runtime_bytes: runtime(device),
        ..Need::default()
    };
    let host = Need { device: HOST.to_string(), host: true, ..Need::default() };
    let mut needs: Vec<Need> = takers.iter().map(named).chain([host]).collect();
    let weights: u64 = taken.iter().map(|one| one.weights).sum();
    for one in taken {
        let adapters = (u128::from(adapters) * u128::from(one.weights)).checked_div(u128::from(weights));
        let owners = owners(one, takers);
        let share = |bytes: u64| bytes.div_ceil(owners.len() as u64);
        for at in &owners {
            needs[*at].weights_bytes.0 += share(one.weights + adapters.unwrap_or(0) as u64);
            needs[*at].cache_bytes.0 += share(one.cache * u64::from(contexts));
            needs[*at].compute_bytes.0 += share(one.compute * u64::from(contexts));
        }
    }
    needs
}

/// Whose `one` is, by their places among `takers` and the host behind them. What several devices hold together, where each has a
/// part of each layer, is taken to be shared alike. ggml-backend-meta.cpp calls it `Meta(CUDA0,CUDA1)`, or `Meta()`, since it moves
/// the list before it reads it.
fn owners(one: &Taken, takers: &[Device]) -> Vec<usize> {
    let names: Vec<&str> = match one.device.strip_prefix("Meta(").and_then(|rest| rest.strip_suffix(')')) {
        Some("") => takers.iter().map(|taker| taker.name.as_str()).collect(),
        Some(list) => list.split(',').collect(),
        None => vec![one.device.as_str()],
    };
    let places =
        takers.iter().enumerate().filter(|(_, taker)| !one.is_host && names.contains(&taker.name.as_str()));
    let places: Vec<usize> = places.map(|(at, _)| at).collect();
    if places.is_empty() { vec![takers.len()] } else { places }
}

/// Which device has too little room, in words; `None` where each has enough, or does not tell.
pub fn lack(needs: &[Need]) -> Option<String> {
    short(needs, Need::all, |need| {
        let (weights, cache, compute) = (need.weights_bytes, need.cache_bytes, need.compute_bytes);
        format!("{} ({weights} of weights, {cache} of cache, {compute} for computing)", need.all())
    })
}

/// The same of a context alone, of a model whose weights are there already.
pub fn lack_beside_weights(needs: &[Need]) -> Option<String> {
    let beside = |need: &Need| Bytes(need.cache_bytes.0.saturating_add(need.compute_bytes.0));
    short(needs, beside, |need| {
        let (weights, cache, compute) = (need.weights_bytes, need.cache_bytes, need.compute_bytes);
        format!("{} ({cache} of cache, {compute} for computing) beside {weights} of weights", beside(need))
    })
}

/// Devices of which less is free than is `wanted` of them, each with that `told`, and what mends it.
fn short(needs: &[Need], wanted: impl Fn(&Need) -> Bytes, told: impl Fn(&Need) -> String) -> Option<String> {
    let of = |need: &Need| {
        let free = need.free.filter(|free| !need.host && wanted(need) > *free)?;
        Some(format!("{} would need {}, and {free} are free", need.device, told(need)))
    };
    let short: Vec<String> = needs.iter().filter_map(of).collect();
    (!short.is_empty())
        .then(|| format!("{}; --gpu-layers auto takes as many layers as find room", short.join("; ")))
}

/// By how many bytes the device with the least room lacks it, where `kept` bytes of each stay free; negative where there is
/// more. A device that does not tell its memory is taken to have enough, and so is the host, whose pages the kernel can move.
pub fn excess(needs: &[Need], kept: Bytes) -> i64 {
    let of = |need: &Need| {
        let free = need.free.filter(|_| !need.host)?;
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        Some(signed(need.all().0).saturating_add(signed(kept.0)).saturating_sub(signed(free.0)))
    };
    needs.iter().filter_map(of).max().unwrap_or(i64::MIN)
}
