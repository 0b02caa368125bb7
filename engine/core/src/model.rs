//! Opens models and makes contexts of them, after checks whose errors say more than llama.cpp's.

use std::path::Path;
use std::sync::{Arc, Mutex};

use build_info::Bytes;
use gguf::check::Checked;
use gguf::memory::{CacheShape, Number};
use gguf::{GgufFile, Scalar, Value};
use llama::error::{Error, Result};
use llama::fit::Plan;
use llama::offload::{self, Placed};
use llama::options::{ContextOptions, KvType, LoadMode};
use llama::variant::Variant;
use llama::{Collector, Context, Model, ModelOptions, notice};

use crate::embed::is_causal;
use crate::fit::{Seats, Subject};
use crate::live::Live;
use crate::place::place_for;
use crate::settings::{CTX_STEP, Settings, Source};
use crate::{gpu, threads};

/// Loads the model at `path`.
///
/// The file is read and checked first: llama.cpp's own parser ends some damaged files with an assertion. A file that passes
/// and is not known is then loaded by a child process: see [`crate::trial`]. A
/// model larger than the memory is refused unless it is mapped and not repacked, so that the kernel can drop
/// its pages: the alternative is the out-of-memory killer.
///
/// Where the settings require a GPU, one must have it: see [`gpu`].
///
/// Where the number of layers on devices is left open, it is as many as find room there: see [`fit`].
pub fn open(path: &Path, settings: &Settings, live: &Live) -> Result<Arc<Model>> {
    open_for(path, settings, live, Seats::default())
}

/// Reads the header of the model at `path`, and those of its other parts.
pub fn read_files(path: &Path) -> Result<(GgufFile, Vec<GgufFile>)> {
    let file = GgufFile::open(path)?;
    let others = file.other_parts()?;
    Ok((file, others))
}

/// Reads and checks the header of the model at `path`, and tries the model if it is not known: what [`open`] does before it
/// lets llama.cpp load it.
pub fn check_file(path: &Path, settings: &Settings) -> Result<()> {
    let (file, others) = read_files(path)?;
    let parts: Vec<&GgufFile> = std::iter::once(&file).chain(&others).collect();
    crate::trial::of_load(&parts, settings).map(drop)
}

/// The same for other contexts than one of one sequence, which is what layers are given room beside.
pub fn open_for(path: &Path, settings: &Settings, live: &Live, seats: Seats) -> Result<Arc<Model>> {
    let (file, others) = read_files(path)?;
    if !settings.tiled.value && settings.tiled.source != Source::Environment {
        llama::turn_off_tiled();
    }
    llama::ask_huge_pages(settings.huge_pages.value);
    // Before the size: what goes to other devices does not have to fit here.
    let placed = match place_for(settings) {
        // Why there is no device goes before what cannot be done without one.
        Err(why @ Error::Usage(_)) => gpu::require_device(path, settings, live).and(Err(why))?,
        placed => placed?,
    };
    // Before minutes of loading.
    gpu::require_device(path, settings, live)?;
    let parts: Vec<&GgufFile> = std::iter::once(&file).chain(&others).collect();
    gpu::warn_of_cublas(&parts, &placed, settings, live);
    // To plan for devices is to let llama.cpp read the header.
    let mut checked = None;
    if !placed.takers.is_empty() {
        checked = Some(crate::trial::of_load(&parts, settings)?);
    }
    let plan = checked.as_ref().and_then(|checked| plan(&parts, checked, settings, live, &placed, seats));
    let (placed, options) = match &plan {
        Some(plan) => {
            gpu::require_room(path, plan, settings, live)?;
            let options = ModelOptions { offload: plan.offload.clone(), ..settings.model_options() };
            (offload::place(&plan.offload)?, options)
        }
        None => (placed, settings.model_options()),
    };
    let weights = offload::local_weights(&parts, &placed);
    let size = Bytes(weights.0.saturating_add(adapters_size(&file, settings)?.0));
    if file.get("general.type") == Some(&Value::Scalar(Scalar::String("adapter".to_string()))) {
        let what =
            "is an adapter (LoRA) and no model: name the model that it is for with -m, and it with --lora";
        return Err(Error::NotGenerative { path: path.to_path_buf(), what });
    }
    let pageable = is_pageable(settings);
    if let Some(available) = live.memory().filter(|available| size > *available && !pageable) {
        return Err(Error::TooLarge {
            path: path.to_path_buf(),
            what: "weights",
            needed: size,
            available,
            mend: "use a smaller quantisation, or read it from the disk as it runs, slowly, with \
                   --load-mode mmap --no-repack"
                .to_string(),
        });
    }
    let checked = match checked {
        Some(checked) => checked,
        // After what is cheap to refuse.
        None => crate::trial::of_load(&parts, settings)?,
    };
    let loaded = Model::load_as(&checked, &options, &settings.variant);
    let model = loaded.map_err(|error| match error {
        Error::Load { path, why } if placed.is_offloaded() => {
            let subject = Subject::new(&parts, &checked, settings, live, &placed, seats);
            let lack = subject.and_then(|subject| subject.needs(&options.offload)).ok();
            let lack = lack
                .and_then(|needs| llama::fit::lack(&needs))
                .map_or(String::new(), |lack| format!("; {lack}"));
            let why = format!("{}{lack}", why.trim_end());
            Error::Load { path, why }
        }
        error => error,
    })?;
    if let Some(plan) = plan {
        model.set_plan(plan);
    }
    if !model.is_decoder_only() {
        let what = "has an encoder: this program runs models that generate text with a decoder alone";
        return Err(Error::NotGenerative { path: path.to_path_buf(), what });
    }
    gpu::require(&model, settings, live)?;
    Ok(model)
}

