//! Values from the tuning record, and the conditions for using them.

use build_info::words;
use llama::error::{Error, Result};
use llama::offload::{CpuMoe, GpuLayers, Workers};

use super::check::check;
use super::options::Requested;
use super::resolved::Settings;
use crate::runtime_host::RuntimeHost;

/// True if `tuned` can be used. The record was measured without workers, and with the build's default placement. If the
/// record cannot be used, adds the reason to `warnings`.
pub(super) fn counts(
    tuned: &Requested,
    requested: &Requested,
    runtime_host: &RuntimeHost,
    warnings: &mut Vec<String>,
) -> bool {
    let reason = if requested.workers.as_ref().is_some_and(|Workers(workers)| !workers.is_empty()) {
        Some("the tuning record is not used: it was measured without workers (--rpc)".to_string())
    } else if let Some(flag) = moved(requested, runtime_host) {
        Some(format!(
            "the tuning record is not used: it was measured without {flag}, which changes the placement of the model"
        ))
    } else {
        check(&requested.or(tuned)).err().map(|why| {
            // The hint may mention a flag that the user has not given.
            let why = why.to_string();
            let why = words::without_hint(&why);
            format!("the tuning record contradicts the requested settings and is not used: {why}")
        })
    };
    let counts = reason.is_none();
    warnings.extend(reason);
    counts
}

/// Returns a requested flag that changes a GPU build's default placement of layers, caches or operations, if there is
/// one.
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
    /// Checks that the tuned values are compatible with the requested values. [`resolve_tuned`](Self::resolve_tuned)
    /// ignores incompatible tuned values.
    ///
    /// # Errors
    /// If two values are incompatible.
    pub fn goes_with(requested: &Requested, tuned: &Requested) -> Result<()> {
        check(requested)?;
        check(&requested.or(tuned)).map_err(|why| {
            let why = why.to_string();
            let why = words::without_hint(&why);
            Error::Usage(format!(
                "the tuning record contradicts the requested settings: {why}\nhint: remove the flag, or ignore \
                 the record by omitting --tuned"
            ))
        })
    }
}
