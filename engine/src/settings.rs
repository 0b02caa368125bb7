//! Every setting with its value and where it came from. Precedence: flag, environment, tuning record, build info,
//! live host, default.

use std::fmt;

use build_info::{Bytes, Policy, Runtime, ThreadBudget, promised_device, threads};
use serde::Serialize;

use crate::asked_threads::{self, Asked};
use crate::error::{Error, Result};
use crate::ffi::{MAX_THREADS, Model, TILED};
use crate::kernels;
use crate::live::{Blas, Live};
use crate::offload::{CpuMoe, DEFAULT_FIT_TARGET, Devices, GpuLayers, Offload, TensorSplit, Workers};
use crate::options::{
    Affinity, DeviceSampling, FlashAttention, KvType, LoadMode, ModelOptions, RequireGpu, SplitLayout,
    SplitMode,
};
use crate::sampling::SamplingOptions;
use crate::variant::Variant;

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Given on the command line.
    Flag,
    /// What `anneal tune` found for this model on this machine.
    TuningRecord,
    /// `build_info.json`.
    BuildInfo,
    /// A variable of the environment.
    Environment,
    /// Computed from the machine as it is now.
    LiveHost,
    /// All layers and the output are on devices: the host only hands them their work.
    AllLayersOnDevices,
    /// Built in.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Source::Flag => "flag",
            Source::TuningRecord => "tuning record",
            Source::BuildInfo => "build info",
            Source::Environment => "environment",
            Source::LiveHost => "live host",
            Source::AllLayersOnDevices => "all layers on the device",
            Source::Default => "default",
        })
    }
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Where it came from.
    pub source: Source,
}

impl<T> Setting<T> {
    fn new(value: T, source: Source) -> Self {
        Self { value, source }
    }

    /// What the build's profile wants, where nothing but the default counts.
    fn or_profile(self, wanted: Option<T>) -> Self {
        match (self.source, wanted) {
            (Source::Default, Some(value)) => Self::new(value, Source::BuildInfo),
            _ => self,
        }
    }

    /// What a variable of the environment says, if it says something.
    fn unless(self, variable: Option<T>) -> Self {
        variable.map_or(self, |value| Self::new(value, Source::Environment))
    }

    fn or_default(flag: Option<T>, default: T) -> Self {
        match flag {
            Some(value) => Self::new(value, Source::Flag),
            None => Self::new(default, Source::Default),
        }
    }

    /// The flag's value, else the tuning record's, else `default`.
    fn pick(flag: Option<T>, tuned: Option<T>, default: T) -> Self {
        match (flag, tuned) {
            (None, Some(value)) => Self::new(value, Source::TuningRecord),
            (flag, _) => Self::or_default(flag, default),
        }
    }
}

/// What the command line asks for; `None` where it says nothing.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "named and documented as in `Settings`")]
pub struct Requested {
    pub policy: Option<Policy>,
    pub decode_threads: Option<u32>,
    pub prefill_threads: Option<u32>,
    pub affinity: Option<Affinity>,
    pub cpus: Option<Vec<u32>>,
    pub poll: Option<u32>,
    pub blas_threads: Option<u32>,
    pub n_ctx: Option<u32>,
    pub n_batch: Option<u32>,
    pub n_ubatch: Option<u32>,
    pub load_mode: Option<LoadMode>,
    pub repack: Option<bool>,
    pub tiled: Option<bool>,
    pub huge_pages: Option<bool>,
    pub cpu_variant: Option<String>,
    pub split_layout: Option<SplitLayout>,
    pub split_from: Option<u32>,
    pub type_k: Option<KvType>,
    pub type_v: Option<KvType>,
    pub flash_attention: Option<FlashAttention>,
    pub gpu_layers: Option<GpuLayers>,
    pub n_cpu_moe: Option<CpuMoe>,
    pub fit_target: Option<Bytes>,
    pub devices: Option<Devices>,
    pub split_mode: Option<SplitMode>,
    pub tensor_split: Option<TensorSplit>,
    pub main_gpu: Option<u32>,
    pub kv_offload: Option<bool>,
    pub op_offload: Option<bool>,
    pub workers: Option<Workers>,
    pub require_gpu: Option<RequireGpu>,
    pub greedy: Option<bool>,
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub seed: Option<u32>,
    pub device_sampling: Option<DeviceSampling>,
    pub variant: Variant,
}

