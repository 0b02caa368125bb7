//! All settings with their values and sources.

use std::path::{Path, PathBuf};

use build_info::{Bytes, Policy};
use llama::numa::NumaPlacement;
use llama::offload::{CpuMoe, Devices, GpuLayers, Offload, TensorSplit, Workers};
use llama::options::{
    Affinity, CudaWait, DeviceSampling, FlashAttention, KvType, LoadMode, RequireGpu, SplitMode,
};
use llama::own_kernels::MatrixKernels;
use llama::variant::Variant;
use llama::{Model, ModelOptions};
use sampling::SamplingOptions;

use super::source::{Setting, Source};
use crate::file_system::PageLoss;
use crate::runtime_host::Blas;

/// Resolved settings of the engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Warnings for the user, to be printed before the run.
    pub warnings: Vec<String>,
    /// Setting that determines what share of the cores decode uses.
    pub policy: Setting<Policy>,
    /// Number of threads for decode.
    pub decode_threads: Setting<u32>,
    /// Number of threads for prefill.
    pub prefill_threads: Setting<u32>,
    /// Binding of threads to CPUs.
    pub affinity: Setting<Affinity>,
    /// Logical CPUs for the threads, one CPU of each core.
    pub cpus: Setting<Vec<u32>>,
    /// Placement of threads and memory on NUMA nodes. `None` leaves the placement to the system.
    pub numa: Setting<Option<NumaPlacement>>,
    /// Polling level of waiting threads: 0 sleeps, 100 spins.
    pub poll: Setting<u32>,
    /// Number of threads of the BLAS library; 0 uses the thread count of the current phase (prefill or decode).
    pub blas_threads: Setting<u32>,
    /// Linked BLAS library, if any.
    pub blas: Option<Blas>,
    /// Size of the context in tokens; 0 uses the model's training context length.
    pub n_ctx: Setting<u32>,
    /// Maximum number of tokens in one call (`-b`).
    pub n_batch: Setting<u32>,
    /// Maximum number of tokens in one graph (`--ubatch-size`).
    pub n_ubatch: Setting<u32>,
    /// Method of loading the weights into memory.
    pub load_mode: Setting<LoadMode>,
    /// True if weights may be repacked for the CPU's kernels.
    pub repack: Setting<bool>,
    /// True if ggml's tiled kernels compute with weights that are not repacked.
    pub tiled: Setting<bool>,
    /// True if large buffers request huge pages, in a build that supports them.
    pub huge_pages: Setting<bool>,
    /// Name of the kernels to load, in a build with several sets; `None` loads the best set for this CPU.
    pub cpu_variant: Setting<Option<String>>,
    /// Kernels for products and attention.
    pub kernels: Setting<MatrixKernels>,
    /// Type of the K cache.
    pub type_k: Setting<KvType>,
    /// Type of the V cache.
    pub type_v: Setting<KvType>,
    /// Flash attention.
    pub flash_attention: Setting<FlashAttention>,
    /// Number of layers on devices.
    pub gpu_layers: Setting<GpuLayers>,
    /// Number of layers, starting from the first, whose experts stay in host memory.
    pub n_cpu_moe: Setting<CpuMoe>,
    /// Memory that stays free on each device when the number of layers is chosen automatically.
    pub fit_target: Setting<Bytes>,
    /// Devices on which layers may be placed.
    pub devices: Setting<Devices>,
    /// Method of splitting a model across several devices.
    pub split_mode: Setting<SplitMode>,
    /// Proportions in which the model is split across the devices.
    pub tensor_split: Setting<TensorSplit>,
    /// Index of the device that holds all layers if they are not split.
    pub main_gpu: Setting<u32>,
    /// True if each layer's KV cache is stored on the layer's device.
    pub kv_offload: Setting<bool>,
    /// True if devices also compute with weights in the host's memory.
    pub op_offload: Setting<bool>,
    /// Workers whose devices are used.
    pub workers: Setting<Workers>,
    /// Amount of GPU use that `--require-gpu` requires.
    pub require_gpu: Setting<RequireGpu>,
    /// True if ggml launches CUDA graphs; `None` in a build without CUDA.
    pub cuda_graphs: Option<Setting<bool>>,
    /// True if ggml fuses several operations into one CUDA kernel; `None` in a build without CUDA.
    pub cuda_fusion: Option<Setting<bool>>,
    /// Method of waiting for a GPU; `None` in a build without CUDA.
    pub cuda_wait: Option<Setting<CudaWait>>,
    /// True to always choose the most likely token.
    pub greedy: Setting<bool>,
    /// Temperature.
    pub temperature: Setting<f32>,
    /// Number of candidates that top-k keeps.
    pub top_k: Setting<u32>,
    /// Cumulative probability that top-p keeps.
    pub top_p: Setting<f32>,
    /// Minimum probability of the tokens that min-p keeps, relative to the most likely token.
    pub min_p: Setting<f32>,
    /// Seed; `None` draws a new seed at each start.
    pub seed: Setting<Option<u32>>,
    /// Use of the device that computes the logits for sampling tokens.
    pub device_sampling: Setting<DeviceSampling>,
    /// Adapters, and RoPE scaling that differs from the model's file.
    pub variant: Variant,
    /// Source of the adapters, if there are any.
    pub adapters_from: Source,
    /// Source of the RoPE scaling, if it is not the model's own.
    pub rope_from: Source,
    /// Path of the `anneal` program that first loads a model in a separate process: see [`crate::trial`]. `None` in
    /// `anneal` itself, which runs its own trials.
    pub trial_program: Option<PathBuf>,
    /// Description of the limit on the number of threads.
    pub bound_by: String,
}

