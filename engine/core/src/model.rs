//! Loads models. Checks before the load report more specific errors than llama.cpp does.

use std::path::Path;
use std::sync::{Arc, Mutex};

use build_info::Bytes;
use gguf::check::Checked;
use gguf::{GgufFile, Scalar, Value};
use llama::error::{Error, Result};
use llama::fit::LayerPlan;
use llama::offload::{self, Placed};
use llama::{Model, ModelOptions, notice};

pub use crate::context::{context, context_collecting, context_of, context_with, shared_context};
pub use crate::context_options::{cache_size, check_generates, context_options, n_ctx};
use crate::file_system::PageLoss;
use crate::fit::{EstimatedModel, Seats};
use crate::gpu;
pub use crate::model_files::{adapters_size, read_files};
use crate::place::place_for;
use crate::runtime_host::RuntimeHost;
use crate::settings::{Settings, Source};

/// Loads the model at `path`.
///
/// The file is read and checked first, because llama.cpp's own parser stops with an assertion on some damaged files. If
/// the file passes the check and is unknown, a child process then loads it: see [`crate::trial`]. A model that does not
/// fit into memory is refused unless its weights are mapped and not repacked. When memory runs out, the kernel can then
/// drop pages of the weights instead of killing the process.
///
/// If the settings require a GPU, a GPU must be available: see [`gpu`].
///
/// If the number of layers on devices is not set, as many layers are placed on devices as fit: see [`fit`].
///
/// # Errors
/// If a check, the trial or the load fails.
pub fn open(path: &Path, settings: &Settings, runtime_host: &RuntimeHost) -> Result<Arc<Model>> {
    open_for(path, settings, runtime_host, Seats::default())
}

/// Reads and checks the header of the model at `path`, and runs a trial if the model is unknown. [`open`] makes the
/// same checks before llama.cpp loads the model.
///
/// # Errors
/// If a check or the trial fails.
pub fn check_file(path: &Path, settings: &Settings) -> Result<()> {
    let (file, others) = read_files(path)?;
    let parts: Vec<&GgufFile> = std::iter::once(&file).chain(&others).collect();
    crate::trial::of_load(&parts, settings).map(drop)
}

/// Loads like [`open`], but reserves memory for the contexts `seats` instead of one context with one sequence.
///
/// # Errors
/// Errors of [`open`].
pub fn open_for(
    path: &Path,
    settings: &Settings,
    runtime_host: &RuntimeHost,
    seats: Seats,
) -> Result<Arc<Model>> {
    let (file, others) = read_files(path)?;
    let settings = &settings.for_file(path);
    if settings.load_mode.source == Source::FileSystem {
        note_reading(path);
    }
    if !settings.tiled.value && settings.tiled.source != Source::Environment {
        llama::turn_off_tiled();
    }
    llama::ask_huge_pages(settings.huge_pages.value);
    // The devices are chosen before the size is checked, because layers on devices need not fit into the host's
    // memory.
    let placed = match place_for(settings) {
        // The reason why no device is available is more useful than an error about an option that needs a device.
        Err(why @ Error::Usage(_)) => gpu::require_device(path, settings, runtime_host).and(Err(why))?,
        placed => placed?,
    };
    // The check precedes the load, which may take minutes.
    gpu::require_device(path, settings, runtime_host)?;
    let parts: Vec<&GgufFile> = std::iter::once(&file).chain(&others).collect();
    gpu::warn_of_cublas(&parts, &placed, settings, runtime_host);
    // Planning for devices makes llama.cpp read the header, so the file is checked first.
    let mut checked = None;
    if !placed.takers.is_empty() {
        checked = Some(crate::trial::of_load(&parts, settings)?);
    }
    let plan =
        checked.as_ref().and_then(|checked| plan(&parts, checked, settings, runtime_host, &placed, seats));
    let (placed, options) = match &plan {
        Some(plan) => {
            gpu::require_room(path, plan, settings, runtime_host)?;
            let options = ModelOptions { offload: plan.offload.clone(), ..settings.model_options() };
            (offload::place(&plan.offload)?, options)
        }
        None => (placed, settings.model_options()),
    };
    let weights = offload::local_weights(&parts, &placed);
    let size = Bytes(weights.0.saturating_add(adapters_size(&file, settings)?.0));
    if file.get("general.type") == Some(&Value::Scalar(Scalar::String("adapter".to_string()))) {
        let what =
            "is a LoRA adapter, not a model\nhint: pass its base model with -m, and the adapter with --lora";
        return Err(Error::NotGenerative { path: path.to_path_buf(), what });
    }
    let pageable = settings.weights_are_pageable();
    if let Some(available) = runtime_host.memory().filter(|available| size > *available && !pageable) {
        return Err(Error::TooLarge {
            path: path.to_path_buf(),
            what: "weights",
            needed: size,
            available,
            mend: "use a smaller quantisation, or use --load-mode mmap --no-repack, which is slow because it reads \
                   weights from disk during the run"
                .to_string(),
        });
    }
    let checked = match checked {
        Some(checked) => checked,
        // The trial runs after all faster checks.
        None => crate::trial::of_load(&parts, settings)?,
    };
    let loaded = Model::load_as(&checked, &options, &settings.variant);
    let model = loaded.map_err(|error| match error {
        Error::Load { path, why } if placed.is_offloaded() => {
            let subject = EstimatedModel::new(&parts, &checked, settings, runtime_host, &placed, seats);
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
        let what = "has an encoder, but this program runs only decoder-only models";
        return Err(Error::NotGenerative { path: path.to_path_buf(), what });
    }
    gpu::require(&model, settings, runtime_host)?;
    Ok(model)
}

/// Finds the number of layers that fit on devices, if the settings leave the number open. Prints a note if not all
/// layers fit, because decode then waits for the layers on the host at every token. If llama.cpp cannot estimate the
/// memory, loading continues as if all layers fit; the load then reports any problem with the model.
fn plan(
    parts: &[&GgufFile],
    checked: &Checked,
    settings: &Settings,
    runtime_host: &RuntimeHost,
    placed: &Placed,
    seats: Seats,
) -> Option<LayerPlan> {
    let found = EstimatedModel::new(parts, checked, settings, runtime_host, placed, seats)
        .and_then(|subject| subject.plan());
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
                "all layers are placed on devices, because the number that fits cannot be estimated: {why}"
            );
            None
        }
    }
}

