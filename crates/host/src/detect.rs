//! Detection of a machine's properties.

use build_info::host::{Gpu, Limits};
use build_info::{Bytes, Host};

use crate::gpu::{self, Driver};
use crate::root::Root;
use crate::{cgroup, cpuid, cpuinfo, system, topology, x86};

/// Description of a machine, with warnings about missing readings.
#[derive(Clone, Debug, PartialEq)]
pub struct Detected {
    /// Description of the machine.
    pub host: Host,
    /// Warnings for the user, one sentence for each important reading that failed.
    pub warnings: Vec<String>,
}

/// Returns only the NVIDIA GPUs of the machine behind `root`, and warnings. Callers use this function after reading
/// the rest of the machine [without GPUs](Root::without_gpus).
pub fn gpus(root: &Root) -> (Vec<Gpu>, Vec<String>) {
    let mut warnings = Vec::new();
    let gpus = gpu::nvidia(root, &mut warnings);
    (gpus, warnings)
}

/// Returns the state of NVIDIA's driver on the machine behind `root`, and warnings, to diagnose why no GPU can be
/// used.
pub fn driver(root: &Root) -> (Driver, Vec<String>) {
    let mut warnings = Vec::new();
    let driver = gpu::ask(root, &mut warnings);
    (driver, warnings)
}

/// Limits of another process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessLimits {
    /// Affinity mask, CPU quota and memory limit. The mask may contain CPUs that are offline.
    pub limits: Limits,
    /// Size in bytes above which the kernel slows the process's control group down and reclaims its memory
    /// (`memory.high`).
    pub memory_high: Option<Bytes>,
}

/// Returns the limits of process `pid` on the machine behind `root`, and warnings.
pub fn limits_of(root: &Root, pid: u32) -> (ProcessLimits, Vec<String>) {
    let (mut warnings, process) = (Vec::new(), pid.to_string());
    let affinity = system::affinity(root, &process, &mut warnings).unwrap_or_default();
    let groups = cgroup::limits(root, &process, &mut warnings);
    let limits = Limits { affinity, cpu_quota: groups.cpu_quota, memory: groups.memory };
    (ProcessLimits { limits, memory_high: groups.memory_high }, warnings)
}

/// Detects the properties of the machine behind `root`.
pub fn detect(root: &Root) -> Detected {
    let mut warnings = Vec::new();
    let leaves = root.cpuid().filter(|_| root.arch() == "x86_64").map(cpuid::Leaves::new);
    // The file is read at most once, and only if needed, because the kernel may interrupt every CPU to produce it.
    let cpuinfo = cpuinfo::Lazy::new(root);

    let cpu = match &leaves {
        Some(leaves) => x86::cpu(leaves),
        None => {
            if root.arch() == "x86_64" {
                warnings.push("cannot detect the CPU's instruction sets: CPUID is not available".to_string());
            }
            cpuinfo.get().cpu(root.arch(), &mut warnings)
        }
    };
    let allowed = system::affinity(root, "self", &mut warnings);
    let online = topology::online(root, &cpuinfo, allowed.as_deref(), &mut warnings);
    let topology = topology::read(root, &online, &cpuinfo, leaves.as_ref(), &mut warnings);
    // The mask may contain CPUs that are offline.
    let affinity = match allowed {
        Some(allowed) => allowed.into_iter().filter(|cpu| online.binary_search(cpu).is_ok()).collect(),
        None => online,
    };
    let groups = cgroup::limits(root, "self", &mut warnings);
    let host = Host {
        arch: root.arch().to_string(),
        hostname: system::hostname(root),
        os: system::os(root, leaves.as_ref().and_then(x86::hypervisor)),
        cpu,
        topology,
        memory: system::memory(root, &mut warnings),
        limits: Limits { affinity, cpu_quota: groups.cpu_quota, memory: groups.memory },
        gpus: gpu::nvidia(root, &mut warnings),
    };
    Detected { host, warnings }
}
