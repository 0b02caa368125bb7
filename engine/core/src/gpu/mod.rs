//! No silent fallback: a build that was made for a GPU, or a user who asks for one, is told where there is none, and why,
//! rather than served by the CPU.

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

/// What a build promises, what came up of it, and why not more did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GpuState {
    /// What the build was made for, by its record: `CUDA 13.5 for 89-real`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promised: Option<String>,
    /// The devices that came up, by their descriptions.
    pub devices: Vec<String>,
    /// Why there is none, where one was promised: what is wrong and what mends it, the likeliest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<Reason>,
}

/// Looks at what came up. Where a promised device did not, the driver is asked, which can take seconds.
pub fn state(runtime_host: &RuntimeHost) -> GpuState {
    let devices = placement::devices();
    let promised = runtime_host.build.as_ref().and_then(|(_, build)| promised_device(build));
    let reasons = match devices.is_empty() && promised.is_some() {
        true => reasons(&Evidence::gather(runtime_host)),
        false => Vec::new(),
    };
    GpuState { promised: promised.map(|promise| promise.to_string()), devices, reasons }
}

/// Sees, before `path` is loaded, that there is a device where `settings` require one.
///
/// # Errors
/// [`Error::NoGpu`]
pub fn require_device(path: &Path, settings: &Settings, runtime_host: &RuntimeHost) -> Result<()> {
    require_device_for(&format!("run {}", path.display()), settings, runtime_host)
}

/// The same for whoever cannot `what`, after "cannot".
pub fn require_device_for(what: &str, settings: &Settings, runtime_host: &RuntimeHost) -> Result<()> {
    if settings.require_gpu.value == RequireGpu::No {
        warn_of_lost_promise(settings, runtime_host);
        return Ok(());
    }
    let promised = runtime_host.build.as_ref().and_then(|(_, build)| promised_device(build));
    let devices = came_up(settings);
    if !devices.is_empty() {
        // A worker's, say, is a device as well; that the own one is missing would go unnoticed.
        let is_unasked = settings.devices.value == Devices::Auto;
        if promised.is_some() && is_unasked && !devices.iter().any(|device| device.backend == "CUDA") {
            let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
            let why = reasons(&Evidence::gather(runtime_host))
                .into_iter()
                .next()
                .map_or(String::new(), |why| why.to_string());
            llama::notice::warn(&format!(
                "no CUDA device came up, and {} takes its place: {why}",
                names.join(", ")
            ));
        }
        return Ok(());
    }
    let what = format!("cannot {what}: no GPU came up, and {}", wanted(settings, runtime_host));
    Err(refusal(&what, reasons(&Evidence::gather(runtime_host)), ON_THE_CPU))
}

/// Devices that `settings` may use. Others are not tried: CUDA would make a context on them.
fn came_up(settings: &Settings) -> Vec<Device> {
    let mut devices = llama::devices();
    devices.retain(|device| match &settings.devices.value {
        Devices::None => device.kind == DeviceKind::Gpu,
        asked => offload::may_use(asked, device) && device.fault().is_none(),
    });
    devices
}

/// Says once that the CPU computes what a program for NVIDIA's GPUs was started for: without its record nothing promises one, and
/// nothing is refused.
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
                "this program is for NVIDIA's GPUs, and none came up{why}: the CPU computes. That is refused where build_info.json \
                 lies beside the program as its build made it, or with --require-gpu"
            ));
        });
    }
}

/// Sees, before `path` is loaded as `plan` says, that at least a layer finds room on a device where `settings` require one.
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
    let what = format!(
        "cannot run {path}: {devices} came up and has no room for a layer, and {}",
        wanted(settings, runtime_host)
    );
    let mend = "end what else is on it (`nvidia-smi` shows that), lower -c and -ub, make the cache smaller with -ctk q8_0 \
                -ctv q8_0, take a smaller quantisation, or keep less free with --fit-target";
    Err(refusal(&what, vec![Reason::new(plan.to_string(), mend)], ON_THE_CPU))
}