/// Default size of the context in tokens. It is enough for a conversation and fits into a small machine's memory. A
/// context with the training length of a recent model can need tens of gigabytes.
pub const DEFAULT_CTX: u32 = 4096;

/// Default polling level of waiting threads: llama.cpp's default.
pub const DEFAULT_POLL: u32 = 50;

/// Default number of tokens in one call: llama.cpp's default.
pub const DEFAULT_BATCH: u32 = 2048;

/// Default number of tokens in one graph: llama.cpp's default.
pub const DEFAULT_UBATCH: u32 = 512;

/// Default number of threads of the BLAS library. ggml's own threads already occupy the cores and spin while they
/// wait for the next task: see docs/src/build/blas.md.
pub const DEFAULT_BLAS_THREADS: u32 = 1;

impl Settings {
    /// Returns the options for loading a model.
    pub fn model_options(&self) -> ModelOptions {
        ModelOptions {
            load_mode: self.load_mode.value,
            repack: self.repack.value,
            vocab_only: false,
            no_alloc: false,
            offload: self.offload(),
        }
    }

    /// True if the weights are mapped and not repacked. The kernel can then drop their pages and read them again.
    pub fn weights_are_pageable(&self) -> bool {
        self.load_mode.value == LoadMode::Mmap && !self.repack.value
    }

    /// Returns the placement of layers on devices.
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

    /// Returns the settings for the model file at `path`. Unless mapping was requested, the file is read instead of
    /// mapped if a mapped file can lose pages on its file system.
    #[must_use]
    pub fn for_file(&self, path: &Path) -> Settings {
        let mut own = self.clone();
        let may_map = match own.load_mode.value {
            LoadMode::Auto => true,
            // A tuning record shows only that mapping was faster.
            LoadMode::Mmap => own.load_mode.source == Source::TuningRecord,
            LoadMode::None | LoadMode::Mlock | LoadMode::MmapMlock | LoadMode::DirectIo => false,
        };
        if may_map && PageLoss::of(path).is_some() {
            own.load_mode = Setting::new(LoadMode::None, Source::FileSystem);
        }
        own
    }

    /// Returns the settings for the loaded `model`. If all layers, their caches and the output are on devices, one
    /// thread per phase is enough to start the devices' work. More threads would only wait at a barrier after each
    /// operation on the host. Requested or measured numbers of threads are kept.
    #[must_use]
    pub fn for_model(&self, model: &Model) -> Settings {
        let mut own = self.clone();
        // All threads help to compute the experts on the host.
        let experts_here = model.placed().n_cpu_moe.of(model.n_layer()) > 0;
        if model.makes_logits_on_device() && self.kv_offload.value && !experts_here {
            own.dispatch_alone();
        }
        own
    }

    pub(super) fn dispatch_alone(&mut self) {
        // A requested share of the cores is treated as a requested number of threads.
        if self.policy.source != Source::Default {
            return;
        }
        for threads in [&mut self.decode_threads, &mut self.prefill_threads] {
            match threads.source {
                source if source.is_asked() || source == Source::TuningRecord => {}
                _ => *threads = Setting::new(1, Source::AllLayersOnDevices),
            }
        }
    }

    /// Returns the sampling options that are part of the settings.
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
