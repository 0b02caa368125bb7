//! What the engine does by default: of the profile's `[defaults]`, what this build can obey.

use anyhow::Result;
use base::exit;
use build_info::Defaults;
use build_info::defaults::{FlashAttention, Layers};

use crate::cuda::CudaPlan;
use crate::profile::Profile;

/// The table of `profile`.
///
/// # Errors
/// When it wants what this build cannot do, so that no run would obey it or every one would be refused.
pub fn plan(profile: &Profile, cuda: Option<&CudaPlan>) -> Result<Defaults> {
    let defaults = &profile.defaults;
    let wrong = |what: &str| Err(exit::usage(format!("profile {}: {what}", profile.name)));
    let Some(cuda) = cuda else {
        if let Some(layers @ (Layers::All | Layers::Some(1..))) = defaults.gpu_layers {
            return wrong(&format!(
                "`defaults.gpu_layers = {layers}` takes `gpu = \"cuda\"`: without a device it does nothing; for \
                 workers' devices give --gpu-layers beside --rpc"
            ));
        }
        let of_devices = [
            ("n_cpu_moe", defaults.n_cpu_moe.is_some()),
            ("kv_offload", defaults.kv_offload.is_some()),
            ("op_offload", defaults.op_offload.is_some()),
        ];
        if let Some((key, _)) = of_devices.iter().find(|(_, said)| *said && !profile.rpc) {
            return wrong(&format!(
                "`defaults.{key}` takes `gpu = \"cuda\"`, or `rpc = true`: without devices it does nothing"
            ));
        }
        if defaults.cuda_graphs.or(defaults.cuda_fusion).is_some() {
            return wrong("`defaults.cuda_graphs` and `defaults.cuda_fusion` take `gpu = \"cuda\"`");
        }
        return Ok(defaults.clone());
    };
    if defaults.flash_attention == Some(FlashAttention::On) && cuda.fa_quants.is_empty() {
        return wrong(
            "`defaults.flash_attention = \"on\"` with `cuda_fa_quants = [\"none\"]`: the GPU has no kernel for it, and the \
             CPU would compute it; say \"auto\", or name pairs of types",
        );
    }
    Ok(defaults.clone())
}
