//! Every setting with its value and its origin.

use std::path::PathBuf;

use build_info::{Bytes, Policy};
use llama::offload::{CpuMoe, Devices, GpuLayers, Offload, TensorSplit, Workers};
use llama::options::{
    Affinity, CudaWait, DeviceSampling, FlashAttention, KvType, LoadMode, RequireGpu, SplitLayout, SplitMode,
};
use llama::variant::Variant;
use llama::{Model, ModelOptions};
use sampling::SamplingOptions;

use super::source::{Setting, Source};
use crate::runtime_host::Blas;

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
    /// Origin of the adapters, if there are any.
    pub adapters_from: Source,
    /// Origin of the RoPE scaling, if it is not the model's.
    pub rope_from: Source,
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

/// Eagerness of waiting threads where nothing is asked for: llama.cpp's default.
pub const DEFAULT_POLL: u32 = 50;

/// Tokens in one call where nothing is asked for: llama.cpp's default.
pub const DEFAULT_BATCH: u32 = 2048;

/// Tokens in one graph where nothing is asked for: llama.cpp's default.
pub const DEFAULT_UBATCH: u32 = 512;

/// Threads of the BLAS library where none are asked for. ggml's own threads have taken the cores, and wait for
/// their next part by spinning: see docs/src/build/blas.md.
pub const DEFAULT_BLAS_THREADS: u32 = 1;

impl Settings {
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

    /// True if the kernel can drop the weights' pages and read them again: they are mapped, and not copied by repacking.
    pub fn weights_are_pageable(&self) -> bool {
        self.load_mode.value == LoadMode::Mmap && !self.repack.value
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

    pub(super) fn dispatch_alone(&mut self) {
        // A share of the cores that was asked for is a number of threads that was asked for.
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