/// Prints the reason why the model at `path` is read instead of mapped.
fn note_reading(path: &Path) {
    if let Some(loss) = PageLoss::of(path) {
        let name = path.display();
        notice::note(&format!(
            "{name} is on {loss}, where a mapped file can lose pages while it is in use: the weights are read into \
             memory instead (--load-mode none)"
        ));
    }
}

/// Prints the placement in `plan` for the model at `path`, once per model.
fn note(path: &Path, plan: &LayerPlan) {
    static LAST: Mutex<String> = Mutex::new(String::new());
    let mut last = LAST.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let words = plan.to_string();
    let this = format!("{}: {words}", path.display());
    if *last != this {
        notice::note(&words);
        *last = this;
    }
}

#[cfg(test)]
mod tests {
    use llama::options::{ContextOptions, KvType};

    use super::*;
    use crate::settings::Requested;

    /// Returns `bytes` with the value of `key`, which has `len` bytes, replaced by `value`.
    fn replaced(bytes: &[u8], key: &str, len: usize, value: &[u8]) -> Vec<u8> {
        let at = bytes.windows(key.len()).position(|window| window == key.as_bytes()).expect("the key");
        let at = at + key.len();
        [&bytes[..at], value, &bytes[at + len..]].concat()
    }

    #[test]
    fn a_cache_is_estimated_only_where_all_layers_keep_as_much() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (plain, layered) = (folder.path().join("plain.gguf"), folder.path().join("layered.gguf"));
        let options = gguf::synth::SynthOptions::new(gguf::synth::Preset::Tiny);
        gguf::synth::write(&plain, &options).expect("the tiny model");

        // The new value is one number of KV heads for each of the four layers. The array needs 24 more bytes, and the
        // name 8 more, so that the data stays aligned.
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

        let runtime_host = RuntimeHost::default();
        let settings = Settings::resolve(&Requested::default(), &runtime_host).expect("valid settings");
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
        let estimate =
            |path| cache_size(&open(path, &settings, &runtime_host).expect("the model loads"), &options);
        // 512 tokens in 4 layers of 2 KV heads with 64 values each.
        assert_eq!(estimate(&plain), Some(Bytes(512 * 4 * (128 * 2 + 128 / 32 * 34))));
        assert_eq!(estimate(&layered), None);
    }
}
