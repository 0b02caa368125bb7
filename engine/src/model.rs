//! Opens models and makes contexts of them, after checks whose errors say more than llama.cpp's.

use std::path::Path;
use std::sync::Arc;

use build_info::Bytes;

use crate::error::{Error, Result};
use crate::ffi::{Context, Model};
use crate::live::Live;
use crate::options::{ContextOptions, KvType, LoadMode};
use crate::settings::{Settings, Source};
use crate::threads;

/// Loads the model at `path`.
///
/// The file is read and checked first: llama.cpp's own parser ends some damaged files with an assertion. A
/// model larger than the memory is refused unless it is mapped and not repacked, so that the kernel can drop
/// its pages: the alternative is the out-of-memory killer.
pub fn open(path: &Path, settings: &Settings, live: &Live) -> Result<Arc<Model>> {
    let size = gguf::GgufFile::open(path)?.total_tensor_bytes();
    let pageable = is_pageable(settings);
    if let Some(available) = live.memory().filter(|available| size > *available && !pageable) {
        return Err(Error::TooLarge {
            path: path.to_path_buf(),
            what: "weights",
            needed: size,
            available,
            mend: "use a smaller quantisation, or read it from the disk as it runs, slowly, with \
                   --load-mode mmap --no-repack",
        });
    }
    let model = Model::load(path, &settings.model_options())?;
    if !model.is_decoder_only() {
        let what = "has an encoder: this program runs models that generate text with a decoder alone";
        return Err(Error::NotGenerative { path: path.to_path_buf(), what });
    }
    Ok(model)
}

/// Makes a context of `model` with threads of its own.
pub fn context(model: &Arc<Model>, settings: &Settings, live: &Live, interruptible: bool) -> Result<Context> {
    let options = ContextOptions {
        n_ctx: n_ctx(model, settings),
        n_batch: settings.n_batch.value,
        n_ubatch: settings.n_ubatch.value,
        type_k: settings.type_k.value,
        type_v: settings.type_v.value,
        flash_attention: settings.flash_attention.value,
        interruptible,
    };
    context_with(model, &options, settings, live)
}

/// The same with `options` that are not the settings'.
pub fn context_with(
    model: &Arc<Model>,
    options: &ContextOptions,
    settings: &Settings,
    live: &Live,
) -> Result<Context> {
    // What was available before the weights took their part.
    let weights = if is_pageable(settings) { 0 } else { model.size() };
    let available = live.memory().map(|available| Bytes(available.0.saturating_sub(weights)));
    if let (Some(needed), Some(available)) = (cache_size(model, options), available)
        && needed > available
    {
        return Err(Error::TooLarge {
            path: model.path().to_path_buf(),
            what: "context",
            needed,
            available,
            mend: "lower -c, or make the cache smaller with -ctk q8_0 -ctv q8_0",
        });
    }
    let mut context = Context::new(model, options)?;
    threads::attach(&mut context, settings, live.host.as_ref())?;
    Ok(context)
}

/// Whether the kernel can drop the weights' pages and read them again: mapped, and not copied by repacking.
fn is_pageable(settings: &Settings) -> bool {
    settings.load_mode.value == LoadMode::Mmap && !settings.repack.value
}

/// Size of the context: the default is cut to what the model was trained for, a flag is not.
fn n_ctx(model: &Model, settings: &Settings) -> u32 {
    match (settings.n_ctx.value, settings.n_ctx.source) {
        (0, _) => model.n_ctx_train(),
        (n_ctx, Source::Default) if model.n_ctx_train() > 0 => n_ctx.min(model.n_ctx_train()),
        (n_ctx, _) => n_ctx,
    }
}

/// Bytes of the K and V caches: n_ctx × layers × KV heads × (key length + value length) values. `None` for
/// models that keep something else.
fn cache_size(model: &Model, options: &ContextOptions) -> Option<Bytes> {
    let architecture = model.metadata("general.architecture")?;
    let number = |key: &str| model.metadata(&format!("{architecture}.{key}"))?.parse::<u64>().ok();
    if !model.has_plain_cache() || number("attention.kv_lora_rank").is_some() {
        return None;
    }
    let heads = number("attention.head_count").filter(|heads| *heads > 0)?;
    let kv_heads = number("attention.head_count_kv").unwrap_or(heads);
    let head = number("embedding_length")? / heads;
    let per_token = |key, kind: KvType| kv_heads * number(key).unwrap_or(head) * kind.bytes_per_32() / 32;
    let bytes = per_token("attention.key_length", options.type_k)
        + per_token("attention.value_length", options.type_v);
    Some(Bytes(u64::from(options.n_ctx) * u64::from(model.n_layer()) * bytes))
}
