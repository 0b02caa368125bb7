//! Run-time settings, each with its reason.

use build_info::{Bytes, ThreadBudget};
use gguf::memory::CTX_STEP;
use serde::Serialize;

use super::fit::{Fit, FitVerdict};
use super::kv;
use super::model_facts::ModelFacts;
use super::preset::Preset;

/// The engine's own defaults, which are llama.cpp's but for the context.
const N_CTX: u32 = 4096;
const N_BATCH: u32 = 2048;
const N_UBATCH: u32 = 512;

/// A value and why it is this.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChosenValue<T> {
    /// The value.
    pub value: T,
    /// Why.
    pub reason: String,
}

fn chosen<T>(value: T, reason: impl Into<String>) -> ChosenValue<T> {
    ChosenValue { value, reason: reason.into() }
}

/// Settings of `anneal run`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Runtime {
    /// The preset that they come from; the engine's own rules where there is none.
    pub preset: Option<String>,
    /// Tokens of the context, `-c`.
    pub n_ctx: ChosenValue<u32>,
    /// Tokens in one call, `-b`.
    pub n_batch: ChosenValue<u32>,
    /// Tokens in one graph, `--ubatch-size`.
    pub n_ubatch: ChosenValue<u32>,
    /// Threads that generate, `-t`.
    pub decode_threads: ChosenValue<u32>,
    /// Threads that read the prompt, `--threads-batch`.
    pub prefill_threads: ChosenValue<u32>,
    /// Whether the weights are mapped, `--load-mode`.
    pub mmap: ChosenValue<bool>,
    /// Whether they are pinned, `--load-mode`.
    pub mlock: ChosenValue<bool>,
    /// Whether weights are rearranged for the CPU, else `--no-repack`.
    pub repack: ChosenValue<bool>,
    /// Type of the KV cache, `--cache-type-k` and `--cache-type-v`.
    pub kv_type: ChosenValue<&'static str>,
    /// Flash attention, `--flash-attn`.
    pub flash_attention: ChosenValue<&'static str>,
}

/// Tokens of a graph, which the fit must know first.
pub fn n_ubatch(preset: Option<&Preset>) -> u32 {
    preset.and_then(|preset| preset.settings.n_ubatch).unwrap_or(N_UBATCH)
}

/// The context to try first: what is asked for, the preset's or the engine's, no longer than the model was trained for.
pub fn wished_context(model: &ModelFacts, preset: Option<&Preset>, asked: Option<u32>) -> ChosenValue<u32> {
    let round = |tokens: u32| tokens.clamp(1, u32::MAX - CTX_STEP).next_multiple_of(CTX_STEP);
    let rounded = |tokens: u32, reason: &str| match round(tokens) {
        same if same == tokens => chosen(tokens, reason),
        more => {
            let how = format!("{reason}: {tokens}, and llama.cpp makes contexts in steps of {CTX_STEP}");
            chosen(more, how)
        }
    };
    if let Some(asked) = asked {
        return rounded(asked, "asked for");
    }
    let (wish, reason) = match preset.and_then(|preset| preset.settings.n_ctx) {
        Some(n_ctx) => (n_ctx, "the preset's"),
        None => (N_CTX, "the engine's default: room for a conversation"),
    };
    let trained = model.trained_context.and_then(|trained| u32::try_from(trained).ok()).unwrap_or(u32::MAX);
    if trained < wish { rounded(trained, "what the model was trained for") } else { chosen(wish, reason) }
}

impl Runtime {
    /// For a model that fits like this.
    pub fn choose(
        model: &ModelFacts,
        preset: Option<&Preset>,
        budget: &ThreadBudget,
        n_ctx: ChosenValue<u32>,
        fit: &Fit,
    ) -> Self {
        let from = preset.map(|preset| preset.settings.clone()).unwrap_or_default();
        let batch = |value: Option<u32>, default: u32| match value {
            Some(value) => chosen(value, "the preset's"),
            None => chosen(default, "llama.cpp's own"),
        };
        let mmap = match fit.verdict {
            FitVerdict::Fits | FitVerdict::FitsWithoutRepack => {
                "the weights are the file's own pages: started again at once"
            }
            _ => "the weights do not fit at once: what is mapped can be dropped and read again",
        };
        let mlock = match fit.verdict {
            FitVerdict::Fits => "the weights stay in memory without it",
            _ => "pinned weights would leave no memory to the rest, or could not be pinned at all",
        };
        Self {
            preset: preset.map(|preset| preset.name.clone()),
            n_ctx,
            n_batch: batch(from.n_batch, N_BATCH),
            n_ubatch: batch(from.n_ubatch, N_UBATCH),
            decode_threads: decode_threads(from.decode_share, budget),
            prefill_threads: chosen(
                budget.prefill,
                format!("all usable cores ({}): prefill is bound by arithmetic", budget.bound_by),
            ),
            mmap: chosen(from.mmap.unwrap_or(true) || fit.verdict > FitVerdict::FitsWithoutRepack, mmap),
            mlock: chosen(from.mlock.unwrap_or(false) && fit.verdict == FitVerdict::Fits, mlock),
            repack: repack(fit),
            kv_type: kv_type(model, fit),
            flash_attention: chosen("auto", "on where the device has it; a quantised V cache needs it"),
        }
    }

    /// `auto`'s explicit spelling: `mmap`, `mmap_mlock` or `none`.
    pub fn load_mode(&self) -> &'static str {
        match (self.mmap.value, self.mlock.value) {
            (true, true) => "mmap_mlock",
            (true, false) => "mmap",
            (false, _) => "none",
        }
    }

    /// The command that runs the model in `path` so, with the build of `profile`. Where the model is wholly on a GPU, with a context
    /// of `on_gpu` tokens, what it says of the CPU is left out; which layers go there is the profile's default.
    pub fn command(&self, path: &str, profile: &str, on_gpu: Option<u32>) -> String {
        // Only a zero byte cannot be quoted, and no path has one.
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
        // `as` saturates; a share is above 0 and at most 1.
        Some(share) => {
            let threads = ((f64::from(budget.cores) * share).round() as u32).clamp(1, budget.cores.max(1));
            let why = if threads == budget.cores {
                "the preset's: all cores"
            } else {
                "the preset's: decode waits for memory, and a part of the cores fills it"
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
            chosen(true, "the engine's default; llama.cpp rearranges none of these types on this CPU")
        }
        FitVerdict::Fits => chosen(
            true,
            format!(
                "{} are copied; decode is mostly faster, prefill often slower: `anneal bench` tells",
                need.repacked
            ),
        ),
        _ => chosen(
            false,
            format!("the rearranged copy would take {} more, and cannot be dropped", need.repacked),
        ),
    }
}

fn kv_type(model: &ModelFacts, fit: &Fit) -> ChosenValue<&'static str> {
    let (f16, q8_0) = (fit.largest_context, fit.largest_context_q8_0);
    let reason = match q8_0 {
        Some(longer) if q8_0 > f16 => {
            format!(
                "exact; q8_0 would allow {longer} tokens, at a small loss: `--cache-type-k q8_0 --cache-type-v q8_0`"
            )
        }
        _ if model.kv.per_token(kv::Q8_0).is_none() => "rows are no whole blocks of q8_0".to_string(),
        _ => "exact; nothing is gained by a smaller one".to_string(),
    };
    chosen("f16", reason)
}
