//! Every setting with its value and where it came from. Precedence: flag, environment, tuning record, build info,
//! live host, default.

mod check;
mod context;
mod explain;
mod profile;
#[cfg(test)]
mod tests;
mod threads;
mod tuned;

use std::fmt;
use std::path::PathBuf;

use build_info::{Bytes, Defaults, Policy};
use serde::Serialize;

pub use check::check;
pub use context::context_warning;
pub use explain::Explained;

use llama::error::Result;
use llama::offload::{CpuMoe, DEFAULT_FIT_TARGET, Devices, GpuLayers, Offload, TensorSplit, Workers};
use llama::options::{
    Affinity, CudaWait, DeviceSampling, FlashAttention, KvType, LoadMode, RequireGpu, SplitLayout, SplitMode,
};
use llama::variant::Variant;
use llama::{Model, ModelOptions, TILED, kernels};
use sampling::SamplingOptions;

use crate::live::{Blas, Live};

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
    pub trial_program: Option<PathBuf>,
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
    /// How the thread that waits for a GPU does that; none as well.
    pub cuda_wait: Option<Setting<CudaWait>>,
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
    /// An `anneal` that tries a model in a process of its own before it is loaded here: see [`crate::trial`]. The program
    /// itself needs none.
    pub trial_program: Option<PathBuf>,
    /// What bounded the threads, in words.
    pub bound_by: String,
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
        check::cpus(requested, live)?;
        let mut warnings = Vec::new();
        warnings.extend(requested.workers.as_ref().and_then(Workers::warning));
        let none = Requested::default();
        let tuned =
            tuned.filter(|tuned| tuned::counts(tuned, requested, live, &mut warnings)).unwrap_or(&none);
        let wanted = profile::wanted(requested, tuned, live, &mut warnings);
        let threads = threads::resolve(requested, tuned, live, &mut warnings)?;
        let n_ctx = requested.n_ctx.map(|asked| {
            let held = asked.next_multiple_of(CTX_STEP);
            if held != asked {
                warnings.push(format!(
                    "-c {asked}: llama.cpp makes contexts in steps of {CTX_STEP} tokens, so this one holds {held}"
                ));
            }
            held
        });
        let of_cuda = |switch: fn(&Defaults) -> Option<bool>| {
            let build = &live.build.as_ref().filter(|(_, build)| build.cuda.is_some())?.1;
            let setting = Setting::new(true, Source::Default).or_profile(switch(&build.defaults));
            Some(setting.unless(switch(&live.variables)))
        };
        let cuda_wait = match live.build.as_ref().is_some_and(|(_, build)| build.cuda.is_some()) {
            true => {
                let setting = Setting::new(CudaWait::default(), Source::Default);
                Some(setting.unless(CudaWait::of_environment()?))
            }
            false => None,
        };
        Ok(Settings {
            warnings,
            policy: threads.policy,
            decode_threads: threads.decode,
            prefill_threads: threads.prefill,
            affinity: threads.affinity,
            cpus: threads.cpus,
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
            require_gpu: profile::require_gpu(requested, &wanted, live),
            cuda_graphs: of_cuda(|defaults| defaults.cuda_graphs),
            cuda_fusion: of_cuda(|defaults| defaults.cuda_fusion),
            cuda_wait,
            greedy: Setting::or_default(requested.greedy, false),
            // The sampling defaults of llama.cpp's tools.
            temperature: Setting::or_default(requested.temperature, 0.8),
            top_k: Setting::or_default(requested.top_k, 40),
            top_p: Setting::or_default(requested.top_p, 0.95),
            min_p: Setting::or_default(requested.min_p, 0.05),
            seed: Setting::or_default(requested.seed.map(Some), None),
            device_sampling: Setting::or_default(requested.device_sampling, DeviceSampling::default()),
            variant: requested.variant.clone(),
            trial_program: requested.trial_program.clone(),
            bound_by: threads.bound_by,
        })
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
