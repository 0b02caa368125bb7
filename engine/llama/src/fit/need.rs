//! Memory needed on each device and on the host.

use build_info::Bytes;
use serde::Serialize;

use crate::devices::Device;

/// Estimated GPU memory that CUDA's libraries use in addition to llama.cpp's buffers. The estimate includes:
///
/// - the workspace of cuBLAS, 32 MiB on Hopper and 4 MiB on earlier GPUs (NVIDIA's cuBLAS reference,
///   `cublasSetWorkspace`);
/// - CUDA graphs;
/// - the pool in which ggml-cuda quantises and unpacks the operands of a product.
///
/// The value is an assumption and was not measured. It is large enough for models whose largest matrix has fewer than
/// 50 million values.
///
/// The context of CUDA itself, 200 to 600 MiB, is not included. ggml queries the free memory from within CUDA's
/// context, so the reported free memory already excludes the context.
pub const CUDA_RUNTIME: Bytes = Bytes::mib(128);

/// Name of the host in reports, in place of a device's name.
const HOST: &str = "host";

/// Memory that one kind of buffer uses, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// ggml's name for the device, such as `CUDA0`.
    pub device: String,
    /// ggml's name for the kind of buffer: `CUDA0`, `CUDA_Host`, `CPU_Mapped`.
    pub buffer: String,
    /// True if the buffer is in the host's memory.
    pub is_host: bool,
    /// Bytes of weights. For a mapped file, the whole range from the first to the last tensor in this kind of
    /// buffer is counted.
    pub weights: u64,
    /// Bytes of K, V and recurrent state.
    pub cache: u64,
    /// Bytes of compute buffers for graphs.
    pub compute: u64,
}

/// Memory that a model needs on one device, or on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Need {
    /// `host`, or ggml's name for the device.
    pub device: String,
    /// True for the host.
    pub host: bool,
    /// Weights in the layout of the device, including adapters.
    pub weights_bytes: Bytes,
    /// K, V and recurrent states.
    pub cache_bytes: Bytes,
    /// Buffers of the largest graph.
    pub compute_bytes: Bytes,
    /// Memory of the device's own libraries: [`CUDA_RUNTIME`]. The value is always an estimate, because no buffer
    /// contains this memory.
    pub runtime_bytes: Bytes,
    /// Total memory of the device; `None` for the host and for a device that does not report its memory.
    #[serde(rename = "memory_total_bytes", skip_serializing_if = "Option::is_none")]
    pub total: Option<Bytes>,
    /// Free memory of the device; for the host, the memory that this process can allocate.
    #[serde(rename = "memory_free_bytes", skip_serializing_if = "Option::is_none")]
    pub free: Option<Bytes>,
}

impl Need {
    /// Returns the sum of all buffers, excluding the memory of the device's libraries.
    pub fn buffers(&self) -> Bytes {
        Bytes(self.weights_bytes.0.saturating_add(self.cache_bytes.0).saturating_add(self.compute_bytes.0))
    }

    /// Returns the sum of all buffers and the memory of the device's libraries.
    pub fn all(&self) -> Bytes {
        Bytes(self.buffers().0.saturating_add(self.runtime_bytes.0))
    }
}

/// Returns the memory that the libraries of `device` use in addition to the buffers.
pub fn runtime(device: &Device) -> Bytes {
    if device.backend == "CUDA" { CUDA_RUNTIME } else { Bytes(0) }
}

/// Adds up `taken` by device: each of `takers` in order, then the host. The cache and compute bytes of one context
/// are multiplied by `contexts`. The `adapters` bytes are distributed in proportion to the weights.
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

/// Returns the owners of `one` as indices into `takers`; the index `takers.len()` is the host. If several devices share
/// a buffer, because each holds a part of each layer, the buffer is divided equally among them. ggml-backend-meta.cpp
/// names such a buffer `Meta(CUDA0,CUDA1)`, or `Meta()`, because its code moves the list of devices before it reads the
/// list.
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

/// Describes the devices that have too little memory. Returns `None` if every device has enough memory or does not
/// report its memory.
pub fn lack(needs: &[Need]) -> Option<String> {
    short(needs, Need::all, |need| {
        let (weights, cache, compute) = (need.weights_bytes, need.cache_bytes, need.compute_bytes);
        format!("{} ({weights} of weights, {cache} of cache, {compute} of compute buffers)", need.all())
    })
}

/// Same as [`lack`], but only for a context, after the weights have been loaded.
pub fn lack_beside_weights(needs: &[Need]) -> Option<String> {
    let beside = |need: &Need| Bytes(need.cache_bytes.0.saturating_add(need.compute_bytes.0));
    short(needs, beside, |need| {
        let (weights, cache, compute) = (need.weights_bytes, need.cache_bytes, need.compute_bytes);
        format!(
            "{} ({cache} of cache, {compute} of compute buffers) in addition to {weights} of weights",
            beside(need)
        )
    })
}

/// Describes each device whose free memory is less than `wanted`, with the text `told`, followed by the remedy.
fn short(needs: &[Need], wanted: impl Fn(&Need) -> Bytes, told: impl Fn(&Need) -> String) -> Option<String> {
    let of = |need: &Need| {
        let free = need.free.filter(|free| !need.host && wanted(need) > *free)?;
        Some(format!("{} would need {}, but only {free} is free", need.device, told(need)))
    };
    let short: Vec<String> = needs.iter().filter_map(of).collect();
    (!short.is_empty()).then(|| format!("{}; --gpu-layers auto uses as many layers as fit", short.join("; ")))
}

/// Returns the number of bytes by which the fullest device exceeds its memory if `kept` bytes stay free on each device.
/// The result is negative if memory remains free. Devices that do not report their memory are assumed to be large
/// enough. The host is also assumed to be large enough, because the kernel can swap out or drop its pages.
pub fn excess(needs: &[Need], kept: Bytes) -> i64 {
    let of = |need: &Need| {
        let free = need.free.filter(|_| !need.host)?;
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        Some(signed(need.all().0).saturating_add(signed(kept.0)).saturating_sub(signed(free.0)))
    };
    needs.iter().filter_map(of).max().unwrap_or(i64::MIN)
}
