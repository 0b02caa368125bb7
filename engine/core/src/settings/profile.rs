//! Settings that the profile of a build recommends. These settings only override defaults.

use build_info::{promised_device, words};
use llama::offload::{CpuMoe, Devices, GpuLayers};
use llama::options::{FlashAttention, RequireGpu};

use super::check::check;
use super::options::Requested;
use super::source::{Setting, Source};
use crate::runtime_host::RuntimeHost;

/// Returns the settings that the build's profile recommends: see [`build_info::Defaults`].
pub(super) fn wanted(
    requested: &Requested,
    tuned: &Requested,
    runtime_host: &RuntimeHost,
    warnings: &mut Vec<String>,
) -> Requested {
    let Some(defaults) = runtime_host.defaults() else { return Requested::default() };
    let wanted = Requested {
        gpu_layers: defaults.gpu_layers.map(GpuLayers::from),
        n_cpu_moe: defaults.n_cpu_moe.map(CpuMoe::from),
        kv_offload: defaults.kv_offload,
        op_offload: defaults.op_offload,
        flash_attention: defaults.flash_attention.map(FlashAttention::from),
        ..Requested::default()
    };
    // Flash attention is the only profile setting that can contradict a requested setting.
    let others = Requested { flash_attention: None, ..wanted.clone() };
    match check(&requested.or(tuned).or(&wanted)) {
        Ok(()) => wanted,
        Err(why) => {
            let (what, left) = match check(&requested.or(tuned).or(&others)) {
                Ok(()) => ("the flash attention setting of this build's profile is", others),
                Err(_) => ("the defaults of this build's profile are", Requested::default()),
            };
            // The hint may mention a flag that the profile has set.
            let why = why.to_string();
            let why = words::without_hint(&why);
            warnings
                .push(format!("{what} not used, because of a conflict with the requested settings: {why}"));
            left
        }
    }
}

/// Returns the setting of `--require-gpu`. A GPU build requires a GPU unless the user, the build or its profile says
/// otherwise.
pub(super) fn require_gpu(
    requested: &Requested,
    wanted: &Requested,
    runtime_host: &RuntimeHost,
) -> Setting<RequireGpu> {
    let promised = runtime_host.build.as_ref().is_some_and(|(_, build)| promised_device(build).is_some());
    let layers = requested.gpu_layers.or(wanted.gpu_layers);
    let cpu_will_do = layers == Some(GpuLayers::Some(0)) || requested.devices == Some(Devices::None);
    match (requested.require_gpu, promised && !cpu_will_do) {
        (None, true) => Setting::new(RequireGpu::Yes, Source::BuildInfo),
        (asked, _) => Setting::or_default(requested.asked("require-gpu", asked), RequireGpu::default()),
    }
}
