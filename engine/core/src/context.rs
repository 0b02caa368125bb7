//! Creates contexts, with errors that are more specific than llama.cpp's.

use std::sync::Arc;

use build_info::Bytes;
use gguf::GgufFile;
use gguf::memory::longest_context;
use llama::error::{Error, Result};
use llama::options::{ContextOptions, KvType};
use llama::{Collector, Context, Model};

use crate::context_options::{cache_size, check_generates, context_options};
use crate::fit::{EstimatedModel, Seats};
use crate::runtime_host::RuntimeHost;
use crate::settings::{CTX_STEP, Settings};
use crate::threads;

/// Creates a context for `model`, with its own thread pools.
///
/// # Errors
/// If the context does not fit into memory, or llama.cpp cannot create it.
pub fn context(
    model: &Arc<Model>,
    settings: &Settings,
    runtime_host: &RuntimeHost,
    interruptible: bool,
) -> Result<Context> {
    let options = context_options(model, settings, interruptible);
    context_with(model, &options, settings, runtime_host, LOWER_CTX)
}

/// Hint for a context that does not fit into memory.
pub const LOWER_CTX: &str = "lower -c, or make the cache smaller with -ctk q8_0 -ctv q8_0";

/// Creates a context with `options` instead of the options from the settings. If the context does not fit into
/// memory, the error contains the remedy `mend`.
///
/// # Errors
/// If the context does not fit into memory, or llama.cpp cannot create it.
pub fn context_with(
    model: &Arc<Model>,
    options: &ContextOptions,
    settings: &Settings,
    runtime_host: &RuntimeHost,
    mend: &'static str,
) -> Result<Context> {
    context_collecting(model, options, settings, runtime_host, mend, None)
}

/// Creates a context like [`context_with`]; `collector` receives the inputs of every matrix.
///
/// # Errors
/// Errors of [`context_with`].
pub fn context_collecting(
    model: &Arc<Model>,
    options: &ContextOptions,
    settings: &Settings,
    runtime_host: &RuntimeHost,
    mend: &'static str,
    collector: Option<Arc<Collector>>,
) -> Result<Context> {
    check_generates(model)?;
    check_memory(model, options, settings, runtime_host, mend)?;
    let made = Context::with(model, options, collector);
    let mut context =
        made.map_err(|error| explained(error, model, options, settings, runtime_host, Seats::default()))?;
    threads::attach(&mut context, &settings.for_model(model), runtime_host.host.as_ref())?;
    Ok(context)
}

/// Creates a context with `sequences` sequences that share its cells. Each batch has room for `rows` rows of logits.
///
/// # Errors
/// Errors of [`context`].
pub fn shared_context(
    model: &Arc<Model>,
    settings: &Settings,
    runtime_host: &RuntimeHost,
    sequences: u32,
    rows: u32,
) -> Result<Context> {
    // The context can be interrupted, so that a shutdown need not wait for a long step.
    let options = context_options(model, settings, true);
    context_of(model, &options, settings, runtime_host, LOWER_CTX, sequences, rows)
}

/// Creates a shared context with `options` instead of the options from the settings. If the context does not fit into
/// memory, the error contains the remedy `mend`.
///
/// # Errors
/// Errors of [`context`].
pub fn context_of(
    model: &Arc<Model>,
    options: &ContextOptions,
    settings: &Settings,
    runtime_host: &RuntimeHost,
    mend: &'static str,
    sequences: u32,
    rows: u32,
) -> Result<Context> {
    check_memory(model, options, settings, runtime_host, mend)?;
    let made = Context::shared_with_rows(model, options, sequences, rows);
    let seats = Seats { sequences, rows, ..Seats::default() };
    let mut context =
        made.map_err(|error| explained(error, model, options, settings, runtime_host, seats))?;
    threads::attach(&mut context, &settings.for_model(model), runtime_host.host.as_ref())?;
    Ok(context)
}

/// Adds the name of the device that lacks memory to an error from creating a context, because llama.cpp reports only
/// the size of a single buffer.
fn explained(
    error: Error,
    model: &Model,
    options: &ContextOptions,
    settings: &Settings,
    runtime_host: &RuntimeHost,
    seats: Seats,
) -> Error {
    let Error::Context { n_ctx, why } = error else { return error };
    // Settings of the context that could not be created, which may differ from `settings`.
    let mut own = settings.clone();
    own.n_ctx.value = options.n_ctx;
    (own.n_batch.value, own.n_ubatch.value) = (options.n_batch, options.n_ubatch);
    (own.type_k.value, own.type_v.value) = (options.type_k, options.type_v);
    let settings = &own;
    let lack = || {
        let placed = Some(model.placed()).filter(|placed| placed.is_offloaded())?;
        let file = GgufFile::open(model.path()).ok()?;
        let others = file.other_parts().ok()?;
        let parts: Vec<&GgufFile> = std::iter::once(&file).chain(&others).collect();
        let checked = gguf::check::model(&parts).ok()?;
        let subject = EstimatedModel::new(&parts, &checked, settings, runtime_host, placed, seats).ok()?;
        let offload = model.plan().map_or_else(|| settings.offload(), |plan| plan.offload.clone());
        llama::fit::lack_beside_weights(&subject.needs(&offload).ok()?)
    };
    match lack() {
        Some(lack) => Error::Context { n_ctx, why: format!("{}; {lack}", why.trim_end()) },
        None => Error::Context { n_ctx, why },
    }
}

/// Checks that the cache of a context fits into the memory that the weights leave free.
fn check_memory(
    model: &Model,
    options: &ContextOptions,
    settings: &Settings,
    runtime_host: &RuntimeHost,
    mend: &'static str,
) -> Result<()> {
    let (placed, n_layer) = (model.placed(), model.n_layer());
    let weights =
        if settings.weights_are_pageable() { 0 } else { model.size().saturating_sub(model.on_devices()) };
    // The available memory was determined before the weights were loaded.
    let available = runtime_host.memory().map(|available| Bytes(available.0.saturating_sub(weights)));
    let cache = cache_size(model, options);
    let here = |all: Bytes| if options.kv_offload { Bytes(placed.here(all.0, n_layer)) } else { all };
    let cache = cache.map(here);
    if let (Some(needed), Some(available)) = (cache, available)
        && needed > available
    {
        return Err(Error::TooLarge {
            path: model.path().to_path_buf(),
            what: "context",
            needed,
            available,
            mend: match would_fit(model, options, available) {
                Some(fits) => format!("{mend}: {fits}"),
                None => mend.to_string(),
            },
        });
    }
    Ok(())
}

/// Suggests context sizes whose cache fits into `available`.
fn would_fit(model: &Model, options: &ContextOptions, available: Bytes) -> Option<String> {
    let tokens = |type_k: KvType, type_v: KvType| {
        let one = cache_size(model, &ContextOptions { n_ctx: CTX_STEP, type_k, type_v, ..*options })?;
        Some(longest_context(available, one).min(options.n_ctx)).filter(|tokens| *tokens > 0)
    };
    let as_is = tokens(options.type_k, options.type_v);
    let smaller = tokens(KvType::Q8_0, KvType::Q8_0).filter(|smaller| Some(*smaller) > as_is);
    match (as_is, smaller) {
        (None, None) => None,
        (Some(as_is), None) => Some(format!("-c {as_is} would fit")),
        (None, Some(smaller)) => Some(format!("-c {smaller} with a q8_0 cache would fit")),
        (Some(as_is), Some(smaller)) => {
            Some(format!("-c {as_is} would fit, or -c {smaller} with a q8_0 cache"))
        }
    }
}
