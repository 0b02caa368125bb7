//! Reasons why no GPU is available, derived from ggml's messages, the driver and the build's requirements.

use build_info::device::{Cuda, driver_at_least};
use build_info::{Bytes, promised_device};
use host::{Card, ComputeMode, Driver};
use llama::error::GpuReason as Reason;

use crate::runtime_host::RuntimeHost;

/// Minimum free memory for a CUDA context. A context needs 200 to 600 MiB, depending on the GPU and the loaded
/// kernels.
const LEAST_MEMORY: Bytes = Bytes::mib(600);

/// Facts about the machine and the build, collected if no device is available.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// CUDA version and architectures that the build needs; `None` if the build was not made for CUDA.
    pub cuda: Option<Cuda>,
    /// Backends that the program contains.
    pub backends: Vec<String>,
    /// Messages of the backends at start-up.
    pub log: Vec<String>,
    /// Reasons why listed devices cannot be used.
    pub faults: Vec<String>,
    /// State of NVIDIA's driver.
    pub driver: Driver,
    /// Warnings with remedies, including warnings about GPUs that `CUDA_VISIBLE_DEVICES` hides.
    pub warnings: Vec<String>,
}

impl Evidence {
    /// Collects the evidence on this machine. Queries the driver, which can take seconds.
    pub fn gather(runtime_host: &RuntimeHost) -> Self {
        Self {
            backends: llama::backends(),
            log: llama::device_log(),
            faults: llama::faults(),
            ..Self::of(runtime_host, &host::Root::live())
        }
    }

    /// Collects the evidence from the build record and the machine at `root`.
    pub(super) fn of(runtime_host: &RuntimeHost, root: &host::Root) -> Self {
        let cuda = runtime_host.build.as_ref().and_then(|(_, build)| promised_device(build));
        let (driver, warnings) = host::driver(root);
        Self { cuda: cuda.map(|promise| promise.cuda.clone()), driver, warnings, ..Self::default() }
    }

    /// True if the program can use NVIDIA GPUs at all.
    fn can_use_cuda(&self) -> bool {
        self.cuda.is_some() || self.backends.iter().any(|name| name == "CUDA")
    }
}

/// Messages of the CUDA runtime (`cudaGetErrorString`), with their remedies.
const SAID: [(&str, &str); 11] = [
    (
        "driver version is insufficient",
        "the driver is missing or older than this build's toolkit: `nvidia-smi` shows the newest CUDA version that the \
         driver supports",
    ),
    (
        "no CUDA-capable device",
        "list the driver's GPUs with `nvidia-smi -L`, and check CUDA_VISIBLE_DEVICES; start a container with \
        `docker run --gpus all`",
    ),
    (
        "busy or unavailable",
        "another process uses the GPU exclusively, or the GPU's compute mode is \"prohibited\": `nvidia-smi` shows both, \
         and `sudo nvidia-smi -c 0` lets several processes share the GPU",
    ),
    (
        "has code only for",
        "build for the GPU's architecture, which `anneal info` shows, with `cargo xtask build-cuda --cuda-arch …`",
    ),
    (
        "unsupported toolchain",
        "the driver is too old to translate this build's PTX: update it, or build a binary for the GPU with `cargo \
         xtask build-cuda`",
    ),
    ("out of memory", "other processes use the GPU's memory: end them, or wait (`nvidia-smi` lists them)"),
    (
        "forward compatibility was attempted",
        "a compatibility package's libcuda is loaded before the driver's, and this GPU does not support it: remove \
         its folder from LD_LIBRARY_PATH (`ldconfig -p | grep libcuda`)",
    ),
    (
        "unsupported display driver",
        "libcuda and the loaded driver have different versions: restart the machine, or the container",
    ),
    (
        "system not yet initialized",
        "the GPUs are linked by NVSwitch, but the fabric manager is not running: start it with `sudo systemctl start \
         nvidia-fabricmanager`",
    ),
    (
        "MPS",
        "the multi-process service (MPS) does not respond: start it with `nvidia-cuda-mps-control -d`, or unset \
         CUDA_MPS_PIPE_DIRECTORY",
    ),
    (
        "unknown error",
        "the driver's memory module may be missing: load it with `sudo modprobe nvidia-uvm`, and then restart any \
         container",
    ),
];