/// Everything resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// What the user should know before it runs.
    pub warnings: Vec<String>,
    /// Share of the cores that decode takes.
    pub policy: Setting<Policy>,
    /// Threads that generate tokens.
    pub decode_threads: Setting<u32>,
    /// Threads that evaluate the prompt.
    pub prefill_threads: Setting<u32>,
    /// Whether threads are bound to CPUs.
    pub affinity: Setting<Affinity>,
    /// Logical CPUs for the threads, one of each core.
    pub cpus: Setting<Vec<u32>>,
    /// How eagerly threads wait for work, 0 to 100.
    pub poll: Setting<u32>,
    /// Threads of the BLAS library; 0 is as many as the phase has.
    pub blas_threads: Setting<u32>,
    /// The BLAS library itself, if one is linked.
    pub blas: Option<Blas>,
    /// Tokens the context holds; 0 is what the model was trained for.
    pub n_ctx: Setting<u32>,
    /// Tokens in one call.
    pub n_batch: Setting<u32>,
    /// Tokens in one graph.
    pub n_ubatch: Setting<u32>,
    /// How the weights come into memory.
    pub load_mode: Setting<LoadMode>,
    /// Whether weights may be rearranged for the CPU's kernels.
    pub repack: Setting<bool>,
    /// Whether ggml's tiled kernels serve weights that are not rearranged.
    pub tiled: Setting<bool>,
    /// Whether large buffers ask for huge pages, in a build that can.
    pub huge_pages: Setting<bool>,
    /// Kernels to load, in a build that has them beside it; the best that run here if none.
    pub cpu_variant: Setting<Option<String>>,
    /// Whether prefill gets weights of its own, as they are in the file.
    pub split_layout: Setting<SplitLayout>,
    /// Tokens of the shortest prompt that goes to them.
    pub split_from: Setting<u32>,
    /// Type of the K cache.
    pub type_k: Setting<KvType>,
    /// Type of the V cache.
    pub type_v: Setting<KvType>,
    /// Flash attention.
    pub flash_attention: Setting<FlashAttention>,
    /// How many layers go to devices.
    pub gpu_layers: Setting<GpuLayers>,
    /// Of how many layers of a mixture the experts stay in the host's memory.
    pub n_cpu_moe: Setting<CpuMoe>,
    /// Memory that stays free on each device where the number of layers is found.
    pub fit_target: Setting<Bytes>,
    /// Which devices may take them.
    pub devices: Setting<Devices>,
    /// How several devices share a model.
    pub split_mode: Setting<SplitMode>,
    /// In which proportion.
    pub tensor_split: Setting<TensorSplit>,
    /// The device that has all layers, where they do not share it.
    pub main_gpu: Setting<u32>,
    /// Whether K and V are where their layers are.
    pub kv_offload: Setting<bool>,
    /// Whether devices also compute on weights in the host's memory.
    pub op_offload: Setting<bool>,
    /// Workers whose devices are used.
    pub workers: Setting<Workers>,
    /// What is refused where no GPU does the work.
    pub require_gpu: Setting<RequireGpu>,
    /// Whether ggml launches CUDA graphs; none where the build has no CUDA.
    pub cuda_graphs: Option<Setting<bool>>,
    /// Whether it makes one kernel of several operations there; none as well.
    pub cuda_fusion: Option<Setting<bool>>,
    /// The most likely token, always.
    pub greedy: Setting<bool>,
    /// Temperature.
    pub temperature: Setting<f32>,
    /// Candidates kept.
    pub top_k: Setting<u32>,
    /// Probability mass kept.
    pub top_p: Setting<f32>,
    /// Least probability kept, relative to the best.
    pub min_p: Setting<f32>,
    /// Seed; `None` draws one at each start.
    pub seed: Setting<Option<u32>>,
    /// Whether the device that computes the logits also chooses by them.
    pub device_sampling: Setting<DeviceSampling>,
    /// How the model differs from its file.
    pub variant: Variant,
    /// What bounded the threads, in words.
    pub bound_by: String,
}

/// One line of `info --explain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// The setting, as its flag is called.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// Where it came from.
    pub source: Source,
}

/// Context size where nothing is asked for: room for a conversation, memory that a small machine has (the
/// trained size of new models can need tens of gigabytes).
pub const DEFAULT_CTX: u32 = 4096;

/// Shortest prompt for a split layout where nothing else is asked for: the cost of handing the sequence over is nearly
/// all in proportion to its length, as the gain is, so this only keeps it away from where neither matters.
pub const DEFAULT_SPLIT_FROM: u32 = 64;

/// llama.cpp rounds the size of a context up to a multiple of this.
pub const CTX_STEP: u32 = 256;
/// Threads of the BLAS library where none are asked for. ggml's own threads have taken the cores, and wait for
/// their next part by spinning: see docs/src/guide/blas.md.
pub const DEFAULT_BLAS_THREADS: u32 = 1;

/// The greatest context that can be asked for.
pub const MAX_CTX: u32 = 1 << 28;

impl Settings {
    /// Resolves what was asked for on the machine and the build at hand.
    pub fn resolve(requested: &Requested, live: &Live) -> Result<Self> {
        Self::resolve_tuned(requested, None, live)
    }

