//! Checks whether a model fits into the memory that a process may use, and computes the longest context that fits.
//!
//! The only inputs are the header of a model and the description of a host, so neither the model's weights nor the host
//! are needed. The engine instead lets llama.cpp compute the memory of a model (`llama::fit`). The engine's buffer
//! sizes and its number of fitting layers can therefore differ from the results of this module. `gguf::memory`
//! contains the computations that both share.

use std::fmt;

use build_info::{Bytes, Host};
use gguf::GgmlType;
use gguf::memory::CTX_STEP;
use serde::Serialize;

use super::kv;
use super::model_facts::{ModelFacts, Tensor, sum};

/// Maximum context length in tokens for a model whose header has no training context length.
const UNTRAINED_CONTEXT: u64 = 1 << 20;
/// Memory that is left to the system: the free memory divided by `RESERVE_PART`, but at least `LEAST_RESERVE`. Both
/// are rules of thumb: the engine itself needs about 50 MiB, and page tables and kernel buffers grow with the memory.
/// The engine has the option `--fit-target` instead.
const RESERVE_PART: u64 = 16;
const LEAST_RESERVE: Bytes = Bytes::mib(512);

/// Degree to which a model fits into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FitVerdict {
    /// The weights, the KV cache and the buffers fit.
    Fits,
    /// The KV cache and the buffers fit, but weights are repeatedly read from the disk.
    StreamsFromDisk,
    /// The KV cache and the buffers do not fit.
    DoesNotFit,
}

impl fmt::Display for FitVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            FitVerdict::Fits => "fits",
            FitVerdict::StreamsFromDisk => "fits only if weights are read from the disk for every token",
            FitVerdict::DoesNotFit => "does not fit",
        })
    }
}

/// Memory that the process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Budget {
    /// Memory of the machine, or the memory limit of the control group if the limit is lower.
    pub total: Bytes,
    /// Part of `total` that is free.
    pub free: Bytes,
    /// Memory that is left to the system.
    pub reserve: Bytes,
    /// Memory that the model may use.
    pub usable: Bytes,
}

impl Budget {
    /// Returns the memory of `host` at the time when it was inspected.
    pub fn of(host: &Host) -> Self {
        let limit = host.limits.memory.unwrap_or(Bytes(u64::MAX));
        let total = host.memory.total.min(limit);
        Self::within(total, host.memory.available.min(limit))
    }

    /// Returns the memory that would be available if no other program ran on the machine.
    pub fn idle(self) -> Self {
        Self::within(self.total, self.total)
    }

    fn within(total: Bytes, free: Bytes) -> Self {
        let reserve = reserve(free);
        Self { total, free, reserve, usable: Bytes(free.0.saturating_sub(reserve.0)) }
    }
}

/// Returns the part of `free` memory, of a machine or a GPU, that must stay unused.
pub fn reserve(free: Bytes) -> Bytes {
    Bytes(free.0 / RESERVE_PART).max(LEAST_RESERVE)
}

/// Memory that a run needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Need {
    /// Context size in tokens.
    pub n_ctx: u32,
    /// Size of the weights.
    pub weights: Bytes,
    /// Size of the weights that the CPU backend repacks. Loading releases the pages of the file while it repacks
    /// (patch 0013), so these weights are in memory only once.
    pub repacked: Bytes,
    /// Size of the KV cache.
    pub kv: Bytes,
    /// Size of the compute buffers of one graph.
    pub compute: Bytes,
}

impl Need {
    /// Computes the memory that `model` needs on `host`, with a KV cache of type `cache`.
    pub fn of(model: &ModelFacts, host: &Host, n_ctx: u32, n_ubatch: u32, cache: GgmlType) -> Self {
        let kv = model.kv.per_token(cache).unwrap_or(u64::MAX).saturating_mul(n_ctx.into());
        Self {
            n_ctx,
            weights: model.weights,
            repacked: repacked_bytes(model, host),
            kv: Bytes(kv),
            compute: compute_buffer(model, n_ctx, n_ubatch),
        }
    }

    /// Returns the size of the KV cache and the compute buffers, which cannot be dropped and read again.
    pub fn buffers(&self) -> Bytes {
        Bytes(self.kv.0.saturating_add(self.compute.0))
    }

    /// Returns the memory that is needed to keep the weights in memory.
    pub fn total(&self) -> Bytes {
        Bytes(self.buffers().0.saturating_add(self.weights.0))
    }

    /// Returns the verdict for a process that may use `usable` memory.
    pub fn verdict(&self, usable: Bytes) -> FitVerdict {
        match usable {
            usable if self.total() <= usable => FitVerdict::Fits,
            usable if self.buffers() <= usable => FitVerdict::StreamsFromDisk,
            _ => FitVerdict::DoesNotFit,
        }
    }
}

/// Result of the check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Verdict on the fit.
    pub verdict: FitVerdict,
    /// Memory that is available.
    pub memory: Budget,
    /// Memory that the model needs.
    pub need: Need,
    /// True if the model would fit if no other program ran on the machine.
    pub fits_when_idle: bool,
    /// Maximum context length in tokens that keeps the weights in memory, limited by the training
    /// context length.
    pub largest_context: Option<u32>,
    /// Maximum context length in tokens with a KV cache of type Q8_0, limited by the training
    /// context length.
    pub largest_context_q8_0: Option<u32>,
}

