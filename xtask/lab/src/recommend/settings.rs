//! Run-time settings with their reasons.

use build_info::{Bytes, ThreadBudget};
use gguf::memory::CTX_STEP;
use serde::Serialize;

use super::fit::{Fit, FitVerdict};
use super::kv;
use super::model_facts::ModelFacts;
use super::preset::Preset;

/// Defaults of the engine. Except for the context, they equal llama.cpp's.
const N_CTX: u32 = 4096;
const N_BATCH: u32 = 2048;
const N_UBATCH: u32 = 512;

/// Value with its reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChosenValue<T> {
    /// Chosen value.
    pub value: T,
    /// Reason for the value.
    pub reason: String,
}

fn chosen<T>(value: T, reason: impl Into<String>) -> ChosenValue<T> {
    ChosenValue { value, reason: reason.into() }
}

/// Settings of `anneal run`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Runtime {
    /// Preset that the settings come from; `None` for the engine's own rules.
    pub preset: Option<String>,
    /// Context size in tokens, `-c`.
    pub n_ctx: ChosenValue<u32>,
    /// Maximum number of tokens in one call, `-b`.
    pub n_batch: ChosenValue<u32>,
    /// Maximum number of tokens in one graph, `--ubatch-size`.
    pub n_ubatch: ChosenValue<u32>,
    /// Number of threads for decode, `-t`.
    pub decode_threads: ChosenValue<u32>,
    /// Number of threads for prefill, `--threads-batch`.
    pub prefill_threads: ChosenValue<u32>,
    /// True if the weights are memory-mapped, `--load-mode`.
    pub mmap: ChosenValue<bool>,
    /// True if the weights are locked in memory, `--load-mode`.
    pub mlock: ChosenValue<bool>,
    /// True if weights are repacked for the CPU; otherwise `--no-repack`.
    pub repack: ChosenValue<bool>,
    /// Type of the KV cache, `--cache-type-k` and `--cache-type-v`.
    pub kv_type: ChosenValue<&'static str>,
    /// Flash attention, `--flash-attn`.
    pub flash_attention: ChosenValue<&'static str>,
}

/// Returns the maximum number of tokens in one graph, which the memory check needs.
pub fn n_ubatch(preset: Option<&Preset>) -> u32 {
    preset.and_then(|preset| preset.settings.n_ubatch).unwrap_or(N_UBATCH)
}

/// Returns the preferred context, limited by the training context length: the user's, else the preset's, else the
/// engine's.
pub fn wished_context(model: &ModelFacts, preset: Option<&Preset>, asked: Option<u32>) -> ChosenValue<u32> {
    let round = |tokens: u32| tokens.clamp(1, u32::MAX - CTX_STEP).next_multiple_of(CTX_STEP);
    let rounded = |tokens: u32, reason: &str| match round(tokens) {
        same if same == tokens => chosen(tokens, reason),
        more => {
            let how = format!("{reason}: {tokens}, rounded up to a multiple of {CTX_STEP}");
            chosen(more, how)
        }
    };
    if let Some(asked) = asked {
        return rounded(asked, "requested");
    }
    let (wish, reason) = match preset.and_then(|preset| preset.settings.n_ctx) {
        Some(n_ctx) => (n_ctx, "from the preset"),
        None => (N_CTX, "the engine's default: enough for a conversation"),
    };
    let trained = model.trained_context.and_then(|trained| u32::try_from(trained).ok()).unwrap_or(u32::MAX);
    if trained < wish {
        rounded(trained, "the context that the model was trained for")
    } else {
        chosen(wish, reason)
    }
}

impl Runtime {
    /// Chooses the settings for a model with the memory check `fit`.
    pub fn choose(
        model: &ModelFacts,
        preset: Option<&Preset>,
        budget: &ThreadBudget,
        n_ctx: ChosenValue<u32>,
        fit: &Fit,
    ) -> Self {
        let from = preset.map(|preset| preset.settings.clone()).unwrap_or_default();
        let batch = |value: Option<u32>, default: u32| match value {
            Some(value) => chosen(value, "from the preset"),
            None => chosen(default, "llama.cpp's default"),
        };
        let mmap = match fit.verdict {
            FitVerdict::Fits => "the weights are mapped from the file, so the next start is fast",
            _ => "the weights do not all fit: mapped pages can be dropped and read again",
        };
        let mlock = match fit.verdict {
            FitVerdict::Fits => "the weights stay in memory without being locked",
            _ => "locked weights would leave too little memory, or could not be locked at all",
        };
        Self {
            preset: preset.map(|preset| preset.name.clone()),
            n_ctx,
            n_batch: batch(from.n_batch, N_BATCH),
            n_ubatch: batch(from.n_ubatch, N_UBATCH),
            decode_threads: decode_threads(from.decode_share, budget),
            prefill_threads: chosen(
                budget.prefill,
                format!("all usable cores ({}): prefill is compute-bound", budget.bound_by),
            ),
            mmap: chosen(from.mmap.unwrap_or(true) || fit.verdict > FitVerdict::Fits, mmap),
            mlock: chosen(from.mlock.unwrap_or(false) && fit.verdict == FitVerdict::Fits, mlock),
            repack: repack(fit),
            kv_type: kv_type(model, fit),
            flash_attention: chosen("auto", "on if the device supports it; required by a quantised V cache"),
        }
    }