    /// The same with what was found by tuning, which counts where nothing was asked for.
    pub fn resolve_tuned(requested: &Requested, tuned: Option<&Requested>, live: &Live) -> Result<Self> {
        check(requested)?;
        check_cpus(requested, live)?;
        let mut warnings = Vec::new();
        warnings.extend(requested.workers.as_ref().and_then(Workers::warning));
        let none = Requested::default();
        // It was measured here alone.
        let elsewhere = requested.workers.as_ref().is_some_and(|workers| !workers.0.is_empty());
        if elsewhere && tuned.is_some() {
            warnings
                .push("the tuning record is left out: it was measured without workers (--rpc)".to_string());
        }
        let tuned = tuned.filter(|_| !elsewhere);
        let tuned = tuned.map_or(&none, |tuned| match check(&requested.or(tuned)) {
            Ok(()) => tuned,
            Err(why) => {
                warnings.push(format!(
                    "the tuning record does not go with what was asked for and is left out: {why}"
                ));
                &none
            }
        });
        let wanted = of_profile(requested, tuned, live, &mut warnings);
        // A policy or a number that was asked for goes before the environment.
        let asked_threads = asked_threads::read(live.threads.as_deref())?
            .filter(|_| requested.policy.is_none() && requested.decode_threads.is_none());
        let policy = match asked_threads {
            Some(Asked::Share(policy)) => Setting::new(policy, Source::Environment),
            _ => Setting::or_default(requested.policy, Policy::default()),
        };
        let (budget, budget_source) = budget(live, policy.value);
        let (decode, prefill, record) = match recorded_threads(live, policy.value, &budget) {
            Some((decode, prefill)) => (decode, prefill, Source::BuildInfo),
            None => (budget.decode, budget.prefill, budget_source),
        };
        // More threads than CPUs to run on would only wait for each other.
        let room = requested.cpus.as_ref().map_or(MAX_THREADS, |cpus| cpus.len().max(1) as u32);
        let (decode, prefill) = (decode.min(room), prefill.min(room));
        // A policy that was asked for is a number of threads that was asked for.
        let tuned_threads = |threads: Option<u32>| {
            let is_free = requested.policy.is_none() && policy.source != Source::Environment;
            threads.filter(|_| is_free).map(|threads| threads.min(room))
        };
        let (number, source) = match asked_threads {
            Some(Asked::Number(threads)) => (Some(threads), Source::Environment),
            _ => (None, Source::Flag),
        };
        let decode_threads = match (requested.decode_threads.or(number), tuned_threads(tuned.decode_threads))
        {
            (Some(threads), _) => Setting::new(threads, source),
            (None, Some(threads)) => Setting::new(threads, Source::TuningRecord),
            (None, None) => Setting::new(decode, record),
        };
        // As in llama.cpp, one number of threads counts for both phases.
        let asked = requested.prefill_threads.or(requested.decode_threads);
        let source = if asked.is_some() { Source::Flag } else { source };
        let prefill_threads = match (asked.or(number), tuned_threads(tuned.prefill_threads)) {
            (Some(threads), _) => Setting::new(threads, source),
            (None, Some(threads)) => Setting::new(threads, Source::TuningRecord),
            (None, None) => Setting::new(prefill, record),
        };
        let cpus = match &requested.cpus {
            Some(cpus) => Setting::new(cpus.clone(), Source::Flag),
            None => Setting::new(budget.cpus, budget_source),
        };
        // A list of CPUs says that threads shall be bound to them.
        let affinity = match (requested.affinity, &requested.cpus) {
            (None, Some(_)) => Setting::new(Affinity::On, Source::Flag),
            (flag, _) => Setting::pick(flag, tuned.affinity, Affinity::default()),
        };
        // More threads than cores that were measured to be faster are no mistake.
        let unmeasured = [&decode_threads, &prefill_threads];
        let unmeasured = unmeasured.iter().filter(|threads| threads.source != Source::TuningRecord);
        let most = unmeasured.map(|threads| threads.value).max().unwrap_or(0);
        if most > budget.cores {
            warnings.push(format!(
                "{most} threads on {} usable cores ({}): they will wait for each other and may be many times slower",
                budget.cores, budget.bound_by
            ));
        }
        let n_ctx = requested.n_ctx.map(|asked| {
            let held = asked.next_multiple_of(CTX_STEP);
            if held != asked {
                warnings.push(format!(
                    "-c {asked}: llama.cpp makes contexts in steps of {CTX_STEP} tokens, so this one holds {held}"
                ));
            }
            held
        });
        let of_cuda = |switch: fn(&Runtime) -> Option<bool>| {
            let build = &live.build.as_ref().filter(|(_, build)| build.cuda.is_some())?.1;
            let setting = Setting::new(true, Source::Default).or_profile(switch(&build.runtime));
            Some(setting.unless(switch(&live.variables)))
        };
        Ok(Settings {
            warnings,
            policy,
            decode_threads,
            prefill_threads,
            affinity,
            cpus,
            poll: Setting::pick(requested.poll, tuned.poll, 50), // llama.cpp's
            blas_threads: Setting::or_default(requested.blas_threads, DEFAULT_BLAS_THREADS),
            blas: live.blas.clone(),
            n_ctx: Setting::or_default(n_ctx, DEFAULT_CTX),
            n_batch: Setting::pick(requested.n_batch, tuned.n_batch, 2048), // llama.cpp's
            n_ubatch: Setting::pick(requested.n_ubatch, tuned.n_ubatch, 512), // llama.cpp's
            load_mode: Setting::pick(requested.load_mode, tuned.load_mode, LoadMode::default()),
            repack: Setting::pick(requested.repack, tuned.repack, true),
            tiled: tiled(requested, tuned),
            huge_pages: Setting::pick(requested.huge_pages, tuned.huge_pages, true),
            cpu_variant: cpu_variant(requested, tuned),
            split_layout: Setting::pick(requested.split_layout, tuned.split_layout, SplitLayout::default()),
            split_from: Setting::or_default(requested.split_from, DEFAULT_SPLIT_FROM),
            type_k: Setting::pick(requested.type_k, tuned.type_k, KvType::default()),
            type_v: Setting::pick(requested.type_v, tuned.type_v, KvType::default()),
            flash_attention: Setting::pick(
                requested.flash_attention,
                tuned.flash_attention,
                FlashAttention::default(),
            )
            .or_profile(wanted.flash_attention),
            gpu_layers: Setting::or_default(requested.gpu_layers, GpuLayers::default())
                .or_profile(wanted.gpu_layers),
            n_cpu_moe: Setting::or_default(requested.n_cpu_moe, CpuMoe::default())
                .or_profile(wanted.n_cpu_moe),
            fit_target: Setting::or_default(requested.fit_target, DEFAULT_FIT_TARGET),
            devices: Setting::or_default(requested.devices.clone(), Devices::default()),
            split_mode: Setting::or_default(requested.split_mode, SplitMode::default()),
            tensor_split: Setting::or_default(requested.tensor_split.clone(), TensorSplit::default()),
            main_gpu: Setting::or_default(requested.main_gpu, 0),
            kv_offload: Setting::or_default(requested.kv_offload, true).or_profile(wanted.kv_offload),
            op_offload: Setting::or_default(requested.op_offload, true).or_profile(wanted.op_offload),
            workers: Setting::or_default(requested.workers.clone(), Workers::default()),
            require_gpu: require_gpu(requested, &wanted, live),
            cuda_graphs: of_cuda(|runtime| runtime.cuda_graphs),
            cuda_fusion: of_cuda(|runtime| runtime.cuda_fusion),
            greedy: Setting::or_default(requested.greedy, false),
            // The sampling defaults of llama.cpp's tools.
            temperature: Setting::or_default(requested.temperature, 0.8),
            top_k: Setting::or_default(requested.top_k, 40),
            top_p: Setting::or_default(requested.top_p, 0.95),
            min_p: Setting::or_default(requested.min_p, 0.05),
            seed: Setting::or_default(requested.seed.map(Some), None),
            device_sampling: Setting::or_default(requested.device_sampling, DeviceSampling::default()),
            variant: requested.variant.clone(),
            bound_by: budget.bound_by,
        })
    }

