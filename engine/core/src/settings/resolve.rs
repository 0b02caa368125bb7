//! Resolves what is asked for on the machine and the build at hand.

use build_info::Defaults;
use gguf::memory::CTX_STEP;
use llama::error::Result;
use llama::offload::{CpuMoe, DEFAULT_FIT_TARGET, Devices, GpuLayers, TensorSplit, Workers};
use llama::options::{CudaWait, DeviceSampling, FlashAttention, KvType, LoadMode, SplitLayout, SplitMode};

use super::requested::Requested;
use super::resolved::{DEFAULT_BLAS_THREADS, DEFAULT_CTX, DEFAULT_SPLIT_FROM, Settings};
use super::source::{Setting, Source};
use super::{check, profile, threads, tuned};
use crate::live::Live;

impl Settings {
    /// Resolves what was asked for on the machine and the build at hand.
    pub fn resolve(requested: &Requested, live: &Live) -> Result<Self> {
        Self::resolve_tuned(requested, None, live)
    }

    /// The same with what was found by tuning, which counts where nothing was asked for.
    pub fn resolve_tuned(requested: &Requested, tuned: Option<&Requested>, live: &Live) -> Result<Self> {
        check::check(requested)?;
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
                Some(setting.unless(CudaWait::read(live.environment.cuda_wait.as_deref())?))
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
            tiled: tiled(requested, tuned, live),
            huge_pages: Setting::pick(requested.huge_pages, tuned.huge_pages, true),
            cpu_variant: cpu_variant(requested, tuned, live),
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
}

/// Which kernels are loaded: the variable goes before the record, too.
fn cpu_variant(requested: &Requested, tuned: &Requested, live: &Live) -> Setting<Option<String>> {
    match (&requested.cpu_variant, live.environment.cpu_variant.clone()) {
        (None, Some(name)) => Setting::new(Some(name), Source::Environment),
        _ => {
            Setting::pick(requested.cpu_variant.clone().map(Some), tuned.cpu_variant.clone().map(Some), None)
        }
    }
}

/// Whether the tiled kernels run: ggml's own variable goes before the record.
fn tiled(requested: &Requested, tuned: &Requested, live: &Live) -> Setting<bool> {
    let variable = live.environment.tiled.as_deref().filter(|_| requested.tiled.is_none());
    match variable {
        // As C's atoi reads it.
        Some(value) => {
            let is_number = value.trim().parse::<i64>();
            Setting::new(is_number.is_ok_and(|number| number != 0), Source::Environment)
        }
        None => Setting::pick(requested.tiled, tuned.tiled, true),
    }
}
