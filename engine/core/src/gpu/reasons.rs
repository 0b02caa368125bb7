//! Why no GPU came up: what ggml said, what the driver tells and what the build needs, put together.

use build_info::device::{Cuda, driver_at_least};
use build_info::{Bytes, promised_device};
use host::{Card, ComputeMode, Driver};
use llama::error::GpuReason as Reason;

use crate::runtime_host::RuntimeHost;

/// Below this a context of CUDA alone does not fit: it takes 200 to 600 MiB, by the card and the kernels that are loaded.
const LEAST_MEMORY: Bytes = Bytes::mib(600);

/// All that is known when no device came up.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// What the build needs, if it was made for CUDA.
    pub cuda: Option<Cuda>,
    /// Backends that are part of the program.
    pub backends: Vec<String>,
    /// What they said at their start.
    pub log: Vec<String>,
    /// Why devices that they list cannot be used.
    pub faults: Vec<String>,
    /// What NVIDIA's driver tells.
    pub driver: Driver,
    /// What is to be said of it, each with its mend: among them what `CUDA_VISIBLE_DEVICES` hides.
    pub warnings: Vec<String>,
}

impl Evidence {
    /// What this machine tells. The driver is asked, which can take seconds.
    pub fn gather(runtime_host: &RuntimeHost) -> Self {
        Self {
            backends: llama::backends(),
            log: llama::device_log(),
            faults: llama::faults(),
            ..Self::of(runtime_host, &host::Root::live())
        }
    }

    /// What the record of the build and the machine behind `root` tell.
    pub(super) fn of(runtime_host: &RuntimeHost, root: &host::Root) -> Self {
        let cuda = runtime_host.build.as_ref().and_then(|(_, build)| promised_device(build));
        let (driver, warnings) = host::driver(root);
        Self { cuda: cuda.map(|promise| promise.cuda.clone()), driver, warnings, ..Self::default() }
    }

    /// Whether the program could use an NVIDIA GPU at all.
    fn can_use_cuda(&self) -> bool {
        self.cuda.is_some() || self.backends.iter().any(|name| name == "CUDA")
    }
}

/// What CUDA's runtime says (`cudaGetErrorString`), and what mends it.
const SAID: [(&str, &str); 11] = [
    (
        "driver version is insufficient",
        "the driver is older than this build's toolkit, or there is none: `nvidia-smi` shows the newest CUDA that it knows",
    ),
    (
        "no CUDA-capable device",
        "`nvidia-smi -L` lists what the driver has; in a container, start it with `docker run --gpus all`; look at \
         CUDA_VISIBLE_DEVICES",
    ),
    (
        "busy or unavailable",
        "another process has the GPU for itself, or nobody may compute on it: `nvidia-smi` shows who, and `sudo nvidia-smi \
         -c 0` lets several share it",
    ),
    (
        "holds code for",
        "`anneal info` names the card's architecture: build for it with `cargo xtask build-cuda --cuda-arch …`",
    ),
    (
        "unsupported toolchain",
        "the driver is too old to translate this build's PTX: update it, or build a binary for the card with `cargo xtask \
         build-cuda`",
    ),
    ("out of memory", "others take the GPU's memory: `nvidia-smi` shows who; end them, or wait"),
    (
        "forward compatibility was attempted",
        "a compatibility package's libcuda stands before the driver's, and this GPU does not take it: take its folder off \
         LD_LIBRARY_PATH (`ldconfig -p | grep libcuda`)",
    ),
    (
        "unsupported display driver",
        "libcuda and the loaded driver are of different versions: restart the machine, or the container",
    ),
    (
        "system not yet initialized",
        "the GPUs are linked by NVSwitch and its service does not run: `sudo systemctl start nvidia-fabricmanager`",
    ),
    (
        "MPS",
        "the multi-process service does not answer: `nvidia-cuda-mps-control -d` starts it, or unset CUDA_MPS_PIPE_DIRECTORY",
    ),
    (
        "unknown error",
        "the driver's memory module may be missing: `sudo modprobe nvidia-uvm`; in a container, restart it",
    ),
];