    /// Sees that what was found by tuning goes with what was asked for; [`resolve_tuned`](Self::resolve_tuned) leaves it
    /// out where it does not.
    ///
    /// # Errors
    /// What does not go together.
    pub fn goes_with(requested: &Requested, tuned: &Requested) -> Result<()> {
        check(requested)?;
        check(&requested.or(tuned)).or_else(|why| {
            usage(format!(
                "the tuning record does not go with what was asked for: {why}; leave one of them out"
            ))
        })
    }

    fn blas_threads_in_words(&self) -> String {
        match (&self.blas, self.blas_threads.value) {
            (None, _) => "no BLAS in this build".to_string(),
            (Some(blas), _) if !blas.threads_obeyed => "llama.cpp's, not settable in this build".to_string(),
            (_, 0) => "as many as the phase has".to_string(),
            (_, threads) => threads.to_string(),
        }
    }

    fn split_layout_in_words(&self) -> &'static str {
        match self.split_layout.value {
            // What would make it `on` is a measurement on this machine.
            SplitLayout::Auto => "auto: off, no tuning record says that it is faster",
            SplitLayout::On => "on",
            SplitLayout::Off => "off",
        }
    }

    fn rope_in_words(&self) -> String {
        Some(self.variant.rope.words()).filter(|words| !words.is_empty()).unwrap_or("the model's".to_string())
    }

    /// How to load a model.
    pub fn model_options(&self) -> ModelOptions {
        ModelOptions {
            load_mode: self.load_mode.value,
            repack: self.repack.value,
            vocab_only: false,
            no_alloc: false,
            offload: self.offload(),
        }
    }

    /// Which devices take which layers.
    pub fn offload(&self) -> Offload {
        Offload {
            gpu_layers: self.gpu_layers.value,
            is_default: self.gpu_layers.source == Source::BuildInfo,
            n_cpu_moe: self.n_cpu_moe.value,
            fit_target: self.fit_target.value,
            devices: self.devices.value.clone(),
            split_mode: self.split_mode.value,
            tensor_split: self.tensor_split.value.clone(),
            main_gpu: self.main_gpu.value,
            op_offload: self.op_offload.value,
            workers: self.workers.value.clone(),
        }
    }

    /// The same for `model`, which is loaded. Where all of its layers, their caches and the output are on devices, one thread hands
    /// them their work, in both phases: others would wait for it, at a barrier after each operation that is left here. Threads that
    /// were asked for or measured stay.
    #[must_use]
    pub fn for_model(&self, model: &Model) -> Settings {
        let mut own = self.clone();
        // Experts that stay here are multiplied by all threads.
        let experts_here = model.placed().n_cpu_moe.of(model.n_layer()) > 0;
        if model.makes_logits_on_device() && self.kv_offload.value && !experts_here {
            own.dispatch_alone();
        }
        own
    }

    fn dispatch_alone(&mut self) {
        // A share of the cores that was asked for is a number of threads that was asked for.
        if self.policy.source != Source::Default {
            return;
        }
        for threads in [&mut self.decode_threads, &mut self.prefill_threads] {
            match threads.source {
                Source::Flag | Source::Environment | Source::TuningRecord => {}
                _ => *threads = Setting::new(1, Source::AllLayersOnDevices),
            }
        }
    }

    /// How to choose tokens, as far as the settings know of it.
    pub fn sampling_options(&self) -> SamplingOptions {
        let mut options = SamplingOptions {
            temperature: self.temperature.value,
            top_k: self.top_k.value,
            top_p: self.top_p.value,
            min_p: self.min_p.value,
            seed: self.seed.value,
            ..SamplingOptions::default()
        };
        if self.greedy.value {
            options.make_greedy();
        }
        options
    }

    /// Every setting, its value and its source.
    pub fn explain(&self) -> Vec<Explained> {
        fn line<T>(name: &'static str, setting: &Setting<T>, value: impl fmt::Display) -> Explained {
            Explained { name, value: value.to_string(), source: setting.source }
        }
        let variant = |name, asked: bool, value: String| {
            let source = if asked { Source::Flag } else { Source::Default };
            Explained { name, value, source }
        };
        let on = |on: bool| if on { "on" } else { "off" };
        let policy = match self.policy.value {
            Policy::Max => "max",
            Policy::Balanced => "balanced",
            Policy::Shared => "shared",
            Policy::Debug => "debug",
        };
        let cpus: Vec<String> = self.cpus.value.iter().map(u32::to_string).collect();
        let n_ctx = match self.n_ctx.value {
            0 => "the model's".to_string(),
            n_ctx => n_ctx.to_string(),
        };
        let seed = self.seed.value.map_or("random".to_string(), |seed| seed.to_string());
        let cuda = [("cuda-graphs", &self.cuda_graphs), ("cuda-fusion", &self.cuda_fusion)];
        let cuda = cuda.into_iter().filter_map(|(name, setting)| {
            let setting = setting.as_ref()?;
            Some(line(name, setting, on(setting.value)))
        });
        let mut lines = vec![
            line("policy", &self.policy, policy),
            line("threads", &self.decode_threads, self.decode_threads.value),
            line("threads-batch", &self.prefill_threads, self.prefill_threads.value),
            line("affinity", &self.affinity, self.affinity.value),
            line("cpu-list", &self.cpus, cpus.join(",")),
            line("poll", &self.poll, self.poll.value),
            line("blas-threads", &self.blas_threads, self.blas_threads_in_words()),
            line("ctx-size", &self.n_ctx, n_ctx),
            line("batch-size", &self.n_batch, self.n_batch.value),
            line("ubatch-size", &self.n_ubatch, self.n_ubatch.value),
            variant("lora", !self.variant.adapters.is_empty(), self.variant.adapters_in_words()),
            variant("rope", !self.variant.rope.is_the_models(), self.rope_in_words()),
            line("load-mode", &self.load_mode, self.load_mode.value),
            line("repack", &self.repack, on(self.repack.value)),
            line("tiled", &self.tiled, on(self.tiled.value)),
            line("huge-pages", &self.huge_pages, if self.huge_pages.value { "as built" } else { "off" }),
            line("cpu-variant", &self.cpu_variant, self.cpu_variant.value.as_deref().unwrap_or("the best")),
            line("split-layout", &self.split_layout, self.split_layout_in_words()),
            line("split-from", &self.split_from, self.split_from.value),
            line("cache-type-k", &self.type_k, self.type_k.value),
            line("cache-type-v", &self.type_v, self.type_v.value),
            line("flash-attn", &self.flash_attention, self.flash_attention.value),
            line("gpu-layers", &self.gpu_layers, self.gpu_layers.value),
            line("n-cpu-moe", &self.n_cpu_moe, self.n_cpu_moe.value),
            line("fit-target", &self.fit_target, self.fit_target.value),
            line("devices", &self.devices, &self.devices.value),
            line("split-mode", &self.split_mode, self.split_mode.value),
            line("tensor-split", &self.tensor_split, &self.tensor_split.value),
            line("main-gpu", &self.main_gpu, self.main_gpu.value),
            line("kv-offload", &self.kv_offload, on(self.kv_offload.value)),
            line("op-offload", &self.op_offload, on(self.op_offload.value)),
            line("rpc", &self.workers, &self.workers.value),
            line("require-gpu", &self.require_gpu, self.require_gpu.value),
            line("greedy", &self.greedy, on(self.greedy.value)),
            line("temp", &self.temperature, self.temperature.value),
            line("top-k", &self.top_k, self.top_k.value),
            line("top-p", &self.top_p, self.top_p.value),
            line("min-p", &self.min_p, self.min_p.value),
            line("seed", &self.seed, seed),
            line("device-sampling", &self.device_sampling, self.device_sampling.value),
        ];
        lines.extend(cuda);
        lines
    }
}

