//! Recommendation of a build and run-time settings: a pure function of a model's header, a host and its measured
//! limits.

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

/// Inputs of a recommendation.
pub struct Question<'a> {
    /// Facts about the model.
    pub model: &'a ModelFacts,
    /// Path of the model file for commands.
    pub path: &'a str,
    /// Machine to recommend for.
    pub host: &'a Host,
    /// Measured limits of the machine, if known.
    pub roofline: Option<&'a Roofline>,
    /// Presets; the first preset that matches is used.
    pub presets: &'a [Preset],
    /// Names of the build profiles that exist.
    pub profiles: &'a [String],
    /// Context size in tokens, if the user asked for one.
    pub n_ctx: Option<u32>,
}

/// Description of the machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostSummary {
    /// Name of the CPU.
    pub cpu: String,
    /// Number of cores that the process may use.
    pub cores: u32,
    /// Limit that determines the number of cores.
    pub bound_by: String,
}

/// Recommended build and settings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recommendation {
    /// Facts about the model.
    pub model: ModelFacts,
    /// Description of the machine.
    pub host: HostSummary,
    /// Result of the memory check.
    pub fit: Fit,
    /// Recommended build.
    pub build: BuildAdvice,
    /// Recommended run-time settings.
    pub runtime: Runtime,
    /// Command that runs the model; `None` if it cannot run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Upper bounds of the speed.
    pub speed: Speed,
    /// Layers to put on the GPUs; `None` if there is no GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offload: Option<Offload>,
    /// Recommended quantisation.
    pub quantisation: Advice,
    /// Remarks on the recommendation.
    pub notes: Vec<String>,
}

/// Returns the recommendation for `question`.
pub fn recommend(question: &Question<'_>) -> Recommendation {
    let Question { model, host, roofline, presets, profiles, n_ctx, .. } = *question;
    let budget = threads::budget(host, Policy::default());
    let memory = fit::Budget::of(host).total;
    let preset = presets.iter().find(|preset| preset.matches(budget.cores, memory));
    let n_ubatch = settings::n_ubatch(preset);
    let mut context = settings::wished_context(model, preset, n_ctx);
    let wished = context.value;
    let mut fit = Fit::of(model, host, wished, n_ubatch);
    // Unless the user asked for a context size, prefer a shorter context that keeps the weights in memory.
    if let Some(largest) = fit.largest_context.filter(|largest| *largest < context.value)
        && n_ctx.is_none()
    {
        context.value = largest;
        context.reason = "the longest context with which the weights stay in memory".to_string();
        fit = Fit::of(model, host, largest, n_ubatch);
    }
    let runtime = Runtime::choose(model, preset, &budget, context, &fit);
    let threads = (runtime.decode_threads.value, runtime.prefill_threads.value);
    let n_ctx = runtime.n_ctx.value;
    // A context that is too long for main memory may still fit into the GPUs' memory.
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
    if fit.verdict > FitVerdict::Fits && fit.fits_when_idle {
        notes.push(
            "the model would fit if nothing else ran on this machine: close programs that use a lot of memory"
                .to_string(),
        );
    }
    if fit.verdict == FitVerdict::DoesNotFit && fit.need.buffers() > fit.memory.usable {
        let what = "the KV cache and the buffers alone do not fit";
        notes.push(match fit.largest_context {
            Some(largest) => format!(
                "{what}, because the context has {} tokens; at most {largest} fit: use -c {largest} or less",
                fit.need.n_ctx
            ),
            None => format!("{what}: use a shorter context (-c)"),
        });
    }
    let n_ctx = u64::from(runtime.n_ctx.value);
    let step = u64::from(CTX_STEP);
    if let Some(trained) =
        model.trained_context.filter(|trained| n_ctx > trained.div_ceil(step).saturating_mul(step))
    {
        notes.push(format!(
            "the context has {n_ctx} tokens, but the model was trained for {trained}: expect text of lower \
             quality"
        ));
    }
    if let Some(offload) = offload {
        if offload.gpus > 1 {
            notes.push(format!(
                "the {} GPUs share the layers, which is the engine's default (--split-mode layer)",
                offload.gpus
            ));
        }
        match host.gpus.len() as u64 - offload.gpus {
            0 => {}
            1 => notes.push("one more GPU is not used, because no layer fits into its memory".to_string()),
            more => {
                notes.push(format!("{more} more GPUs are not used, because no layer fits into their memory"))
            }
        }
        notes.push(
            "memory fit, threads and speeds apply to a run on the CPU; the GPU's speed and free memory are \
             unknown"
                .to_string(),
        );
    }
    if let Some(roofline) = question.roofline
        && (roofline.cpu_quota != host.limits.cpu_quota || roofline.affinity != host.limits.affinity)
    {
        notes.push(
            "the machine's limits were measured with a different set of CPUs or a different CPU quota: \
             measure them again"
                .to_string(),
        );
    }
    notes
}