/// How many layers find room on devices, where that is to be found; says so where it is not all of them, since each that stays
/// on the host is waited for at every token. Where llama.cpp cannot tell, loading goes on as if all had room, and says what is
/// wrong with the model.
fn plan(
    parts: &[&GgufFile],
    checked: &Checked,
    settings: &Settings,
    live: &Live,
    placed: &Placed,
    seats: Seats,
) -> Option<Plan> {
    let found =
        Subject::new(parts, checked, settings, live, placed, seats).and_then(|subject| subject.plan());
    match found {
        Ok(Some(plan)) => {
            match plan.is_whole(settings.n_cpu_moe.value) {
                true => tracing::info!("{plan}"),
                false => note(checked.path(), &plan),
            }
            Some(plan)
        }
        Ok(None) => None,
        Err(why) => {
            tracing::debug!(
                "all layers are given to devices, since it cannot be told how many find room: {why}"
            );
            None
        }
    }
}

/// Says where `plan` puts the model at `path`; once, where it is loaded again and again.
fn note(path: &Path, plan: &Plan) {
    static LAST: Mutex<String> = Mutex::new(String::new());
    let mut last = LAST.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let words = plan.to_string();
    let this = format!("{}: {words}", path.display());
    if *last != this {
        notice::note(&words);
        *last = this;
    }
}

/// Size of the weights of the adapters that `settings` want of the model that begins with `file`, which go with it.
pub fn adapters_size(file: &GgufFile, settings: &Settings) -> Result<Bytes> {
    if settings.variant == Variant::default() {
        return Ok(Bytes(0));
    }
    let others = file.other_parts()?;
    let parts: Vec<&GgufFile> = std::iter::once(file).chain(&others).collect();
    settings.variant.check_model(&parts)
}

/// Makes a context of `model` with threads of its own.
pub fn context(model: &Arc<Model>, settings: &Settings, live: &Live, interruptible: bool) -> Result<Context> {
    let options = context_options(model, settings, interruptible);
    context_with(model, &options, settings, live, LOWER_CTX)
}

/// What to do where a context as the settings want it does not fit.
pub const LOWER_CTX: &str = "lower -c, or make the cache smaller with -ctk q8_0 -ctv q8_0";

/// The context that `settings` want of `model`.
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

/// The same with `options` that are not the settings'; `mend` is what to do where it does not fit into memory.
pub fn context_with(
    model: &Arc<Model>,
    options: &ContextOptions,
    settings: &Settings,
    live: &Live,
    mend: &'static str,
) -> Result<Context> {
    context_collecting(model, options, settings, live, mend, None)
}