impl Requested {
    /// What is asked for, with `other` where nothing is.
    fn or(&self, other: &Self) -> Self {
        Self {
            policy: self.policy.or(other.policy),
            decode_threads: self.decode_threads.or(other.decode_threads),
            prefill_threads: self.prefill_threads.or(other.prefill_threads),
            affinity: self.affinity.or(other.affinity),
            cpus: self.cpus.clone().or_else(|| other.cpus.clone()),
            poll: self.poll.or(other.poll),
            n_batch: self.n_batch.or(other.n_batch),
            n_ubatch: self.n_ubatch.or(other.n_ubatch),
            load_mode: self.load_mode.or(other.load_mode),
            repack: self.repack.or(other.repack),
            tiled: self.tiled.or(other.tiled),
            huge_pages: self.huge_pages.or(other.huge_pages),
            cpu_variant: self.cpu_variant.clone().or_else(|| other.cpu_variant.clone()),
            split_layout: self.split_layout.or(other.split_layout),
            type_k: self.type_k.or(other.type_k),
            type_v: self.type_v.or(other.type_v),
            flash_attention: self.flash_attention.or(other.flash_attention),
            gpu_layers: self.gpu_layers.or(other.gpu_layers),
            n_cpu_moe: self.n_cpu_moe.or(other.n_cpu_moe),
            kv_offload: self.kv_offload.or(other.kv_offload),
            op_offload: self.op_offload.or(other.op_offload),
            ..self.clone()
        }
    }
}

/// Which kernels are loaded: the variable goes before the record, too.
fn cpu_variant(requested: &Requested, tuned: &Requested) -> Setting<Option<String>> {
    match (&requested.cpu_variant, kernels::of_environment()) {
        (None, Some(name)) => Setting::new(Some(name), Source::Environment),
        _ => {
            Setting::pick(requested.cpu_variant.clone().map(Some), tuned.cpu_variant.clone().map(Some), None)
        }
    }
}

/// Whether the tiled kernels run: ggml's own variable goes before the record.
fn tiled(requested: &Requested, tuned: &Requested) -> Setting<bool> {
    let variable = std::env::var(TILED).ok().filter(|_| requested.tiled.is_none());
    match variable {
        // As C's atoi reads it.
        Some(value) => {
            let is_number = value.trim().parse::<i64>();
            Setting::new(is_number.is_ok_and(|number| number != 0), Source::Environment)
        }
        None => Setting::pick(requested.tiled, tuned.tiled, true),
    }
}

