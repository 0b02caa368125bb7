//! Which build for which model on which machine: the table of docs/src/tune/recommend.md.

use build_info::Host;
use serde::Serialize;

use super::model_facts::ModelFacts;
use super::offload::Offload;

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct VariantRow {
    /// Name in profiles/build.
    pub profile: &'static str,
    /// Model and machine that it is for.
    pub models: &'static str,
    /// What its main part runs on.
    pub runs_on: &'static str,
    /// Why, and what speaks against it.
    pub why: &'static str,
}

/// All variants: those of the CPU first.
pub const VARIANTS: &[VariantRow] = &[
    VariantRow {
        profile: "native",
        models: "every model, on the machine that builds it",
        runs_on: "CPU",
        why: "all instruction sets of this CPU; nothing measured so far was faster",
    },
    VariantRow {
        profile: "portable",
        models: "every model, to be taken to other x86-64-v3 machines",
        runs_on: "CPU",
        why: "one program for all; slower where a CPU has more than AVX2",
    },
    VariantRow {
        profile: "native-lto",
        models: "every model",
        runs_on: "CPU",
        why: "no difference to `native` was measured: only after `bench compare` showed one here",
    },
    VariantRow {
        profile: "native-blas",
        models: "F16, BF16 and F32, prompts of hundreds of tokens",
        runs_on: "CPU",
        why: "was slower than `native` where it was measured: only after `bench compare` here",
    },
    VariantRow {
        profile: "cuda-dense",
        models: "dense, quantised, all of it in the GPU's memory",
        runs_on: "GPU",
        why: "kernels that multiply quantised weights as they are; the one to begin with",
    },
    VariantRow {
        profile: "cuda-cublas-dense",
        models: "dense, F16, BF16 or F32, all of it in the GPU's memory",
        runs_on: "GPU",
        why: "cuBLAS for weights that need not be unpacked, as in cuda-dense; also for prompts of quantised ones",
    },
    VariantRow {
        profile: "cuda-mmq-moe",
        models: "mixture of experts, all of it in the GPU's memory",
        runs_on: "GPU",
        why: "quantised kernels for all products; those of cuda-dense but on Volta",
    },
    VariantRow {
        profile: "cuda-hybrid",
        models: "half of the layers or more in the GPU's memory",
        runs_on: "GPU, rest CPU",
        why: "the CPU's layers set the pace: fewer of them is what counts",
    },
    VariantRow {
        profile: "cpu-cuda-hybrid",
        models: "less than half of the layers in the GPU's memory, or the experts outside it",
        runs_on: "CPU, rest GPU",
        why: "attention and prefill on the GPU, most weights in main memory",
    },
    VariantRow {
        profile: "cpu-hybrid",
        models: "a GPU that takes no layer at all",
        runs_on: "CPU",
        why: "weights and decode on the CPU; the GPU helps with long prompts at most",
    },
];

/// Which build to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BuildAdvice {
    /// A profile that is there.
    pub profile: &'static str,
    /// The command that builds it.
    pub command: String,
    /// Why.
    pub reason: String,
    /// The variant that would suit better, and is not there yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned: Option<&'static str>,
    /// All variants.
    pub variants: Vec<Status>,
}

/// A variant, and whether there is such a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The variant.
    #[serde(flatten)]
    pub variant: VariantRow,
    /// Whether it can be built.
    pub there: bool,
}

/// The table, with what of it is there.
pub fn statuses(profiles: &[String]) -> Vec<Status> {
    let there = |name: &str| profiles.iter().any(|profile| profile == name);
    VARIANTS.iter().map(|variant| Status { variant: *variant, there: there(variant.profile) }).collect()
}

/// Chooses a build; `profiles` are those that are there.
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
    advice("native", format!("{cpu}. {wanted} would suit better ({why}), and is not there yet"), Some(wanted))
}

/// The variant for a machine with a GPU.
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
