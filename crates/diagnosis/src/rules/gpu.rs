//! Causes related to GPUs.

use build_info::diagnosis::SlowPhase;

use super::finding::{Finding, Rule, Slowdown};
use crate::observation::{LibraryPurpose, Observation};

/// The settings put layers on a GPU, but the program cannot use GPUs.
pub const NO_BACKEND: Rule = Rule { id: "gpu-backend-missing", explains: &[], judge: no_backend };
/// The settings put layers on a GPU, but no driver shows one.
pub const NO_DEVICE: Rule = Rule { id: "gpu-missing", explains: &[], judge: no_device };
/// The program could use a GPU, but has not opened one.
pub const NOT_OPENED: Rule = Rule { id: "gpu-not-opened", explains: &[], judge: not_opened };

/// Rule of thumb for decode: the memory of a GPU is about ten times as fast as that of a CPU.
const GAIN: f64 = 10.0;

/// Returns the number of layers that the settings put on a GPU.
fn layers(o: &Observation) -> Option<String> {
    let layers = o.flags.gpu_layers.filter(|layers| *layers > 0)?;
    let number = if layers == u32::MAX { "all".to_string() } else { layers.to_string() };
    Some(format!("its settings put {number} layers on a GPU"))
}

fn no_backend(o: &Observation) -> Option<Finding> {
    let asked = layers(o).filter(|_| !o.has(LibraryPurpose::Gpu) && o.gpu.devices > 0)?;
    Some(Finding {
        title: "a GPU was requested, but this program does not support GPUs".to_string(),
        phase: SlowPhase::Both,
        slowdown: Slowdown::Estimated(GAIN),
        evidence: vec![
            asked,
            format!("the machine has {} GPU(s)", o.gpu.devices),
            "neither a GPU backend of ggml nor a GPU driver is mapped".to_string(),
        ],
        change: "use a build with CUDA, HIP or Vulkan (cargo xtask build-cuda)".to_string(),
    })
}

fn no_device(o: &Observation) -> Option<Finding> {
    let asked = layers(o).filter(|_| o.gpu.devices == 0)?;
    Some(Finding {
        title: "a GPU was requested, but no driver shows one".to_string(),
        phase: SlowPhase::Both,
        slowdown: Slowdown::Unknown,
        evidence: vec![asked, "there is no /dev/nvidia0, /dev/kfd or /dev/dri/renderD128".to_string()],
        change:
            "install the driver, or pass the GPU to the container (docker run --gpus all); without a GPU, \
                 remove -ngl"
                .to_string(),
    })
}

fn not_opened(o: &Observation) -> Option<Finding> {
    let asked = layers(o).filter(|_| o.has(LibraryPurpose::Gpu) && o.gpu.devices > 0 && !o.gpu.is_open)?;
    let hidden = o
        .environment
        .get("CUDA_VISIBLE_DEVICES")
        .map(|value| format!("its environment has CUDA_VISIBLE_DEVICES={value}"));
    let change = match hidden {
        Some(_) => "start it without CUDA_VISIBLE_DEVICES, or with the number of the GPU",
        None => "look for an error about the driver in its log, and update the driver",
    };
    Some(Finding {
        title: "a GPU was requested, but the process has not opened it".to_string(),
        phase: SlowPhase::Both,
        slowdown: Slowdown::Estimated(GAIN),
        evidence: [asked, "no device file of a GPU is open".to_string()].into_iter().chain(hidden).collect(),
        change: change.to_string(),
    })
}
