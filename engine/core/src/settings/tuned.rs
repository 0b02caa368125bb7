//! What tuning found, and whether it counts beside what is asked for.

use llama::error::{Error, Result};
use llama::offload::{CpuMoe, GpuLayers, Workers};

use super::check::check;
use super::options::Requested;
use super::resolved::Settings;
use crate::runtime_host::RuntimeHost;

/// Whether `tuned` counts. It was measured on this machine alone, with the model where the build puts it by itself.
pub(super) fn counts(
    tuned: &Requested,
    requested: &Requested,
    runtime_host: &RuntimeHost,
    warnings: &mut Vec<String>,
) -> bool {
    let reason = if requested.workers.as_ref().is_some_and(|Workers(workers)| !workers.is_empty()) {
        Some("the tuning record is left out: it was measured without workers (--rpc)".to_string())
    } else if let Some(flag) = moved(requested, runtime_host) {
        Some(format!(
            "the tuning record is left out: it was measured without {flag}, which puts the model elsewhere"
        ))
    } else {
        let together = check(&requested.or(tuned)).err();
        together.map(|why| {
            format!("the tuning record does not go with what was asked for and is left out: {why}")
        })
    };
    let counts = reason.is_none();
    warnings.extend(reason);
    counts
}

/// The flag that puts layers, caches or operations elsewhere than a build for GPUs puts them by itself.
fn moved(requested: &Requested, runtime_host: &RuntimeHost) -> Option<&'static str> {
    let (_, build) = runtime_host.build.as_ref().filter(|(_, build)| build.cuda.is_some())?;
    fn other<T: PartialEq>(asked: &Option<T>, own: Option<T>, default: T) -> bool {
        asked.as_ref().is_some_and(|asked| *asked != own.unwrap_or(default))
    }
    let own = &build.defaults;
    let layers = own.gpu_layers.map(GpuLayers::from);
    let experts = own.n_cpu_moe.map(CpuMoe::from);
    [
        ("--gpu-layers", other(&requested.gpu_layers, layers, GpuLayers::default())),
        ("--n-cpu-moe", other(&requested.n_cpu_moe, experts, CpuMoe::default())),
        ("--devices", other(&requested.devices, None, Default::default())),
        ("--split-mode", other(&requested.split_mode, None, Default::default())),
        ("--tensor-split", other(&requested.tensor_split, None, Default::default())),
        ("--main-gpu", other(&requested.main_gpu, None, 0)),
        ("--kv-offload", other(&requested.kv_offload, own.kv_offload, true)),
        ("--op-offload", other(&requested.op_offload, own.op_offload, true)),
    ]
    .into_iter()
    .find_map(|(flag, moved)| moved.then_some(flag))
}

impl Settings {
    /// Sees that what was found by tuning goes with what was asked for; [`resolve_tuned`](Self::resolve_tuned) leaves it
    /// out where it does not.
    ///
    /// # Errors
    /// What does not go together.
    pub fn goes_with(requested: &Requested, tuned: &Requested) -> Result<()> {
        check(requested)?;
        check(&requested.or(tuned)).map_err(|why| {
            Error::Usage(format!(
                "the tuning record does not go with what was asked for: {why}; leave one of them out"
            ))
        })
    }
}
