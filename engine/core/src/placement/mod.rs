//! Where a model computes: each operation of its graphs, its weights and its cache, on which device or on the host.
//!
//! llama.cpp falls back to the CPU without a word, layer by layer and operation by operation. What it did is seen in a run of
//! its own, in which its scheduler is asked about every operation ([`observe`]); what was seen becomes a [`PlacementReport`].

mod report;
mod text;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use llama::error::Result;
use llama::options::ContextOptions;
use llama::{Device, DeviceKind, GraphsSeen, Model, Token, Watch};

use crate::runtime_host::RuntimeHost;
use crate::settings::Settings;
use crate::threads;

pub use report::{Fault, HostOps, Layers, Phase, PlacementReport, Share, Stored, TensorRole, Why};

/// Tokens of the prompt. More than the 32 from which on devices take over products whose weights lie on the host
/// (`GGML_OP_OFFLOAD_MIN_BATCH`), so that what is seen is what a real prompt gets.
pub const PROMPT: u32 = 64;

/// Evaluates a prompt and a token of `model`, as `settings` want it, and tells where.
///
/// # Errors
/// Those of making a context and of evaluating; models that make no text are refused.
pub fn observe(
    model: &Arc<Model>,
    settings: &Settings,
    runtime_host: &RuntimeHost,
) -> Result<PlacementReport> {
    let options = crate::context_options::context_options(model, settings, true);
    let room = options.n_ctx.saturating_sub(1).min(options.n_ubatch).min(options.n_batch).max(1);
    let prompt = PROMPT.min(room);
    let seen = run(model, &options, settings, runtime_host, &[prompt, 1])?;
    Ok(PlacementReport::new(&seen, &[("prefill", prompt), ("decode", 1)], devices()))
}

/// The same of a token alone, for whoever only wants to know whether all is where it should be.
///
/// # Errors
/// Those of [`observe`].
pub fn observe_decode(
    model: &Arc<Model>,
    settings: &Settings,
    runtime_host: &RuntimeHost,
) -> Result<PlacementReport> {
    let options = crate::context_options::context_options(model, settings, true);
    let seen = run(model, &options, settings, runtime_host, &[1])?;
    Ok(PlacementReport::new(&seen, &[("decode", 1)], described(&model.placed().takers)))
}

/// The devices that came up, by name and description: `CUDA0 (NVIDIA H200)`.
pub fn devices() -> Vec<String> {
    let devices = llama::devices().into_iter().filter(|device| device.kind == DeviceKind::Gpu);
    described(&llama::usable(devices.collect()))
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
    runtime_host: &RuntimeHost,
    phases: &[u32],
) -> Result<GraphsSeen> {
    crate::context_options::check_generates(model)?;
    let mut watch = Watch::new(model, options)?;
    threads::attach(watch.context(), settings, runtime_host.host.as_ref())?;
    // Any tokens: where they are computed depends on how many they are.
    let first = model.begin_token().unwrap_or(0);
    for (phase, count) in phases.iter().enumerate() {
        let tokens: Vec<Token> = vec![first; *count as usize];
        watch.evaluate(phase, &tokens)?;
    }
    Ok(watch.seen())
}
