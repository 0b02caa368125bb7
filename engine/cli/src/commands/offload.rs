//! Flags of devices beside the CPU, on this machine and at workers.

use build_info::Bytes;
use engine_core::settings::Requested;
use llama::offload::{CpuMoe, Devices, GpuLayers, TensorSplit, Workers};
use llama::options::SplitMode;

use super::flags::whole;

/// Which devices compute what.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Devices")]
pub struct OffloadFlags {
    /// Layers on devices beside the CPU, from the last one on: a number, all, or auto (as many as find room)
    /// [default: the build's, see `anneal info`, else auto]
    #[arg(long, visible_alias = "ngl", value_name = "N")]
    pub gpu_layers: Option<GpuLayers>,
    /// Of a mixture of experts: layers, from the first one on, whose experts stay in the host's memory: a number, all, or auto
    /// (as many as must, with --gpu-layers auto; else none) [default: the build's, else auto]
    #[arg(long, visible_alias = "ncmoe", value_name = "N")]
    pub n_cpu_moe: Option<CpuMoe>,
    /// Memory that --gpu-layers auto leaves free on each device, in MiB [default: 512]
    #[arg(long, visible_alias = "fitt", value_name = "MIB", value_parser = whole("0 or more MiB"))]
    pub fit_target: Option<u32>,
    /// Devices that may take layers, in this order, as `anneal info` names them: CUDA0,CUDA1, or none, or auto (all)
    /// [default: auto]
    #[arg(long, visible_aliases = ["device", "dev"], value_name = "LIST")]
    pub devices: Option<Devices>,
    /// How several devices share a model: none (one has all of it), layer, row or tensor [default: layer]
    #[arg(long, visible_alias = "sm", value_name = "HOW")]
    pub split_mode: Option<SplitMode>,
    /// How much each device takes, in proportion, as 3,1 [default: by their free memory]
    #[arg(long, visible_alias = "ts", value_name = "LIST")]
    pub tensor_split: Option<TensorSplit>,
    /// With --split-mode none: the device that has all of it, counted from 0 [default: 0]
    #[arg(long, visible_alias = "mg", value_name = "N", value_parser = whole("0 or more, the place among the devices"))]
    pub main_gpu: Option<u32>,
    /// Keep K and V where their layers are [default: the build's, else so]
    #[arg(long, visible_alias = "kvo", overrides_with = "no_kv_offload")]
    pub kv_offload: bool,
    /// Keep K and V in the host's memory
    #[arg(long, visible_alias = "nkvo", overrides_with = "kv_offload")]
    pub no_kv_offload: bool,
    /// Let devices also compute on weights in the host's memory [default: the build's, else so]
    #[arg(long, overrides_with = "no_op_offload")]
    pub op_offload: bool,
    /// Let devices compute on nothing but what lies in their memory
    #[arg(long, overrides_with = "op_offload")]
    pub no_op_offload: bool,
    /// Workers whose devices take layers as well, see `anneal worker`; in a build with RPC
    #[arg(long, value_name = "HOST:PORT,…")]
    pub rpc: Option<Workers>,
}

impl OffloadFlags {
    /// Adds what these flags ask for.
    pub fn ask(&self, requested: &mut Requested) {
        requested.gpu_layers = self.gpu_layers;
        requested.n_cpu_moe = self.n_cpu_moe;
        requested.fit_target = self.fit_target.map(|target| Bytes::mib(target.into()));
        requested.devices = self.devices.clone();
        requested.split_mode = self.split_mode;
        requested.tensor_split = self.tensor_split.clone();
        requested.main_gpu = self.main_gpu;
        requested.kv_offload = either(self.kv_offload, self.no_kv_offload);
        requested.op_offload = either(self.op_offload, self.no_op_offload);
        requested.workers = self.rpc.clone();
    }
}

/// What a flag and its opposite ask for, of which the later one counts.
fn either(on: bool, off: bool) -> Option<bool> {
    (on || off).then_some(on)
}
