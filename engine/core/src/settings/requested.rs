//! Settings that are asked for.

use std::path::PathBuf;

use build_info::{Bytes, Policy};
use llama::offload::{CpuMoe, Devices, GpuLayers, TensorSplit, Workers};
use llama::options::{
    Affinity, DeviceSampling, FlashAttention, KvType, LoadMode, RequireGpu, SplitLayout, SplitMode,
};
use llama::variant::Variant;

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

impl Requested {
    /// What is asked for, with `other` where nothing is.
    pub(super) fn or(&self, other: &Self) -> Self {
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