/// What the build's profile wants: see [`build_info::Runtime`].
fn of_profile(
    requested: &Requested,
    tuned: &Requested,
    live: &Live,
    warnings: &mut Vec<String>,
) -> Requested {
    let Some(runtime) = live.runtime() else { return Requested::default() };
    let wanted = Requested {
        gpu_layers: runtime.gpu_layers.map(GpuLayers::from),
        n_cpu_moe: runtime.n_cpu_moe.map(CpuMoe::from),
        kv_offload: runtime.kv_offload,
        op_offload: runtime.op_offload,
        flash_attention: runtime.flash_attention.map(FlashAttention::from),
        ..Requested::default()
    };
    // Of all that a profile can want, this alone may go against something else that is asked for.
    let others = Requested { flash_attention: None, ..wanted.clone() };
    match check(&requested.or(tuned).or(&wanted)) {
        Ok(()) => wanted,
        Err(why) => {
            let (what, left) = match check(&requested.or(tuned).or(&others)) {
                Ok(()) => ("flash attention as", others),
                Err(_) => ("the defaults that", Requested::default()),
            };
            warnings.push(format!(
                "{what} this build's profile wants it does not go with what was asked for and is left out: {why}"
            ));
            left
        }
    }
}

/// A build that was made for a GPU requires one, unless it is told not to, or it or its profile leaves it alone.
fn require_gpu(requested: &Requested, wanted: &Requested, live: &Live) -> Setting<RequireGpu> {
    let promised = live.build.as_ref().is_some_and(|(_, build)| promised_device(build).is_some());
    let layers = requested.gpu_layers.or(wanted.gpu_layers);
    let cpu_will_do = layers == Some(GpuLayers::Some(0)) || requested.devices == Some(Devices::None);
    match (requested.require_gpu, promised && !cpu_will_do) {
        (None, true) => Setting::new(RequireGpu::Yes, Source::BuildInfo),
        (flag, _) => Setting::or_default(flag, RequireGpu::default()),
    }
}

/// The thread budget of the live host; without one, of the build host; without either, one thread.
fn budget(live: &Live, policy: Policy) -> (ThreadBudget, Source) {
    match (&live.host, &live.build) {
        (Some(host), _) => (threads::budget(host, policy), Source::LiveHost),
        (None, Some((_, build))) => (threads::budget(&build.host, policy), Source::BuildInfo),
        (None, None) => {
            let bound_by = "nothing could be read".to_string();
            (ThreadBudget { prefill: 1, decode: 1, cores: 1, cpus: vec![0], bound_by }, Source::Default)
        }
    }
}

/// The threads that `build_info.json` recommends for decode and prefill, where it speaks of this machine as it
/// is now and of this policy; never more than the live budget.
fn recorded_threads(live: &Live, policy: Policy, budget: &ThreadBudget) -> Option<(u32, u32)> {
    let (_, build) = live.build.as_ref()?;
    if policy != Policy::Balanced || !(live.is_build_host() || live.host.is_none()) {
        return None;
    }
    let within = |threads: u32| threads.clamp(1, budget.cores.max(1));
    Some((within(build.optimal_threads), within(build.threads.prefill)))
}

/// Whether every value can be meant.
pub(crate) fn check(requested: &Requested) -> Result<()> {
    for (flag, threads) in [("-t", requested.decode_threads), ("-tb", requested.prefill_threads)] {
        if let Some(threads) = threads.filter(|threads| !(1..=MAX_THREADS).contains(threads)) {
            return usage(format!(
                "{flag} {threads}: llama.cpp works with 1 to {MAX_THREADS} threads; leave it out to take what the \
                 machine offers"
            ));
        }
    }
    if let Some(threads) = requested.blas_threads.filter(|threads| *threads > MAX_THREADS) {
        return usage(format!(
            "--blas-threads {threads}: use 1 to {MAX_THREADS}, or 0 for as many as llama.cpp uses itself"
        ));
    }
    for (flag, tokens) in [("-b", requested.n_batch), ("-ub", requested.n_ubatch)] {
        if let Some(tokens) = tokens.filter(|tokens| !(1..=1 << 20).contains(tokens)) {
            return usage(format!("{flag} {tokens}: a batch has 1 to {} tokens", 1 << 20));
        }
    }
    if let Some(n_ctx) = requested.n_ctx.filter(|n_ctx| *n_ctx > MAX_CTX) {
        return usage(format!("-c {n_ctx}: a context has at most {MAX_CTX} tokens"));
    }
    if requested.split_layout == Some(SplitLayout::On) && requested.repack == Some(false) {
        return usage(
            "--split-layout on with --no-repack: the split layout generates with repacked weights; leave one of them out"
                .to_string(),
        );
    }
    if requested.split_from == Some(0) {
        return usage("--split-from 0: a prompt has 1 token or more".to_string());
    }
    let type_v = requested.type_v.unwrap_or_default();
    if requested.flash_attention == Some(FlashAttention::Off) && type_v.is_quantised() {
        return usage(format!(
            "-fa off with -ctv {type_v}: llama.cpp reads a quantised V cache only with flash attention; leave out \
             -fa off, or use -ctv f16"
        ));
    }
    if let Some(poll) = requested.poll.filter(|poll| *poll > 100) {
        return usage(format!("--poll {poll}: use 0 (sleep) to 100 (spin)"));
    }
    if let Some(cpu) = requested.cpus.iter().flatten().find(|cpu| **cpu >= MAX_THREADS) {
        let last = MAX_THREADS - 1;
        return usage(format!("--cpu-list {cpu}: llama.cpp can bind threads to CPUs 0 to {last}"));
    }
    offload(requested).check().map_err(Error::Usage)?;
    requested.variant.rope.check()?;
    let fractions = [("--top-p", requested.top_p), ("--min-p", requested.min_p)];
    for (flag, value) in fractions {
        if let Some(value) = value.filter(|value| !(0.0..=1.0).contains(value)) {
            return usage(format!("{flag} {value}: a probability lies between 0 and 1"));
        }
    }
    if let Some(value) = requested.temperature.filter(|value| !(0.0..=100.0).contains(value)) {
        return usage(format!("--temp {value}: use 0 (most likely token) to 100"));
    }
    Ok(())
}

