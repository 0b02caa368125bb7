//! Resolution of the requested values for this machine and this build.

use build_info::Defaults;
use gguf::memory::CTX_STEP;
use llama::error::Result;
use llama::offload::{CpuMoe, DEFAULT_FIT_TARGET, Devices, GpuLayers, TensorSplit, Workers};
use llama::options::{CudaWait, DeviceSampling, FlashAttention, KvType, LoadMode, SplitMode};
use llama::own_kernels::{self, MatrixKernels};
use sampling::SamplingOptions;

use super::options::{OPTIONS, Requested};
use super::resolved::{
    DEFAULT_BATCH, DEFAULT_BLAS_THREADS, DEFAULT_CTX, DEFAULT_POLL, DEFAULT_UBATCH, Settings,
};
use super::source::{Setting, Source};
use super::{check, profile, threads, tuned};
use crate::option::{Group, OptionSpec};
use crate::runtime_host::RuntimeHost;

impl Settings {
    /// Resolves the requested values for this machine and this build.
    ///
    /// # Errors
    /// If a value is invalid, or not available on this machine.
    pub fn resolve(requested: &Requested, runtime_host: &RuntimeHost) -> Result<Self> {
        Self::resolve_tuned(requested, None, runtime_host)
    }

    /// Resolves like [`resolve`](Self::resolve), and uses tuned values for everything that was not requested.
    ///
    /// # Errors
    /// Errors of [`resolve`](Self::resolve).
    pub fn resolve_tuned(
        requested: &Requested,
        tuned: Option<&Requested>,
        runtime_host: &RuntimeHost,
    ) -> Result<Self> {
        check::check(requested)?;
        check::cpus(requested, runtime_host)?;
        let mut warnings = Vec::new();
        warnings.extend(requested.workers.as_ref().and_then(Workers::warning));
        let none = Requested::default();
        let tuned = tuned
            .filter(|tuned| tuned::counts(tuned, requested, runtime_host, &mut warnings))
            .unwrap_or(&none);
        let environment = &runtime_host.environment;
        let kernels_variable = environment.kernels.as_ref().filter(|_| requested.kernels.is_none());
        let kernels_variable = kernels_variable.map(|name| own_kernels::parse(name)).transpose()?;
        let wanted = profile::wanted(requested, tuned, runtime_host, &mut warnings);
        let threads = threads::resolve(requested, tuned, runtime_host, &mut warnings)?;
        let n_ctx = requested.n_ctx.map(|asked| {
            let held = asked.next_multiple_of(CTX_STEP);
            if held != asked {
                warnings.push(format!(
                    "-c {asked}: raised to {held}, because the context size must be a multiple of {CTX_STEP} tokens"
                ));
            }
            held
        });
        let of_cuda = |switch: fn(&Defaults) -> Option<bool>| {
            let build = &runtime_host.build.as_ref().filter(|(_, build)| build.cuda.is_some())?.1;
            let setting = Setting::new(true, Source::Default).or_profile(switch(&build.defaults));
            Some(setting.unless(switch(&runtime_host.variables)))
        };
        let cuda_wait = match runtime_host.build.as_ref().is_some_and(|(_, build)| build.cuda.is_some()) {
            true => {
                let setting = Setting::new(CudaWait::default(), Source::Default);
                Some(setting.unless(CudaWait::read(runtime_host.environment.cuda_wait.as_deref())?))
            }
            false => None,
        };
        let sampling = SamplingOptions::default();
        Ok(Settings {
            warnings,
            policy: threads.policy,
            decode_threads: threads.decode,
            prefill_threads: threads.prefill,
            affinity: threads.affinity,
            cpus: threads.cpus,
            numa: Setting::or_default(requested.asked("numa", requested.numa.map(Some)), None),
            poll: Setting::pick(requested.asked("poll", requested.poll), tuned.poll, DEFAULT_POLL),
            blas_threads: Setting::or_default(
                requested.asked("blas-threads", requested.blas_threads),
                DEFAULT_BLAS_THREADS,
            ),
            blas: runtime_host.blas.clone(),
            n_ctx: Setting::or_default(requested.asked("ctx-size", n_ctx), DEFAULT_CTX),
            n_batch: Setting::pick(
                requested.asked("batch-size", requested.n_batch),
                tuned.n_batch,
                DEFAULT_BATCH,
            ),
            n_ubatch: Setting::pick(
                requested.asked("ubatch-size", requested.n_ubatch),
                tuned.n_ubatch,
                DEFAULT_UBATCH,
            ),
            load_mode: Setting::pick(
                requested.asked("load-mode", requested.load_mode),
                tuned.load_mode,
                LoadMode::default(),
            ),
            repack: Setting::pick(requested.asked("repack", requested.repack), tuned.repack, true),
            tiled: with_variable(
                requested.asked("tiled", requested.tiled),
                environment.tiled.as_deref().map(tiled),
                tuned.tiled,
                true,
            ),
            huge_pages: Setting::pick(
                requested.asked("huge-pages", requested.huge_pages),
                tuned.huge_pages,
                true,
            ),
            cpu_variant: with_variable(
                requested.asked("cpu-variant", requested.cpu_variant.clone().map(Some)),
                environment.cpu_variant.clone().map(Some),
                tuned.cpu_variant.clone().map(Some),
                None,
            ),
            kernels: with_variable(
                requested.asked("kernels", requested.kernels),
                kernels_variable,
                tuned.kernels,
                MatrixKernels::default(),
            ),
            type_k: Setting::pick(
                requested.asked("cache-type-k", requested.type_k),
                tuned.type_k,
                KvType::default(),
            ),
            type_v: Setting::pick(
                requested.asked("cache-type-v", requested.type_v),
                tuned.type_v,
                KvType::default(),
            ),
            flash_attention: Setting::pick(
                requested.asked("flash-attn", requested.flash_attention),
                tuned.flash_attention,
                FlashAttention::default(),
            )
            .or_profile(wanted.flash_attention),
            gpu_layers: Setting::or_default(
                requested.asked("gpu-layers", requested.gpu_layers),
                GpuLayers::default(),
            )
            .or_profile(wanted.gpu_layers),
            n_cpu_moe: Setting::or_default(
                requested.asked("n-cpu-moe", requested.n_cpu_moe),
                CpuMoe::default(),
            )
            .or_profile(wanted.n_cpu_moe),
            fit_target: Setting::or_default(
                requested.asked("fit-target", requested.fit_target),
                DEFAULT_FIT_TARGET,
            ),
            devices: Setting::or_default(
                requested.asked("devices", requested.devices.clone()),
                Devices::default(),
            ),
            split_mode: Setting::or_default(
                requested.asked("split-mode", requested.split_mode),
                SplitMode::default(),
            ),
            tensor_split: Setting::or_default(
                requested.asked("tensor-split", requested.tensor_split.clone()),
                TensorSplit::default(),
            ),
            main_gpu: Setting::or_default(requested.asked("main-gpu", requested.main_gpu), 0),
            kv_offload: Setting::or_default(requested.asked("kv-offload", requested.kv_offload), true)
                .or_profile(wanted.kv_offload),
            op_offload: Setting::or_default(requested.asked("op-offload", requested.op_offload), true)
                .or_profile(wanted.op_offload),
            workers: Setting::or_default(
                requested.asked("rpc", requested.workers.clone()),
                Workers::default(),
            ),
            require_gpu: profile::require_gpu(requested, &wanted, runtime_host),
            cuda_graphs: of_cuda(|defaults| defaults.cuda_graphs),
            cuda_fusion: of_cuda(|defaults| defaults.cuda_fusion),
            cuda_wait,
            greedy: Setting::or_default(requested.asked("greedy", requested.greedy), false),
            temperature: Setting::or_default(
                requested.asked("temp", requested.temperature),
                sampling.temperature,
            ),
            top_k: Setting::or_default(requested.asked("top-k", requested.top_k), sampling.top_k),
            top_p: Setting::or_default(requested.asked("top-p", requested.top_p), sampling.top_p),
            min_p: Setting::or_default(requested.asked("min-p", requested.min_p), sampling.min_p),
            seed: Setting::or_default(requested.asked("seed", requested.seed.map(Some)), None),
            device_sampling: Setting::or_default(
                requested.asked("device-sampling", requested.device_sampling),
                DeviceSampling::default(),
            ),
            variant: requested.variant.clone(),
            adapters_from: requested.source("lora"),
            rope_from: rope_source(requested),
            trial_program: requested.trial_program.clone(),
            bound_by: threads.bound_by,
        })
    }
}

/// Returns the source of the RoPE scaling: the configuration file if any RoPE option comes from it.
fn rope_source(requested: &Requested) -> Source {
    let is_in_file = |option: &OptionSpec<Requested>| {
        option.group == Group::Rope && requested.from_file.contains(option.name)
    };
    if OPTIONS.iter().any(is_in_file) { Source::ConfigFile } else { Source::Flag }
}

/// Returns the setting for an option that has an environment variable, which overrides the tuning record.
fn with_variable<T>(
    asked: Option<Setting<T>>,
    variable: Option<T>,
    tuned: Option<T>,
    default: T,
) -> Setting<T> {
    let variable = variable.map(|value| Setting::new(value, Source::Environment));
    Setting::pick(asked.or(variable), tuned, default)
}

/// Returns the value of ggml's variable for tiled kernels, which ggml parses with C's `atoi`.
fn tiled(value: &str) -> bool {
    value.trim().parse::<i64>().is_ok_and(|number| number != 0)
}
