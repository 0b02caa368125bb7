//! Context options and context size that the settings request.

use build_info::Bytes;
use gguf::GgufFile;
use gguf::memory::{CacheShape, Number};
use llama::Model;
use llama::error::{Error, Result};
use llama::options::ContextOptions;

use crate::embed::pooling::Pooling;
use crate::settings::{Settings, Source};

/// Returns the context options that `settings` request.
pub fn context_options(model: &Model, settings: &Settings, interruptible: bool) -> ContextOptions {
    ContextOptions {
        n_ctx: n_ctx(settings, model.n_ctx_train()),
        n_batch: settings.n_batch.value,
        n_ubatch: settings.n_ubatch.value,
        type_k: settings.type_k.value,
        type_v: settings.type_v.value,
        flash_attention: settings.flash_attention.value,
        interruptible,
        kv_offload: settings.kv_offload.value,
        op_offload: settings.op_offload.value,
    }
}

/// Refuses a model whose attention is not causal. Such a model computes embeddings, and llama.cpp returns no logits for
/// it.
///
/// # Errors
/// If the model cannot generate text.
pub fn check_generates(model: &Model) -> Result<()> {
    if model.is_causal() {
        return Ok(());
    }
    let what = if Pooling::is_rank(model) {
        "scores pairs of texts and does not generate text\nhint: send a query and documents to `anneal serve` at \
        /v1/rerank"
    } else {
        "computes embeddings and does not generate text\nhint: request embeddings from `anneal serve` at \
        /v1/embeddings"
    };
    Err(Error::NotGenerative { path: model.path().to_path_buf(), what })
}

/// Returns the size of the context in tokens. The default is limited to the model's training context length; a
/// requested size is not limited.
pub fn n_ctx(settings: &Settings, trained: u32) -> u32 {
    match (settings.n_ctx.value, settings.n_ctx.source) {
        (0, _) => trained,
        (n_ctx, Source::Default) if trained > 0 => n_ctx.min(trained),
        (n_ctx, _) => n_ctx,
    }
}

/// Returns the size of the K and V caches. Returns `None` if the model keeps another kind of state, or if its layers
/// need different amounts.
pub fn cache_size(model: &Model, options: &ContextOptions) -> Option<Bytes> {
    // Layers with a sliding window may have heads of a different length.
    if !model.has_plain_cache() || model.window().is_some() {
        return None;
    }
    let architecture = model.metadata("general.architecture")?;
    let shape = CacheShape::new(|key| {
        let key = format!("{architecture}.{key}");
        match model.metadata(&key) {
            Some(text) => text.parse().map_or(Number::Other, Number::Is),
            // llama.cpp does not return arrays (here, one number per layer), so an array looks like a missing key
            // (`gguf_kv` in src/llama-model.cpp; ggml 0.26.0). Therefore, the value is read from the file.
            None if key.ends_with(".head_count_kv") => match GgufFile::open(model.path()) {
                Ok(file) if file.get(&key).is_none() => Number::Absent,
                _ => Number::Other,
            },
            None => Number::Absent,
        }
    })?;
    let (key, value) = (options.type_k.bytes_per_32(), options.type_v.bytes_per_32());
    Some(shape.bytes(u64::from(options.n_ctx), key, value))
}
