//! What the engine does by default: of the profile's `[runtime]`, what this build can obey.

use anyhow::Result;
use build_info::Runtime;
use build_info::runtime::{FlashAttention, Layers};

use super::CudaPlan;
use crate::exit;
use crate::profile::Profile;

/// The table of `profile`.
///
/// # Errors
/// When it wants what this build cannot do, so that no run would obey it or every one would be refused.
pub fn plan(profile: &Profile, cuda: Option<&CudaPlan>) -> Result<Runtime> {
    let runtime = &profile.runtime;
    let wrong = |what: &str| Err(exit::usage(format!("profile {}: {what}", profile.name)));
    let Some(cuda) = cuda else {
        if let Some(layers @ (Layers::All | Layers::Some(1..))) = runtime.gpu_layers {
            return wrong(&format!(
                "`runtime.gpu_layers = {layers}` takes `gpu = \"cuda\"`: without a device it does nothing; for \
                 workers' devices give --gpu-layers beside --rpc"
            ));
        }
        let of_devices = [
            ("n_cpu_moe", runtime.n_cpu_moe.is_some()),
            ("kv_offload", runtime.kv_offload.is_some()),
            ("op_offload", runtime.op_offload.is_some()),
        ];
        if let Some((key, _)) = of_devices.iter().find(|(_, said)| *said && !profile.rpc) {
            return wrong(&format!(
                "`runtime.{key}` takes `gpu = \"cuda\"`, or `rpc = true`: without devices it does nothing"
            ));
        }
        if runtime.cuda_graphs.or(runtime.cuda_fusion).is_some() {
            return wrong("`runtime.cuda_graphs` and `runtime.cuda_fusion` take `gpu = \"cuda\"`");
        }
        return Ok(runtime.clone());
    };
    if runtime.flash_attention == Some(FlashAttention::On) && cuda.fa_quants.is_empty() {
        return wrong(
            "`runtime.flash_attention = \"on\"` with `cuda_fa_quants = [\"none\"]`: the GPU has no kernel for it, and the \
             CPU would compute it; say \"auto\", or name pairs of types",
        );
    }
    Ok(runtime.clone())
}