/// Sees that `model` is where `settings` require it to be: a part of it on devices, or (`full`) all of its layers, its cache and
/// every operation that generates a token, for which a token is evaluated in a context of its own.
///
/// # Errors
/// [`Error::NoGpu`], and those of that evaluation.
pub fn require(model: &Arc<Model>, settings: &Settings, runtime_host: &RuntimeHost) -> Result<()> {
    let require = settings.require_gpu.value;
    if require == RequireGpu::No {
        return Ok(());
    }
    let devices = || placement::described(&came_up(settings)).join(", ");
    let path = model.path().display();
    let wanted = wanted(settings, runtime_host);
    if model.on_devices() == 0 {
        let what = format!(
            "cannot run {path}: {} came up, and nothing of the model lies there, and {wanted}",
            devices()
        );
        let none = format!("all {} of weights are on the host", Bytes(model.size()));
        let more = "let layers go to the device with --gpu-layers, as many as its memory holds, and leave out --devices none";
        return Err(refusal(&what, vec![Reason::new(none, more)], ON_THE_CPU));
    }
    // Embeddings have no decode: where their weights lie is all there is to see.
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
        "cannot run {path}: {} came up with {} of {} layers, and {wanted}",
        devices(),
        layers.on_devices,
        layers.all
    );
    let reasons = faults.into_iter().map(|fault| Reason::new(fault.what, fault.mend)).collect();
    let leave = "--require-gpu takes it in part there, --require-gpu=no leaves it to the CPU";
    Err(refusal(&what, reasons, leave))
}

/// Says, before the model of `parts` is loaded, that cuBLAS is not here where its prompts will take it: ggml ends the process when
/// it first multiplies with it.
pub fn warn_of_cublas(parts: &[&GgufFile], placed: &Placed, settings: &Settings, runtime_host: &RuntimeHost) {
    let is_here = placed.takers.iter().any(|device| device.backend == "CUDA");
    let cuda = runtime_host.build.as_ref().and_then(|(_, build)| build.cuda.as_ref());
    let (Some(cuda), true, true) = (cuda, is_here, placed.is_offloaded()) else { return };
    let Some(what) = takes_cublas(parts, settings.flash_attention.value, &cuda.mul_mat) else { return };
    if let Some(why) = llama::missing_cublas() {
        llama::notice::warn(&format!(
            "cuBLAS is not here ({why}), and {what} take it: a prompt of more than a few tokens will end the program. Install it \
             (package nvidia-cublas of pip, or libcublas of NVIDIA's packages) and name its folder in LD_LIBRARY_PATH"
        ));
    }
}

/// What of the model in `parts` is multiplied by cuBLAS where there are many tokens: see `ggml_cuda_mul_mat` of ggml-cuda.cu.
fn takes_cublas(parts: &[&GgufFile], flash_attention: FlashAttention, mul_mat: &str) -> Option<String> {
    if mul_mat == "cublas" {
        return Some("this build's matrices".to_string());
    }
    if flash_attention == FlashAttention::Off {
        return Some("the products of attention without flash attention (-fa off)".to_string());
    }
    let mut tensors = parts.iter().flat_map(|part| part.tensors());
    let first = tensors.find(|tensor| is_float_product(&tensor.name, &tensor.dims, tensor.kind))?;
    Some(format!("matrices that are not quantised ({} is {})", printable(&first.name), first.kind))
}

/// Whether states are multiplied with a tensor, and it is not quantised. Embeddings are looked up; those that serve as the output
/// as well are quantised where all else is.
fn is_float_product(name: &str, dims: &[u64], kind: GgmlType) -> bool {
    // Of recurrent layers, which llama.cpp never quantises: states are convolved with them.
    let is_convolved = ["ssm_conv1d", "shortconv.conv", "ssm_a"].iter().any(|part| name.contains(part));
    !is_convolved
        && dims.get(1).is_some_and(|rows| *rows > 1)
        && !name.contains("_embd")
        && !kind.is_quantised()
}

/// Who wants a GPU, after "and".
fn wanted(settings: &Settings, runtime_host: &RuntimeHost) -> String {
    let promised =
        runtime_host.build.as_ref().and_then(|(path, build)| Some((path, promised_device(build)?)));
    let what = match settings.require_gpu.value {
        RequireGpu::Full => "--require-gpu=full wants all of it on one",
        _ => "--require-gpu wants one",
    };
    match (settings.require_gpu.source, promised) {
        (Source::BuildInfo, Some((path, promise))) => {
            format!("this build was made for one ({promise}, says {})", path.display())
        }
        _ => what.to_string(),
    }
}

/// A refusal; `leave` is what lets it run all the same.
fn refusal(what: &str, reasons: Vec<Reason>, leave: &str) -> Error {
    Error::NoGpu { what: format!("{what}; {leave}"), because: Reason::chain(reasons).map(Box::new) }
}

/// What lets it run without a GPU.
const ON_THE_CPU: &str = "--require-gpu=no leaves it to the CPU";