/// What is asked for of devices.
fn offload(requested: &Requested) -> Offload {
    Offload {
        split_mode: requested.split_mode.unwrap_or_default(),
        tensor_split: requested.tensor_split.clone().unwrap_or_default(),
        main_gpu: requested.main_gpu.unwrap_or(0),
        ..Offload::default()
    }
}

/// Only CPUs that this process may use can be bound to; llama.cpp would warn and go on unbound.
fn check_cpus(requested: &Requested, live: &Live) -> Result<()> {
    let allowed = live.host.as_ref().map_or(&[][..], |host| &host.limits.affinity);
    match requested.cpus.iter().flatten().find(|cpu| !allowed.is_empty() && !allowed.contains(cpu)) {
        None => Ok(()),
        Some(cpu) => {
            let allowed: Vec<String> = allowed.iter().map(u32::to_string).collect();
            usage(format!("--cpu-list {cpu}: this process may use the CPUs {}", allowed.join(",")))
        }
    }
}

fn usage<T>(message: String) -> Result<T> {
    Err(Error::Usage(message))
}

#[cfg(test)]
mod tests {
    use build_info::Host;
    use build_info::host::{Cpu, Limits, Memory, Os, Topology};
    use build_info::runtime::Layers;

    use super::*;

    fn live(cpus: u32) -> Live {
        let host = Host {
            arch: "x86_64".to_string(),
            hostname: None,
            os: Os::default(),
            cpu: Cpu::default(),
            topology: Topology::default(),
            memory: Memory::default(),
            limits: Limits { affinity: (0..cpus).collect(), ..Limits::default() },
            gpus: Vec::new(),
        };
        Live { host: Some(host), ..Live::default() }
    }

    #[test]
    fn blas_threads_are_one_unless_told_otherwise_and_say_so() {
        let linked = |threads_obeyed| Some(Blas { library: "OpenBLAS 0.3.21".to_string(), threads_obeyed });
        let none = "no BLAS in this build";
        let cases = [
            (None, None, none, Source::Default),
            (Some(2), None, none, Source::Flag),
            (None, linked(true), "1", Source::Default),
            (Some(2), linked(true), "2", Source::Flag),
            (Some(0), linked(true), "as many as the phase has", Source::Flag),
            (Some(2), linked(false), "llama.cpp's, not settable in this build", Source::Flag),
        ];
        for (blas_threads, blas, value, source) in cases {
            let requested = Requested { blas_threads, ..Requested::default() };
            let live = Live { blas, ..live(4) };
            let settings = Settings::resolve(&requested, &live).expect("valid");
            let explained = settings.explain();
            let line = explained.iter().find(|line| line.name == "blas-threads").expect("a line");
            assert_eq!((line.value.as_str(), line.source), (value, source), "{blas_threads:?}");
        }
        let requested = Requested { blas_threads: Some(MAX_THREADS + 1), ..Requested::default() };
        let error = Settings::resolve(&requested, &live(4)).expect_err("too many");
        assert!(error.to_string().contains("--blas-threads"), "{error}");
    }

    #[test]
    fn a_flag_goes_before_the_live_host() {
        let cases = [
            (Requested::default(), (6, Source::LiveHost), (8, Source::LiveHost)),
            (
                Requested { decode_threads: Some(3), ..Requested::default() },
                (3, Source::Flag),
                (3, Source::Flag),
            ),
            (
                Requested { prefill_threads: Some(20), ..Requested::default() },
                (6, Source::LiveHost),
                (20, Source::Flag),
            ),
            (
                Requested { policy: Some(Policy::Max), ..Requested::default() },
                (8, Source::LiveHost),
                (8, Source::LiveHost),
            ),
        ];
        for (requested, decode, prefill) in cases {
            let settings = Settings::resolve(&requested, &live(8)).expect("valid");
            assert_eq!(
                (settings.decode_threads.value, settings.decode_threads.source),
                decode,
                "{requested:?}"
            );
            assert_eq!(
                (settings.prefill_threads.value, settings.prefill_threads.source),
                prefill,
                "{requested:?}"
            );
        }
    }

    #[test]
    fn what_cannot_be_meant_is_wrong_usage() {
        let cases = [
            Requested { decode_threads: Some(0), ..Requested::default() },
            Requested { prefill_threads: Some(10_000), ..Requested::default() },
            Requested { n_batch: Some(0), ..Requested::default() },
            Requested { n_ubatch: Some(0), ..Requested::default() },
            Requested { n_ctx: Some(u32::MAX), ..Requested::default() },
            Requested { poll: Some(101), ..Requested::default() },
            Requested { cpus: Some(vec![512]), ..Requested::default() },
            Requested { top_p: Some(f32::NAN), ..Requested::default() },
            Requested { temperature: Some(-1.0), ..Requested::default() },
            Requested { split_from: Some(0), ..Requested::default() },
            Requested { main_gpu: Some(1), ..Requested::default() },
            Requested { split_layout: Some(SplitLayout::On), repack: Some(false), ..Requested::default() },
        ];
        for requested in cases {
            let result = Settings::resolve(&requested, &live(2));
            assert!(matches!(result, Err(Error::Usage(_))), "{requested:?} was taken");
        }
    }