/// The same; `collector` sees what goes into every matrix.
pub fn context_collecting(
    model: &Arc<Model>,
    options: &ContextOptions,
    settings: &Settings,
    live: &Live,
    mend: &'static str,
    collector: Option<Arc<Collector>>,
) -> Result<Context> {
    check_generates(model)?;
    check_memory(model, options, settings, live, mend)?;
    let made = Context::with(model, options, collector);
    let mut context =
        made.map_err(|error| explained(error, model, options, settings, live, Seats::default()))?;
    threads::attach(&mut context, &settings.for_model(model), live.host.as_ref())?;
    Ok(context)
}

/// Makes a context as the settings want it, of `sequences` sequences that share its cells, with room for `rows` rows of
/// logits in a batch.
pub fn shared_context(
    model: &Arc<Model>,
    settings: &Settings,
    live: &Live,
    sequences: u32,
    rows: u32,
) -> Result<Context> {
    // So that the end does not wait for a long step.
    let options = context_options(model, settings, true);
    context_of(model, &options, settings, live, LOWER_CTX, sequences, rows)
}

/// The same with `options` that are not the settings'; `mend` is what to do where it does not fit into memory.
pub fn context_of(
    model: &Arc<Model>,
    options: &ContextOptions,
    settings: &Settings,
    live: &Live,
    mend: &'static str,
    sequences: u32,
    rows: u32,
) -> Result<Context> {
    check_memory(model, options, settings, live, mend)?;
    let made = Context::shared_with_rows(model, options, sequences, rows);
    let seats = Seats { sequences, rows, ..Seats::default() };
    let mut context = made.map_err(|error| explained(error, model, options, settings, live, seats))?;
    threads::attach(&mut context, &settings.for_model(model), live.host.as_ref())?;
    Ok(context)
}

/// What failed to make a context, with the device that has no room for it: llama.cpp tells the size of one buffer alone.
fn explained(
    error: Error,
    model: &Model,
    options: &ContextOptions,
    settings: &Settings,
    live: &Live,
    seats: Seats,
) -> Error {
    let Error::Context { n_ctx, why } = error else { return error };
    // The context that failed, which need not be the settings'.
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
        let subject = Subject::new(&parts, &checked, settings, live, placed, seats).ok()?;
        let offload = model.plan().map_or_else(|| settings.offload(), |plan| plan.offload.clone());
        llama::fit::lack_beside_weights(&subject.needs(&offload).ok()?)
    };
    match lack() {
        Some(lack) => Error::Context { n_ctx, why: format!("{}; {lack}", why.trim_end()) },
        None => Error::Context { n_ctx, why },
    }
}

/// Refuses a model whose tokens look at what comes after them: it makes embeddings, and llama.cpp would have no logits.
pub fn check_generates(model: &Model) -> Result<()> {
    match is_causal(model) {
        true => Ok(()),
        false => Err(Error::NotGenerative {
            path: model.path().to_path_buf(),
            what: "makes embeddings and no text: ask `anneal serve` for them at /v1/embeddings",
        }),
    }
}

