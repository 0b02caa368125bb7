//! Placement of a model: which devices (or the host) compute its operations and store its weights and cache.
//!
//! llama.cpp falls back to the CPU without a message, layer by layer and operation by operation. [`observe`] makes a
//! separate run that queries llama.cpp's scheduler about every operation, and a [`PlacementReport`] summarises the
//! result.

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

/// Number of prompt tokens. The number exceeds 32 (`GGML_OP_OFFLOAD_MIN_BATCH`), the minimum batch size for which
/// devices also compute products with weights in host memory. The run therefore behaves like a real prompt.
pub const PROMPT: u32 = 64;

/// Evaluates a prompt and a token with `model` and `settings`, and reports the placement.
///
/// # Errors
/// If the model does not generate text, a context cannot be created, or the evaluation fails.
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

/// Reports the placement of a single token, for callers that check only decode.
///
/// # Errors
/// Errors of [`observe`].
pub fn observe_decode(
    model: &Arc<Model>,
    settings: &Settings,
    runtime_host: &RuntimeHost,
) -> Result<PlacementReport> {
    let options = crate::context_options::context_options(model, settings, true);
    let seen = run(model, &options, settings, runtime_host, &[1])?;
    Ok(PlacementReport::new(&seen, &[("decode", 1)], described(&model.placed().takers)))
}

/// Returns the available devices by name and description, such as `CUDA0 (NVIDIA H200)`.
pub fn devices() -> Vec<String> {
    let devices = llama::devices().into_iter().filter(|device| device.kind == DeviceKind::Gpu);
    described(&llama::usable(devices.collect()))
}

/// Describes each of `devices` by name and description.
pub fn described(devices: &[Device]) -> Vec<String> {
    devices.iter().map(|device| format!("{} ({})", device.name, device.description)).collect()
}

/// Evaluates the tokens of each phase, one phase after the other.
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
    // The choice of tokens does not matter: the placement depends only on the number of tokens.
    let first = model.begin_token().unwrap_or(0);
    for (phase, count) in phases.iter().enumerate() {
        let tokens: Vec<Token> = vec![first; *count as usize];
        watch.evaluate(phase, &tokens)?;
    }
    Ok(watch.seen())
}