impl Fit {
    /// Checks `model` with a context of `n_ctx` tokens.
    pub fn of(model: &ModelFacts, host: &Host, n_ctx: u32, n_ubatch: u32) -> Self {
        let memory = Budget::of(host);
        let need = Need::of(model, host, n_ctx, n_ubatch, kv::F16);
        let largest = |cache| largest_context(model, host, n_ubatch, cache, memory.usable);
        Self {
            verdict: need.verdict(memory.usable),
            fits_when_idle: need.total() <= memory.idle().usable,
            largest_context: largest(kv::F16),
            largest_context_q8_0: model.kv.q8_0.and_then(|_| largest(kv::Q8_0)),
            memory,
            need,
        }
    }
}

/// Returns the maximum context length, in steps of [`CTX_STEP`], for which the weights, the KV cache and the
/// buffers fit into `usable`.
pub fn largest_context(
    model: &ModelFacts,
    host: &Host,
    n_ubatch: u32,
    cache: GgmlType,
    usable: Bytes,
) -> Option<u32> {
    let fits = |steps: u32| Need::of(model, host, steps * CTX_STEP, n_ubatch, cache).total() <= usable;
    // llama.cpp rounds a context up to a multiple of the step.
    let trained = model.trained_context.unwrap_or(UNTRAINED_CONTEXT).clamp(1, UNTRAINED_CONTEXT * 16);
    let (mut low, mut high) = (0, u32::try_from(trained.div_ceil(CTX_STEP.into())).unwrap_or(u32::MAX));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    (low > 0).then_some(low * CTX_STEP)
}

/// Returns the size of the buffer that llama.cpp reserves for the largest graph, as an upper estimate.
///
/// With flash attention, as on the CPU backend, the buffer has two parts. The first contains a row of the mask in
/// half precision for each of `n_ubatch` tokens. The second is the largest set of tensors that exist at the same
/// time: the logits with the preceding stream (at most six times its width), the two products of the feed-forward
/// network, or the products of the experts. The estimate was compared with the sizes that llama.cpp reported for
/// synthetic models (llama.cpp of crate 0.1.161). With a large vocabulary, the estimate is accurate to a few per cent.
pub fn compute_buffer(model: &ModelFacts, n_ctx: u32, n_ubatch: u32) -> Bytes {
    const F32: u64 = 4;
    let used = model.experts.map_or(1, |experts| experts.used);
    let logits = sum([model.vocabulary, model.embedding.saturating_mul(6)].into_iter());
    let network =
        sum([model.feed_forward.saturating_mul(2), model.embedding].into_iter()).saturating_mul(used);
    let stream = model.embedding.saturating_mul(2);
    let floats = logits.max(network.saturating_add(stream)).saturating_mul(F32);
    Bytes(floats.saturating_add(u64::from(n_ctx) * 2).saturating_mul(n_ubatch.into()))
}

/// Returns the size of the weights that the CPU backend repacks. A tied embedding is repacked as the output matrix.
pub fn repacked_bytes(model: &ModelFacts, host: &Host) -> Bytes {
    let copied = model
        .tensors
        .iter()
        .filter(|tensor| (tensor.name != "token_embd.weight" || model.tied) && is_repacked(tensor, host));
    Bytes(sum(copied.map(Tensor::bytes)))
}

/// True if the CPU backend repacks this matrix on this CPU. Source: `ggml_repack_get_optimal_repack_type` in
/// ggml-cpu/repack.cpp and `supports_op` in ggml-cpu/amx/amx.cpp of the pinned llama.cpp.
pub fn is_repacked(tensor: &Tensor, host: &Host) -> bool {
    if tensor.dims.len() < 2 || tensor.dims.len() > 3 || !tensor.name.ends_with(".weight") {
        return false;
    }
    let rows = tensor.dims[1];
    let amx = ["amx_tile", "amx_int8"].iter().all(|feature| host.cpu.has(feature));
    if amx && tensor.dims.len() == 2 && rows.is_multiple_of(32) && in_tiles(tensor) {
        return true;
    }
    let needed = match tensor.kind.name() {
        "q4_0" if host.cpu.has("avx2") => 8,
        "q4_K" | "iq4_nl" | "mxfp4" if host.cpu.has("avx2") => 8,
        "q2_K" if host.cpu.has("avx512f") => 8,
        "q4_0" | "iq4_nl" | "mxfp4" | "q8_0" | "q1_0" if host.cpu.has("asimddp") => 4,
        "q4_K" | "q5_K" | "q6_K" if host.cpu.has("asimddp") => 8,
        _ => return false,
    };
    rows.is_multiple_of(needed)
}

fn in_tiles(tensor: &Tensor) -> bool {
    let step = match tensor.kind.name() {
        "q4_0" | "q4_1" | "q8_0" => 32,
        "q4_K" | "q5_K" | "q6_K" | "iq4_xs" => 256,
        "f16" => 16,
        _ => return false,
    };
    tensor.row().is_multiple_of(step)
}