/// Whether the cache of a context fits into what the weights leave.
fn check_memory(
    model: &Model,
    options: &ContextOptions,
    settings: &Settings,
    live: &Live,
    mend: &'static str,
) -> Result<()> {
    let (placed, n_layer) = (model.placed(), model.n_layer());
    let weights = if is_pageable(settings) { 0 } else { model.size().saturating_sub(model.on_devices()) };
    // What was available before the weights took their part.
    let available = live.memory().map(|available| Bytes(available.0.saturating_sub(weights)));
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

/// Contexts of which the cache does fit into `available`, in words.
fn would_fit(model: &Model, options: &ContextOptions, available: Bytes) -> Option<String> {
    let tokens = |type_k: KvType, type_v: KvType| {
        let one = cache_size(model, &ContextOptions { n_ctx: CTX_STEP, type_k, type_v, ..*options })?;
        let steps = u32::try_from(available.0 / one.0.max(1)).unwrap_or(u32::MAX);
        Some(steps.saturating_mul(CTX_STEP).min(options.n_ctx)).filter(|tokens| *tokens > 0)
    };
    let as_is = tokens(options.type_k, options.type_v);
    let smaller = tokens(KvType::Q8_0, KvType::Q8_0).filter(|smaller| Some(*smaller) > as_is);
    match (as_is, smaller) {
        (None, None) => None,
        (Some(as_is), None) => Some(format!("-c {as_is} would fit")),
        (None, Some(smaller)) => Some(format!("-c {smaller} with q8_0 would fit")),
        (Some(as_is), Some(smaller)) => Some(format!("-c {as_is} would fit, -c {smaller} with q8_0")),
    }
}

/// Whether the kernel can drop the weights' pages and read them again: mapped, and not copied by repacking.
fn is_pageable(settings: &Settings) -> bool {
    settings.load_mode.value == LoadMode::Mmap && !settings.repack.value
}

/// Size of the context: the default is cut to what the model was trained for, a flag is not.
pub fn n_ctx(settings: &Settings, trained: u32) -> u32 {
    match (settings.n_ctx.value, settings.n_ctx.source) {
        (0, _) => trained,
        (n_ctx, Source::Default) if trained > 0 => n_ctx.min(trained),
        (n_ctx, _) => n_ctx,
    }
}

/// Bytes of the K and V caches. `None` for models that keep something else, or not as much in every layer.
pub fn cache_size(model: &Model, options: &ContextOptions) -> Option<Bytes> {
    if !model.has_plain_cache() {
        return None;
    }
    let architecture = model.metadata("general.architecture")?;
    let shape = CacheShape::new(|key| {
        let key = format!("{architecture}.{key}");
        match model.metadata(&key) {
            Some(text) => text.parse().map_or(Number::Other, Number::Is),
            // llama.cpp is silent about arrays (a number for each layer) as about what is not there: the file tells.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Requested;

    /// `bytes` with what stands at `key` given by `value`.
    fn replaced(bytes: &[u8], key: &str, len: usize, value: &[u8]) -> Vec<u8> {
        let at = bytes.windows(key.len()).position(|window| window == key.as_bytes()).expect("the key");
        let at = at + key.len();
        [&bytes[..at], value, &bytes[at + len..]].concat()
    }

    #[test]
    fn a_cache_is_estimated_only_where_all_layers_keep_as_much() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (plain, layered) = (folder.path().join("plain.gguf"), folder.path().join("layered.gguf"));
        let options = gguf::synth::Options::new(gguf::synth::Preset::Tiny);
        gguf::synth::write(&plain, &options).expect("the tiny model");

        // A number of KV heads for each of its four layers: 24 bytes more, and 8 in the name, so that the data
        // stays aligned.
        let kv_heads = GgufFile::open(&plain).ok().and_then(|file| file.u32("llama.attention.head_count_kv"));
        let mut array: Vec<u8> = [9u32, 5].iter().flat_map(|kind| kind.to_le_bytes()).collect();
        array.extend(4u64.to_le_bytes());
        array.extend(kv_heads.expect("a number").to_le_bytes().repeat(4));
        let name = "tiny with random weights";
        let longer = (name.len() as u64 + 8).to_le_bytes();
        let bytes = std::fs::read(&plain).expect("the model");
        let bytes = replaced(&bytes, "llama.attention.head_count_kv", 8, &array);
        let bytes = replaced(&bytes, "general.name\u{8}\0\0\0", 8, &longer);
        let bytes = replaced(&bytes, name, 0, b" layered");
        std::fs::write(&layered, bytes).expect("a file");

        let live = Live::default();
        let settings = Settings::resolve(&Requested::default(), &live).expect("valid settings");
        let options = ContextOptions {
            n_ctx: 512,
            n_batch: 512,
            n_ubatch: 512,
            type_k: KvType::F16,
            type_v: KvType::Q8_0,
            flash_attention: llama::options::FlashAttention::On,
            interruptible: false,
            kv_offload: true,
            op_offload: true,
        };
        let estimate = |path| cache_size(&open(path, &settings, &live).expect("the model loads"), &options);
        // 512 tokens in 4 layers of 2 KV heads with 64 values each.
        assert_eq!(estimate(&plain), Some(Bytes(512 * 4 * (128 * 2 + 128 / 32 * 34))));
        assert_eq!(estimate(&layered), None);
    }
}
