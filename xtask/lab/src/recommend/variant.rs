//! Choice of a build for a model and a machine, and the table in docs/src/tune/recommend.md.

use build_info::Host;
use serde::Serialize;

use super::model_facts::ModelFacts;
use super::offload::Offload;

/// Row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct VariantRow {
    /// Name of the profile in profiles/build.
    pub profile: &'static str,
    /// Models and machines that the variant is for.
    pub models: &'static str,
    /// Processor that does the main part of the work.
    pub runs_on: &'static str,
    /// Reason for choosing the variant, and its disadvantages.
    pub why: &'static str,
}

/// All variants, starting with the variants for the CPU.
pub const VARIANTS: &[VariantRow] = &[
    VariantRow {
        profile: "native",
        models: "every model, on the machine that builds it",
        runs_on: "CPU",
        why: "all instruction sets of this CPU; nothing measured so far was faster",
    },
    VariantRow {
        profile: "portable",
        models: "every model, for other x86-64-v3 machines",
        runs_on: "CPU",
        why: "one program for all; slower on CPUs with more than AVX2",
    },
    VariantRow {
        profile: "native-lto",
        models: "every model",
        runs_on: "CPU",
        why: "no difference from `native` was measured: use it only if `bench compare` shows one on this \
              machine",
    },
    VariantRow {
        profile: "native-blas",
        models: "F16, BF16 and F32, prompts of hundreds of tokens",
        runs_on: "CPU",
        why: "no difference from `native` was measured: use it only if it is faster with `bench compare`",
    },
    VariantRow {
        profile: "cuda-dense",
        models: "dense, quantised, wholly in the GPU's memory",
        runs_on: "GPU",
        why: "kernels that multiply quantised weights directly; a good first choice",
    },
    VariantRow {
        profile: "cuda-cublas-dense",
        models: "dense, F16, BF16 or F32, wholly in the GPU's memory",
        runs_on: "GPU",
        why: "cuBLAS for unquantised weights, as in cuda-dense, and also for prefill of quantised ones",
    },
    VariantRow {
        profile: "cuda-mmq-moe",
        models: "mixture of experts, wholly in the GPU's memory",
        runs_on: "GPU",
        why: "quantised kernels for all products; differs from cuda-dense only on Volta",
    },
    VariantRow {
        profile: "cuda-hybrid",
        models: "half of the layers or more in the GPU's memory",
        runs_on: "GPU, rest CPU",
        why: "the CPU's layers limit the speed, so as many layers as possible go to the GPU",
    },
    VariantRow {
        profile: "cpu-cuda-hybrid",
        models: "less than half of the layers in the GPU's memory, or experts outside it",
        runs_on: "CPU, rest GPU",
        why: "attention and prefill on the GPU, most weights in main memory",
    },
    VariantRow {
        profile: "cpu-hybrid",
        models: "a GPU too small for any layer",
        runs_on: "CPU",
        why: "weights and decode on the CPU; the GPU only helps with long prompts",
    },
];

/// Recommended build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BuildAdvice {
    /// Name of an existing profile.
    pub profile: &'static str,
    /// Command that builds the profile.
    pub command: String,
    /// Reason for the choice.
    pub reason: String,
    /// Better variant that does not exist yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned: Option<&'static str>,
    /// All variants.
    pub variants: Vec<Status>,
}

/// Variant, with a flag that is true if its profile exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Row of the variant.
    #[serde(flatten)]
    pub variant: VariantRow,
    /// True if the variant's profile exists and can be built.
    pub there: bool,
}

/// Returns all variants, each with a flag that is true if its profile exists.
pub fn statuses(profiles: &[String]) -> Vec<Status> {
    let there = |name: &str| profiles.iter().any(|profile| profile == name);
    VARIANTS.iter().map(|variant| Status { variant: *variant, there: there(variant.profile) }).collect()
}

/// Chooses a build. `profiles` contains the existing profiles.
pub fn choose(
    model: &ModelFacts,
    host: &Host,
    offload: Option<&Offload>,
    profiles: &[String],
) -> BuildAdvice {
    let there = |name: &str| profiles.iter().any(|profile| profile == name);
    let advice = |profile: &'static str, reason: String, planned| BuildAdvice {
        profile,
        command: format!("cargo xtask build --profile {profile}"),
        reason,
        planned,
        variants: statuses(profiles),
    };
    let cpu = format!("{}: all of its instruction sets", host.cpu.name);
    let Some(offload) = offload else {
        return advice("native", format!("no GPU; {cpu}"), None);
    };
    let (wanted, why) = of_gpu(model, offload);
    if there(wanted) {
        return advice(wanted, why, None);
    }
    advice("native", format!("{cpu}. {wanted} would be better ({why}), but does not exist yet"), Some(wanted))
}

/// Returns the variant for a machine with a GPU.
fn of_gpu(model: &ModelFacts, offload: &Offload) -> (&'static str, String) {
    let layers =
        format!("{} of {} layers fit into the memory of {}", offload.layers, offload.of_layers, offload.gpu);
    let moe = model.experts.is_some();
    let floats = model.prefill_macs.quantised.saturating_mul(2) < model.prefill_macs.total();
    let profile = match offload {
        whole if whole.is_whole() && moe => "cuda-mmq-moe",
        whole if whole.is_whole() && floats => "cuda-cublas-dense",
        whole if whole.is_whole() => "cuda-dense",
        part if part.layers_with_experts_on_cpu.is_some() => "cpu-cuda-hybrid",
        part if part.layers * 2 >= part.of_layers => "cuda-hybrid",
        part if part.layers > 0 => "cpu-cuda-hybrid",
        _ => "cpu-hybrid",
    };
    (profile, layers)
}
