//! Where a model computes: each operation of its graphs, its weights and its cache, on which device or on the host.
//!
//! llama.cpp falls back to the CPU without a word, layer by layer and operation by operation. What it did is seen in a run of
//! its own, in which its scheduler is asked about every operation ([`observe`]); what was seen becomes a [`Report`].

mod report;
mod text;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::error::Result;
use crate::ffi::{Device, DeviceKind, Model, Token, Watch};
use crate::live::Live;
use crate::model;
use crate::options::ContextOptions;
use crate::settings::Settings;
use crate::threads;

pub use report::{Fault, HostOps, Kind, Layers, Phase, Report, Share, Stored, Why};

/// Tokens of the prompt. More than the 32 from which on devices take over products whose weights lie on the host
/// (`GGML_OP_OFFLOAD_MIN_BATCH`), so that what is seen is what a real prompt gets.
pub const PROMPT: u32 = 64;

/// What was seen of a context's graphs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Kinds of buffers.
    pub places: Vec<Place>,
    /// What outlives a graph.
    pub held: Vec<Held>,
    /// Operations in the order in which they were computed, those that only look at something otherwise left out.
    pub ops: Vec<Op>,
}

/// A kind of buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Whose it is, by ggml's name: `CUDA0`.
    pub device: String,
    /// What that is: `NVIDIA H200`.
    pub description: String,
    /// ggml's name of the kind: `CUDA0`, `CUDA_Host`, `CPU_Mapped`.
    pub buffer: String,
    /// Whether it lies in the host's memory, the layouts of the CPU's own kernels (`AMX`) included. `CUDA_Host` does, though its
    /// device is the GPU: the CPU computes there.
    pub is_host: bool,
}

/// Weights or a part of the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Its name, as in the file: `blk.0.attn_q.weight`; `cache_k_l0`.
    pub name: String,
    /// Index of where it lies.
    pub place: usize,
    /// Its size.
    pub bytes: u64,
    /// Whether it is K, V or recurrent state.
    pub is_cache: bool,
}

/// An operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Op {
    /// Which of the phases it belongs to.
    pub phase: usize,
    /// Its kind: `MUL_MAT`.
    pub op: String,
    /// Name of its result: `Qcur-0`, where the number is the layer's.
    pub name: String,
    /// Index of where its result lies, which is where it was computed.
    pub place: usize,
    /// Size of its result.
    pub bytes: u64,
    /// Bytes of weights that it reads.
    pub weight_bytes: u64,
    /// Tensors that were copied from another device for it.
    pub copies: u32,
    /// Their size.
    pub copied_bytes: u64,
    /// Indices of what it reads or writes of what outlives the graph.
    pub held: Vec<usize>,
}

/// Evaluates a prompt and a token of `model`, as `settings` want it, and tells where.
///
/// # Errors
/// Those of making a context and of evaluating; models that make no text are refused.
pub fn observe(model: &Arc<Model>, settings: &Settings, live: &Live) -> Result<Report> {
    let options = model::context_options(model, settings, true);
    let room = options.n_ctx.saturating_sub(1).min(options.n_ubatch).min(options.n_batch).max(1);
    let prompt = PROMPT.min(room);
    let seen = run(model, &options, settings, live, &[prompt, 1])?;
    Ok(Report::new(&seen, &[("prefill", prompt), ("decode", 1)], devices()))
}

/// The same of a token alone, for whoever only wants to know whether all is where it should be.
///
/// # Errors
/// Those of [`observe`].
pub fn observe_decode(model: &Arc<Model>, settings: &Settings, live: &Live) -> Result<Report> {
    let options = model::context_options(model, settings, true);
    let seen = run(model, &options, settings, live, &[1])?;
    Ok(Report::new(&seen, &[("decode", 1)], described(&model.placed().takers)))
}

/// The devices that came up, by name and description: `CUDA0 (NVIDIA H200)`.
pub fn devices() -> Vec<String> {
    let devices = crate::ffi::devices().into_iter().filter(|device| device.kind == DeviceKind::Gpu);
    described(&crate::ffi::usable(devices.collect()))
}

/// The same of `devices`.
pub fn described(devices: &[Device]) -> Vec<String> {
    devices.iter().map(|device| format!("{} ({})", device.name, device.description)).collect()
}

/// Evaluates as many tokens as `phases` say, one phase after the other.
fn run(
    model: &Arc<Model>,
    options: &ContextOptions,
    settings: &Settings,
    live: &Live,
    phases: &[u32],
) -> Result<Seen> {
    model::check_generates(model)?;
    let mut watch = Watch::new(model, options)?;
    threads::attach(watch.context(), settings, live.host.as_ref())?;
    // Any tokens: where they are computed depends on how many they are.
    let first = model.begin_token().unwrap_or(0);
    for (phase, count) in phases.iter().enumerate() {
        let tokens: Vec<Token> = vec![first; *count as usize];
        watch.evaluate(phase, &tokens)?;
    }
    Ok(watch.seen())
}
