//! Detection of a missing GPU. A GPU build, or the user, may require a GPU. If no GPU is available in such a case,
//! Anneal reports an error with the reason instead of silently falling back to the CPU.

mod reasons;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::{Arc, Once};

use build_info::words::printable;
use build_info::{Bytes, promised_device};
use gguf::{GgmlType, GgufFile};
use llama::error::{Error, GpuReason as Reason, Result};
use llama::fit::LayerPlan;
use llama::offload::{self, Devices, GpuLayers, Placed};
use llama::options::{FlashAttention, RequireGpu};
use llama::{Device, DeviceKind, Model};
use serde::Serialize;

use crate::placement;
use crate::runtime_host::RuntimeHost;
use crate::settings::{Settings, Source};
pub use reasons::{Evidence, reasons};

/// Devices that a build promises, devices that are available, and the reasons why promised devices are missing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GpuState {
    /// Description of the GPUs that the build was made for, from its record, such as `CUDA 13.5 for 89-real`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promised: Option<String>,
    /// Descriptions of the available devices.
    pub devices: Vec<String>,
    /// Reasons why a promised device is missing, with remedies, the most likely reason first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<Reason>,
}

/// Detects the available devices. If a promised device is missing, queries the driver, which can take seconds.
pub fn state(runtime_host: &RuntimeHost) -> GpuState {
    let devices = placement::devices();
    let promised = runtime_host.build.as_ref().and_then(|(_, build)| promised_device(build));
    let reasons = match devices.is_empty() && promised.is_some() {
        true => reasons(&Evidence::gather(runtime_host)),
        false => Vec::new(),
    };
    GpuState { promised: promised.map(|promise| promise.to_string()), devices, reasons }
}

/// Checks, before `path` is loaded, that a device is available if `settings` require one.
///
/// # Errors
/// [`Error::NoGpu`]
pub fn require_device(path: &Path, settings: &Settings, runtime_host: &RuntimeHost) -> Result<()> {
    require_device_for(&format!("run {}", path.display()), settings, runtime_host)
}

/// Makes the check of [`require_device`] for any operation. `what` describes the operation, in words that follow
/// "cannot".
///
/// # Errors
/// [`Error::NoGpu`]
pub fn require_device_for(what: &str, settings: &Settings, runtime_host: &RuntimeHost) -> Result<()> {
    if settings.require_gpu.value == RequireGpu::No {
        warn_of_lost_promise(settings, runtime_host);
        return Ok(());
    }
    let promised = runtime_host.build.as_ref().and_then(|(_, build)| promised_device(build));
    let devices = came_up(settings);
    if !devices.is_empty() {
        // A worker's device satisfies the requirement, but must not hide that the machine's own GPU is missing.
        let is_unasked = settings.devices.value == Devices::Auto;
        if promised.is_some() && is_unasked && !devices.iter().any(|device| device.backend == "CUDA") {
            let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
            let why = reasons(&Evidence::gather(runtime_host))
                .into_iter()
                .next()
                .map_or(String::new(), |why| why.to_string());
            llama::notice::warn(&format!(
                "no CUDA device is available, so {} is used instead: {why}",
                names.join(", ")
            ));
        }
        return Ok(());
    }
    let what = format!("cannot {what}: no GPU is available, but {}", wanted(settings, runtime_host));
    Err(refusal(&what, reasons(&Evidence::gather(runtime_host)), ON_THE_CPU))
}

/// Returns the devices that `settings` allow and that can be used. Other devices are not queried, because CUDA would
/// create a context on them.
fn came_up(settings: &Settings) -> Vec<Device> {
    let mut devices = llama::devices();
    devices.retain(|device| match &settings.devices.value {
        Devices::None => device.kind == DeviceKind::Gpu,
        asked => offload::may_use(asked, device) && device.fault().is_none(),
    });
    devices
}

/// Warns once if a program that was built for NVIDIA GPUs computes on the CPU. Without a build record, no GPU is
/// promised, so the run continues.
fn warn_of_lost_promise(settings: &Settings, runtime_host: &RuntimeHost) {
    static ONCE: Once = Once::new();
    let is_unasked = settings.require_gpu.source == Source::Default
        && settings.devices.value != Devices::None
        && settings.gpu_layers.value != GpuLayers::Some(0);
    if runtime_host.build.is_some() || !is_unasked || !llama::backends().iter().any(|name| name == "CUDA") {
        return;
    }
    if came_up(settings).is_empty() {
        ONCE.call_once(|| {
            let why = reasons(&Evidence::gather(runtime_host)).into_iter().next();
            let why = why.map_or(String::new(), |why| format!(" ({why})"));
            llama::notice::warn(&format!(
                "this program was built for NVIDIA GPUs, but none is available{why}; the CPU is used instead\nhint: to \
                 make a missing GPU an error, use --require-gpu"
            ));
        });
    }
}

/// Checks, before `path` is loaded according to `plan`, that at least one layer fits on a device if `settings` require
/// a device.
///
/// # Errors
/// [`Error::NoGpu`]
pub fn require_room(
    path: &Path,
    plan: &LayerPlan,
    settings: &Settings,
    runtime_host: &RuntimeHost,
) -> Result<()> {
    if settings.require_gpu.value == RequireGpu::No || plan.layers > 0 {
        return Ok(());
    }
    let (devices, path) = (placement::described(&came_up(settings)).join(", "), path.display());
    let what =
        format!("cannot run {path}: no layer fits on {devices}, but {}", wanted(settings, runtime_host));
    let mend = "end other processes on the GPU (`nvidia-smi` lists them), lower -c and -ub, make the cache smaller \
                with -ctk q8_0 -ctv q8_0, use a smaller quantisation, or lower --fit-target";
    Err(refusal(&what, vec![Reason::new(plan.to_string(), mend)], ON_THE_CPU))
}

