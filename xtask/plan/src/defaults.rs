//! Defaults of the engine, from the profile's `[defaults]` table.

use anyhow::Result;
use base::exit;
use build_info::Defaults;
use build_info::defaults::{FlashAttention, Layers};

use crate::cuda::CudaPlan;
use crate::profile::Profile;

/// Checks and returns the defaults of `profile`.
///
/// # Errors
/// If a default requires something that this build cannot do, so that runs would ignore the default or always fail.
pub fn plan(profile: &Profile, cuda: Option<&CudaPlan>) -> Result<Defaults> {
    let defaults = &profile.defaults;
    let wrong = |what: &str| Err(exit::usage(format!("profile {}: {what}", profile.name)));
    let Some(cuda) = cuda else {
        if let Some(layers @ (Layers::All | Layers::Some(1..))) = defaults.gpu_layers {
            return wrong(&format!(
                "`defaults.gpu_layers = {layers}` requires `gpu = \"cuda\"`, because it has no effect \
                 without a device\nhint: to put layers on the devices of workers, use --gpu-layers with \
                 --rpc"
            ));
        }
        let of_devices = [
            ("n_cpu_moe", defaults.n_cpu_moe.is_some()),
            ("kv_offload", defaults.kv_offload.is_some()),
            ("op_offload", defaults.op_offload.is_some()),
        ];
        if let Some((key, _)) = of_devices.iter().find(|(_, said)| *said && !profile.rpc) {
            return wrong(&format!(
                "`defaults.{key}` requires `gpu = \"cuda\"` or `rpc = true`, because it has no effect without \
                 devices"
            ));
        }
        if defaults.cuda_graphs.or(defaults.cuda_fusion).is_some() {
            return wrong("`defaults.cuda_graphs` and `defaults.cuda_fusion` require `gpu = \"cuda\"`");
        }
        return Ok(defaults.clone());
    };
    if defaults.flash_attention == Some(FlashAttention::On) && cuda.fa_quants.is_empty() {
        return wrong(
            "`defaults.flash_attention = \"on\"` conflicts with `cuda_fa_quants = [\"none\"]`: without GPU \
             kernels for flash attention, the CPU would compute it\nhint: use `flash_attention = \
             \"auto\"`, or list pairs of types in `cuda_fa_quants`",
        );
    }
    Ok(defaults.clone())
}