/// Why no device came up, the likeliest first; never nothing.
pub fn reasons(evidence: &Evidence) -> Vec<Reason> {
    let mut reasons = Vec::new();
    if !evidence.can_use_cuda() {
        let backends = evidence.backends.join(", ");
        let what = format!("this build computes on the CPU alone (its backends: {backends})");
        let found = match evidence.driver.cards.first() {
            Some(card) => format!("; this machine has {}", card.gpu.name),
            None => String::new(),
        };
        let mend = match evidence.backends.iter().any(|name| name == "RPC") {
            true => {
                "name workers on other machines with --rpc, build one for the GPU with `cargo xtask build-cuda`, or leave out \
                     --require-gpu"
            }
            false => "build one for the GPU with `cargo xtask build-cuda`, or leave out --require-gpu",
        };
        return vec![Reason::new(what + &found, mend)];
    }
    let driver = &evidence.driver;
    if !driver.is_loaded && driver.cards.is_empty() {
        reasons.push(Reason::new(
            "no NVIDIA driver is loaded on this machine (neither /proc/driver/nvidia/version nor /dev/nvidiactl is there)",
            "install or load it (`sudo modprobe nvidia`); in a container, start it with `docker run --gpus all`; on a \
             machine without such a GPU take a build for its CPU, as `cargo xtask build-native` makes",
        ));
    }
    reasons.extend(evidence.cuda.as_ref().and_then(|cuda| too_old(cuda, driver)));
    // They say what is hidden, refused or lost, each with its mend.
    reasons.extend(evidence.warnings.iter().map(|warning| Reason::new(warning.as_str(), "")));
    for card in &driver.cards {
        reasons.extend(of_card(card, evidence.cuda.as_ref()));
    }
    for fault in &evidence.faults {
        let known = SAID.iter().find(|(words, _)| fault.contains(words));
        reasons.push(Reason::new(fault.as_str(), known.map_or("", |(_, mend)| mend)));
    }
    for line in &evidence.log {
        // CUDA's runtime without a driver calls it too old; what is said above is truer.
        let is_clear = reasons.iter().any(|reason| reason.what.contains("driver"));
        let known = SAID.iter().find(|(words, _)| line.contains(words));
        let mend = match known {
            Some((words, _)) if is_clear && words.contains("driver version") => "",
            Some((_, mend)) => mend,
            None => "",
        };
        reasons.push(Reason::new(format!("ggml said: {}", llama::error::readable(line)), mend));
    }
    if reasons.is_empty() {
        reasons.push(Reason::new(
            "neither the driver nor ggml says what is wrong",
            "`nvidia-smi` shows whether other programs can use the GPU, `anneal info` and --verbose what this one sees",
        ));
    }
    reasons
}

/// Within one major of CUDA every driver runs what every toolkit made; a newer major needs a newer driver (CUDA compatibility
/// guide, "minor version compatibility", whose table names the drivers).
fn too_old(cuda: &Cuda, driver: &Driver) -> Option<Reason> {
    let (major, (knows, minor)) = (cuda.major()?, driver.cuda?);
    if knows >= major {
        return None;
    }
    let version = driver.version.as_deref().unwrap_or("that is loaded");
    let least = driver_at_least(major).unwrap_or("of that CUDA");
    Some(Reason::new(
        format!(
            "the NVIDIA driver {version} knows CUDA {knows}.{minor}, and this build was made with toolkit {}",
            cuda.toolkit
        ),
        format!(
            "update the driver to {least} or later, or build with a toolkit of CUDA {knows} (CUDA_HOME names it, `cargo xtask \
             build-cuda` takes it)"
        ),
    ))
}

/// What keeps a program off one card.
fn of_card(card: &Card, cuda: Option<&Cuda>) -> Vec<Reason> {
    let name = &card.gpu.name;
    let mut reasons = Vec::new();
    match card.mode {
        ComputeMode::Shared => {}
        ComputeMode::Prohibited => reasons.push(Reason::new(
            format!("nobody may compute on {name}: its compute mode is \"prohibited\""),
            "`sudo nvidia-smi -c 0` lets everybody",
        )),
        ComputeMode::Exclusive => reasons.push(Reason::new(
            format!("{name} is for one process at a time (compute mode \"exclusive process\"), and another may have it"),
            "`nvidia-smi` shows which; end it, wait, or let several share the GPU with `sudo nvidia-smi -c 0`",
        )),
    }
    if let Some(used) = card.used {
        let free = Bytes(card.gpu.memory.0.saturating_sub(used.0));
        if card.gpu.memory.0 > 0 && free < LEAST_MEMORY {
            reasons.push(Reason::new(
                format!(
                    "{name} has {free} of {} free, and a program needs some {LEAST_MEMORY} before any model",
                    card.gpu.memory
                ),
                "`nvidia-smi` shows who has it; end them, or wait",
            ));
        }
    }
    let capability = card.gpu.compute_capability.split_once('.');
    let capability = capability.and_then(|(major, minor)| major.parse().ok().zip(minor.parse().ok()));
    if let (Some(cuda), Some((major, minor))) = (cuda, capability)
        && cuda.runs_on((major, minor)) == Some(false)
    {
        reasons.push(Reason::new(
            format!(
                "{name} has compute capability {major}.{minor}, and this build holds code for {} alone",
                cuda.architectures.join(", ")
            ),
            format!("build for it with `cargo xtask build-cuda --cuda-arch {major}{minor}`"),
        ));
    }
    reasons
}