    #[test]
    fn one_thread_hands_devices_their_work_unless_others_were_asked_for() {
        let flag = |decode_threads, prefill_threads| Requested {
            decode_threads,
            prefill_threads,
            ..Requested::default()
        };
        let (alone, asked) = (Source::AllLayersOnDevices, Source::Flag);
        let cases = [
            (flag(None, None), (1, alone), (1, alone)),
            // One number counts for both phases.
            (flag(Some(3), None), (3, asked), (3, asked)),
            (flag(None, Some(2)), (1, alone), (2, asked)),
        ];
        for (requested, decode, prefill) in cases {
            let mut settings = Settings::resolve(&requested, &live(4)).expect("valid");
            settings.dispatch_alone();
            let is = |threads: &Setting<u32>| (threads.value, threads.source);
            assert_eq!((is(&settings.decode_threads), is(&settings.prefill_threads)), (decode, prefill));
        }
        let policy = Requested { policy: Some(Policy::Max), ..Requested::default() };
        let mut settings = Settings::resolve(&policy, &live(4)).expect("valid");
        settings.dispatch_alone();
        assert_eq!((settings.decode_threads.value, settings.decode_threads.source), (4, Source::LiveHost));
        let tuned = flag(Some(2), Some(4));
        let settings = Settings::resolve_tuned(&Requested::default(), Some(&tuned), &live(4));
        let mut settings = settings.expect("valid");
        settings.dispatch_alone();
        assert_eq!(settings.decode_threads.source, Source::TuningRecord);
    }

    #[test]
    fn what_the_profile_wants_counts_before_the_default_alone() {
        let mut build: build_info::BuildInfo =
            serde_json::from_slice(include_bytes!("../../fixtures/builds/cuda-4060ti.json"))
                .expect("a record");
        let of = |build: &build_info::BuildInfo, flags: &Requested, tuned: Option<&Requested>| {
            let live = Live { build: Some(("build_info.json".into(), build.clone())), ..live(4) };
            Settings::resolve_tuned(flags, tuned, &live).expect("valid")
        };
        let none = Requested::default();
        // Without the table, as older records are: as before there was one.
        let older = of(&build, &none, None);
        assert_eq!((older.gpu_layers.value, older.gpu_layers.source), (GpuLayers::Auto, Source::Default));
        assert_eq!(older.require_gpu.value, RequireGpu::Yes);

        build.runtime = build_info::Runtime {
            gpu_layers: Some(Layers::All),
            n_cpu_moe: Some(Layers::Some(3)),
            kv_offload: Some(false),
            op_offload: Some(false),
            flash_attention: Some(build_info::runtime::FlashAttention::Off),
            cuda_graphs: Some(false),
            cuda_fusion: Some(false),
        };
        let profile = of(&build, &none, None);
        let explained = profile.explain();
        for (name, value) in [
            ("gpu-layers", "all"),
            ("n-cpu-moe", "3"),
            ("kv-offload", "off"),
            ("op-offload", "off"),
            ("flash-attn", "off"),
            ("cuda-graphs", "off"),
            ("cuda-fusion", "off"),
        ] {
            let line = explained.iter().find(|line| line.name == name).expect("a line");
            assert_eq!((line.value.as_str(), line.source), (value, Source::BuildInfo), "{name}");
        }

        let tuned = Requested { flash_attention: Some(FlashAttention::On), ..Requested::default() };
        let settings = of(&build, &none, Some(&tuned));
        let is = |setting: &Setting<FlashAttention>| (setting.value, setting.source);
        assert_eq!(is(&settings.flash_attention), (FlashAttention::On, Source::TuningRecord));
        let flags = Requested {
            flash_attention: Some(FlashAttention::Auto),
            gpu_layers: Some(GpuLayers::Some(5)),
            kv_offload: Some(true),
            ..Requested::default()
        };
        let settings = of(&build, &flags, Some(&tuned));
        assert_eq!(is(&settings.flash_attention), (FlashAttention::Auto, Source::Flag));
        assert_eq!(
            (settings.gpu_layers.value, settings.gpu_layers.source),
            (GpuLayers::Some(5), Source::Flag)
        );
        assert_eq!((settings.kv_offload.value, settings.kv_offload.source), (true, Source::Flag));
        assert_eq!(settings.op_offload.source, Source::BuildInfo);
        // What was asked for is an error without a device, what a profile wants is not.
        assert!(profile.offload().is_default && !settings.offload().is_default);

        // A quantised V cache takes flash attention.
        let flags = Requested { type_v: Some(KvType::Q8_0), ..Requested::default() };
        let settings = of(&build, &flags, None);
        assert_eq!(is(&settings.flash_attention), (FlashAttention::Auto, Source::Default));
        assert_eq!(
            (settings.gpu_layers.value, settings.gpu_layers.source),
            (GpuLayers::All, Source::BuildInfo)
        );
        assert!(
            settings.warnings.iter().any(|why| why.contains("this build's profile")),
            "{:?}",
            settings.warnings
        );

        build.runtime.gpu_layers = Some(Layers::Some(0));
        assert_eq!(of(&build, &none, None).require_gpu.value, RequireGpu::No);
    }

    #[test]
    fn every_setting_is_explained() {
        let settings = Settings::resolve(&Requested::default(), &live(2)).expect("valid");
        let names: Vec<&str> = settings.explain().iter().map(|line| line.name).collect();
        assert_eq!(names.len(), 40);
        assert!(names.contains(&"threads-batch") && names.contains(&"seed"), "{names:?}");
    }
}