/// Checks that devices hold as much of `model` as `settings` require. By default, part of the model is enough; `full`
/// requires all layers, the whole cache and every decode operation. For `full`, a token is evaluated in a separate
/// context.
///
/// # Errors
/// [`Error::NoGpu`], and errors of the evaluation.
pub fn require(model: &Arc<Model>, settings: &Settings, runtime_host: &RuntimeHost) -> Result<()> {
    let require = settings.require_gpu.value;
    if require == RequireGpu::No {
        return Ok(());
    }
    let devices = || placement::described(&came_up(settings)).join(", ");
    let path = model.path().display();
    let wanted = wanted(settings, runtime_host);
    if model.on_devices() == 0 {
        let what = format!("cannot run {path}: no part of the model is on {}, but {wanted}", devices());
        let none = format!("all {} of weights are on the host", Bytes(model.size()));
        let more = "remove --devices none, and use --gpu-layers to put as many layers on the device as fit";
        return Err(refusal(&what, vec![Reason::new(none, more)], ON_THE_CPU));
    }
    // A model for embeddings has no decode phase, so only the placement of its weights is checked.
    if require != RequireGpu::Full || !model.is_causal() {
        return Ok(());
    }
    let report = placement::observe_decode(model, settings, runtime_host)?;
    let faults = report.faults();
    if faults.is_empty() {
        return Ok(());
    }
    let layers = report.layers;
    let what = format!(
        "cannot run {path}: {} has only {} of {} layers, but {wanted}",
        devices(),
        layers.on_devices,
        layers.all
    );
    let reasons = faults.into_iter().map(|fault| Reason::new(fault.what, fault.mend)).collect();
    let leave =
        "use --require-gpu if part of the model on the GPU is enough, or --require-gpu=no to allow the CPU";
    Err(refusal(&what, reasons, leave))
}

/// Warns, before the model in `parts` is loaded, if evaluating prompts needs cuBLAS and cuBLAS is missing. Without this
/// warning, ggml ends the process at the first multiplication with cuBLAS.
pub fn warn_of_cublas(parts: &[&GgufFile], placed: &Placed, settings: &Settings, runtime_host: &RuntimeHost) {
    let is_here = placed.takers.iter().any(|device| device.backend == "CUDA");
    let cuda = runtime_host.build.as_ref().and_then(|(_, build)| build.cuda.as_ref());
    let (Some(cuda), true, true) = (cuda, is_here, placed.is_offloaded()) else { return };
    let Some(what) = takes_cublas(parts, settings.flash_attention.value, &cuda.mul_mat) else { return };
    if let Some(why) = llama::missing_cublas() {
        llama::notice::warn(&format!(
            "cuBLAS is missing ({why}), but {what} need it: a prompt of more than a few tokens will abort \
            the program\n\
             hint: install cuBLAS (pip package nvidia-cublas, or NVIDIA's package libcublas) and add its folder to \
             LD_LIBRARY_PATH"
        ));
    }
}

/// Describes the tensors in `parts` that cuBLAS multiplies in large batches (see `ggml_cuda_mul_mat` in
/// ggml-cuda.cu). Returns `None` if cuBLAS multiplies no tensor.
fn takes_cublas(parts: &[&GgufFile], flash_attention: FlashAttention, mul_mat: &str) -> Option<String> {
    if mul_mat == "cublas" {
        return Some("this build's matrix products".to_string());
    }
    if flash_attention == FlashAttention::Off {
        return Some("the matrix products of attention without flash attention (-fa off)".to_string());
    }
    let mut tensors = parts.iter().flat_map(|part| part.tensors());
    let first = tensors.find(|tensor| is_float_product(&tensor.name, &tensor.dims, tensor.kind))?;
    Some(format!("matrices that are not quantised ({} is {})", printable(&first.name), first.kind))
}

/// True if the tensor is used in a matrix product and is not quantised. Embeddings are only looked up. Embeddings that
/// also serve as the output matrix are quantised if the other tensors are.
fn is_float_product(name: &str, dims: &[u64], kind: GgmlType) -> bool {
    // Tensors of recurrent layers that llama.cpp uses for convolutions and never quantises.
    let is_convolved = ["ssm_conv1d", "shortconv.conv", "ssm_a"].iter().any(|part| name.contains(part));
    !is_convolved
        && dims.get(1).is_some_and(|rows| *rows > 1)
        && !name.contains("_embd")
        && !kind.is_quantised()
}

/// Describes the setting that requires a GPU, in words that follow "but".
fn wanted(settings: &Settings, runtime_host: &RuntimeHost) -> String {
    let promised =
        runtime_host.build.as_ref().and_then(|(path, build)| Some((path, promised_device(build)?)));
    let what = match settings.require_gpu.value {
        RequireGpu::Full => "--require-gpu=full requires the whole model on a GPU",
        _ => "--require-gpu requires a GPU",
    };
    match (settings.require_gpu.source, promised) {
        (Source::BuildInfo, Some((path, promise))) => {
            format!("this build was made for a GPU ({promise}, according to {})", path.display())
        }
        _ => what.to_string(),
    }
}

/// Creates the error for a missing GPU; `leave` describes how to run without one.
fn refusal(what: &str, reasons: Vec<Reason>, leave: &str) -> Error {
    Error::NoGpu { what: format!("{what}; {leave}"), because: Reason::chain(reasons).map(Box::new) }
}

/// Hint for a missing GPU: the flag that allows a run without a GPU.
const ON_THE_CPU: &str = "--require-gpu=no allows the CPU";
