//! What to build and how to run it: a pure function of a model's header, a host and its measured limits.

pub mod fit;
pub mod kv;
pub mod mixture;
pub mod model_facts;
pub mod offload;
pub mod preset;
mod print;
pub mod quant;
pub mod settings;
pub mod shapes;
pub mod speed;
pub mod subject;
#[cfg(test)]
mod tests;
pub mod variant;

use build_info::threads::{self, Policy};
use build_info::{Host, Roofline};
use gguf::memory::CTX_STEP;
use serde::Serialize;

use fit::{Fit, FitVerdict};
use model_facts::ModelFacts;
use offload::Offload;
use preset::Preset;
use quant::Advice;
use settings::Runtime;
use speed::Speed;
use variant::BuildAdvice;

/// What a recommendation is made from.
pub struct Question<'a> {
    /// The model.
    pub model: &'a ModelFacts,
    /// Its file, as a command names it.
    pub path: &'a str,
    /// The machine.
    pub host: &'a Host,
    /// Its measured limits, where they are known.
    pub roofline: Option<&'a Roofline>,
    /// Presets, of which the first that matches is taken.
    pub presets: &'a [Preset],
    /// Build profiles that are there.
    pub profiles: &'a [String],
    /// Tokens of the context, where the user wants a number of them.
    pub n_ctx: Option<u32>,
}

/// The machine, as far as it mattered.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostSummary {
    /// Its CPU.
    pub cpu: String,
    /// Cores that the process may use.
    pub cores: u32,
    /// What bounds them.
    pub bound_by: String,
}

/// What to build and how to run it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recommendation {
    /// The model.
    pub model: ModelFacts,
    /// The machine.
    pub host: HostSummary,
    /// Whether the model fits.
    pub fit: Fit,
    /// Which build.
    pub build: BuildAdvice,
    /// How to run it.
    pub runtime: Runtime,
    /// The command for that, where it can run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// What speed there can be.
    pub speed: Speed,
    /// What goes to the GPU, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offload: Option<Offload>,
    /// Which quantisation.
    pub quantisation: Advice,
    /// What the reader should know.
    pub notes: Vec<String>,
}

/// Answers `question`.
pub fn recommend(question: &Question<'_>) -> Recommendation {
    let Question { model, host, roofline, presets, profiles, n_ctx, .. } = *question;
    let budget = threads::budget(host, Policy::default());
    let memory = fit::Budget::of(host).total;
    let preset = presets.iter().find(|preset| preset.matches(budget.cores, memory));
    let n_ubatch = settings::n_ubatch(preset);
    let mut context = settings::wished_context(model, preset, n_ctx);
    let wished = context.value;
    let mut fit = Fit::of(model, host, wished, n_ubatch);
    // A shorter context that keeps the weights in memory is better than a longer one that does not, unless it was
    // asked for.
    if let Some(largest) = fit.largest_context.filter(|largest| *largest < context.value)
        && n_ctx.is_none()
    {
        context.value = largest;
        context.reason = "the longest with which the weights stay in memory".to_string();
        fit = Fit::of(model, host, largest, n_ubatch);
    }
    let runtime = Runtime::choose(model, preset, &budget, context, &fit);
    let threads = (runtime.decode_threads.value, runtime.prefill_threads.value);
    let n_ctx = runtime.n_ctx.value;
    // A context that is too long for main memory may be none for the GPU's.
    let whole = Offload::of(model, host, wished, n_ubatch).filter(Offload::is_whole);
    let offload = whole.or_else(|| Offload::of(model, host, n_ctx, n_ubatch));
    let quantisation =
        quant::advise(model, host, roofline, threads.0, &fit.need, n_ubatch, fit.memory.usable);
    let build = variant::choose(model, host, offload.as_ref(), profiles);
    let on_gpu = build.planned.is_none() && offload.as_ref().is_some_and(Offload::is_whole);
    let runs = on_gpu || fit.verdict < FitVerdict::DoesNotFit;
    Recommendation {
        command: runs.then(|| runtime.command(question.path, build.profile, on_gpu.then_some(wished))),
        build,
        speed: Speed::of(model, roofline, threads, n_ctx, fit.verdict),
        notes: notes(question, &fit, &runtime, offload.as_ref()),
        host: HostSummary { cpu: host.cpu.name.clone(), cores: budget.cores, bound_by: budget.bound_by },
        model: model.clone(),
        fit,
        runtime,
        offload,
        quantisation,
    }
}

fn notes(question: &Question<'_>, fit: &Fit, runtime: &Runtime, offload: Option<&Offload>) -> Vec<String> {
    let (model, host) = (question.model, question.host);
    let mut notes = model.notes.clone();
    if fit.verdict > FitVerdict::FitsWithoutRepack && fit.fits_when_idle {
        notes.push("it would fit if nothing else ran on this machine: close what takes memory".to_string());
    }
    if fit.verdict == FitVerdict::DoesNotFit && fit.need.buffers() > fit.memory.usable {
        let what = "the KV cache and the buffers alone do not fit";
        notes.push(match fit.largest_context {
            Some(largest) => format!(
                "{what}, because the context is of {} tokens: {largest} are the most that fit; give -c {largest} or less",
                fit.need.n_ctx
            ),
            None => format!("{what}: a shorter context (-c) needs less"),
        });
    }
    let n_ctx = u64::from(runtime.n_ctx.value);
    let step = u64::from(CTX_STEP);
    if let Some(trained) =
        model.trained_context.filter(|trained| n_ctx > trained.div_ceil(step).saturating_mul(step))
    {
        notes.push(format!(
            "a context of {n_ctx} tokens is longer than the {trained} that it was trained for: its text gets worse"
        ));
    }
    if let Some(offload) = offload {
        if offload.gpus > 1 {
            notes.push(format!(
                "the {} GPUs share the layers, as the engine does by itself (--split-mode layer)",
                offload.gpus
            ));
        }
        match host.gpus.len() as u64 - offload.gpus {
            0 => {}
            1 => notes.push("one more GPU is left out: it has no room for a layer".to_string()),
            more => notes.push(format!("{more} more GPUs are left out: they have no room for a layer")),
        }
        notes.push(
            "fit, threads and speeds are those of a run on the CPU; how much of the GPU's memory is free was not looked \
             at, and its speed is not known"
                .to_string(),
        );
    }
    if let Some(roofline) = question.roofline
        && (roofline.cpu_quota != host.limits.cpu_quota || roofline.affinity != host.limits.affinity)
    {
        notes.push(
            "the machine's limits were measured with other CPUs or another quota than the process has now: measure \
             again"
                .to_string(),
        );
    }
    notes
}