    /// Returns the explicit value of `--load-mode` for `auto`: `mmap`, `mmap_mlock` or `none`.
    pub fn load_mode(&self) -> &'static str {
        match (self.mmap.value, self.mlock.value) {
            (true, true) => "mmap_mlock",
            (true, false) => "mmap",
            (false, _) => "none",
        }
    }

    /// Returns the command that runs the model in `path` with these settings and the build of `profile`. If the whole
    /// model is on GPUs, `on_gpu` is its context, and the command omits the CPU settings. The profile's default
    /// decides which layers are on the GPU.
    pub fn command(&self, path: &str, profile: &str, on_gpu: Option<u32>) -> String {
        // Only a NUL byte cannot be quoted, and no path contains one.
        let path = shlex::try_quote(path).unwrap_or(path.into());
        let anneal = format!("target/anneal/{profile}/bin/anneal");
        let mut flags: Vec<String> = [&anneal, "run", "-m", &path].map(String::from).to_vec();
        let mut put = |flag: &str, value: String| flags.extend([flag.to_string(), value]);
        put("-c", on_gpu.unwrap_or(self.n_ctx.value).to_string());
        put("-b", self.n_batch.value.to_string());
        put("--ubatch-size", self.n_ubatch.value.to_string());
        if on_gpu.is_some() {
            return flags.join(" ");
        }
        put("-t", self.decode_threads.value.to_string());
        put("--threads-batch", self.prefill_threads.value.to_string());
        put("--load-mode", self.load_mode().to_string());
        if !self.repack.value {
            flags.push("--no-repack".to_string());
        }
        flags.join(" ")
    }
}

fn decode_threads(share: Option<f64>, budget: &ThreadBudget) -> ChosenValue<u32> {
    match share {
        // `as` saturates, and a share is above 0 and at most 1.
        Some(share) => {
            let threads = ((f64::from(budget.cores) * share).round() as u32).clamp(1, budget.cores.max(1));
            let why = if threads == budget.cores {
                "from the preset: all cores"
            } else {
                "from the preset: memory limits decode, and these cores use its full bandwidth"
            };
            chosen(threads, why)
        }
        None => {
            let all = if budget.decode == budget.cores { "all" } else { "three quarters" };
            chosen(budget.decode, format!("the engine's policy: {all} of {} cores", budget.cores))
        }
    }
}

fn repack(fit: &Fit) -> ChosenValue<bool> {
    let need = &fit.need;
    match fit.verdict {
        _ if need.repacked == Bytes(0) => {
            chosen(true, "the engine's default; llama.cpp repacks none of these types on this CPU")
        }
        FitVerdict::Fits => chosen(
            true,
            format!(
                "{} are repacked; decode is usually faster and prefill often slower: measure with `anneal bench`",
                need.repacked
            ),
        ),
        _ => chosen(
            false,
            format!(
                "{} of repacked weights would not fit, and cannot be read again from the file",
                need.repacked
            ),
        ),
    }
}

fn kv_type(model: &ModelFacts, fit: &Fit) -> ChosenValue<&'static str> {
    let (f16, q8_0) = (fit.largest_context, fit.largest_context_q8_0);
    let reason = match q8_0 {
        Some(longer) if q8_0 > f16 => {
            format!(
                "precise; q8_0 would allow {longer} tokens, with a small loss: `--cache-type-k q8_0 \
                 --cache-type-v q8_0`"
            )
        }
        _ if model.kv.per_token(kv::Q8_0).is_none() => {
            "a row is not a whole number of q8_0 blocks".to_string()
        }
        _ => "precise; a smaller type has no advantage".to_string(),
    };
    chosen("f16", reason)
}