/// Returns the reasons why no device is available, the most likely reason first. The list is never empty.
pub fn reasons(evidence: &Evidence) -> Vec<Reason> {
    let mut reasons = Vec::new();
    if !evidence.can_use_cuda() {
        let backends = evidence.backends.join(", ");
        let what = format!("this build supports only the CPU (its backends: {backends})");
        let found = match evidence.driver.cards.first() {
            Some(card) => format!("; this machine has {}", card.gpu.name),
            None => String::new(),
        };
        let mend = match evidence.backends.iter().any(|name| name == "RPC") {
            true => {
                "use workers on other machines with --rpc, make a GPU build with `cargo xtask build-cuda`, or remove \
                 --require-gpu"
            }
            false => "make a GPU build with `cargo xtask build-cuda`, or remove --require-gpu",
        };
        return vec![Reason::new(what + &found, mend)];
    }
    let driver = &evidence.driver;
    if !driver.is_loaded && driver.cards.is_empty() {
        reasons.push(Reason::new(
            "no NVIDIA driver is loaded on this machine (neither /proc/driver/nvidia/version nor /dev/nvidiactl \
             exists)",
            "install the driver or load it (`sudo modprobe nvidia`), and start a container with `docker run \
            --gpus all`; without an NVIDIA GPU, use a CPU build (`cargo xtask build-native`)",
        ));
    }
    reasons.extend(evidence.cuda.as_ref().and_then(|cuda| too_old(cuda, driver)));
    // The driver's warnings list hidden, refused and lost GPUs, with remedies.
    reasons.extend(evidence.warnings.iter().map(|warning| Reason::new(warning.as_str(), "")));
    for card in &driver.cards {
        reasons.extend(of_card(card, evidence.cuda.as_ref()));
    }
    for fault in &evidence.faults {
        let known = SAID.iter().find(|(words, _)| fault.contains(words));
        reasons.push(Reason::new(fault.as_str(), known.map_or("", |(_, mend)| mend)));
    }
    for line in &evidence.log {
        // Without a driver, the CUDA runtime reports that the driver is too old. The reason found above is more
        // accurate.
        let is_clear = reasons.iter().any(|reason| reason.what.contains("driver"));
        let known = SAID.iter().find(|(words, _)| line.contains(words));
        let mend = match known {
            Some((words, _)) if is_clear && words.contains("driver version") => "",
            Some((_, mend)) => mend,
            None => "",
        };
        reasons.push(Reason::new(format!("ggml reported: {}", llama::error::readable(line)), mend));
    }
    if reasons.is_empty() {
        reasons.push(Reason::new(
            "neither the driver nor ggml reports a reason",
            "check the GPU with `nvidia-smi`, and run `anneal info --verbose` to see what this program detects",
        ));
    }
    reasons
}

/// Returns a reason if the driver is too old. A driver runs programs from every toolkit of the same CUDA major
/// version. A newer major version needs a newer driver: see the table of drivers under "minor version
/// compatibility" in the CUDA compatibility guide.
fn too_old(cuda: &Cuda, driver: &Driver) -> Option<Reason> {
    let (major, (knows, minor)) = (cuda.major()?, driver.cuda?);
    if knows >= major {
        return None;
    }
    let version = driver.version.as_deref().unwrap_or("that is loaded");
    let least = driver_at_least(major).unwrap_or("the version of that toolkit");
    Some(Reason::new(
        format!(
            "the NVIDIA driver {version} supports CUDA {knows}.{minor}, but this build was made with CUDA toolkit {}",
            cuda.toolkit
        ),
        format!(
            "update the driver to {least} or later, or build with a CUDA {knows} toolkit (set CUDA_HOME \
             to its folder for `cargo xtask build-cuda`)"
        ),
    ))
}

/// Returns the reasons why a program cannot use the GPU `card`.
fn of_card(card: &Card, cuda: Option<&Cuda>) -> Vec<Reason> {
    let name = &card.gpu.name;
    let mut reasons = Vec::new();
    match card.mode {
        ComputeMode::Shared => {}
        ComputeMode::Prohibited => reasons.push(Reason::new(
            format!("no process may compute on {name}: its compute mode is \"prohibited\""),
            "allow processes with `sudo nvidia-smi -c 0`",
        )),
        ComputeMode::Exclusive => reasons.push(Reason::new(
            format!("{name} serves one process at a time (compute mode \"exclusive process\"), and another process \
                     may be using it"),
            "end the other process (`nvidia-smi` lists it), wait, or let several processes share the GPU with `sudo \
             nvidia-smi -c 0`",
        )),
    }
    if let Some(used) = card.used {
        let free = Bytes(card.gpu.memory.0.saturating_sub(used.0));
        if card.gpu.memory.0 > 0 && free < LEAST_MEMORY {
            reasons.push(Reason::new(
                format!(
                    "{name} has {free} of {} free, but a program needs about {LEAST_MEMORY} before it loads a model",
                    card.gpu.memory
                ),
                "end the processes that use the GPU's memory (`nvidia-smi` lists them), or wait",
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
                "{name} has compute capability {major}.{minor}, but this build has code only for {}",
                cuda.architectures.join(", ")
            ),
            format!("build for this GPU with `cargo xtask build-cuda --cuda-arch {major}{minor}`"),
        ));
    }
    reasons
}
