//! Reads a machine.

use build_info::Host;
use build_info::host::{Gpu, Limits};

use crate::gpu::{self, Driver};
use crate::root::Root;
use crate::{cgroup, cpuid, cpuinfo, system, topology, x86};

/// A machine, and what could not be read of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Detected {
    /// The machine.
    pub host: Host,
    /// One sentence for each reading that failed and matters, fit to be shown to a user.
    pub warnings: Vec<String>,
}

/// The NVIDIA GPUs of the machine behind `root` alone, and what is to be said of them: for a caller that read the rest
/// [without them](Root::without_gpus).
pub fn gpus(root: &Root) -> (Vec<Gpu>, Vec<String>) {
    let mut warnings = Vec::new();
    let gpus = gpu::nvidia(root, &mut warnings);
    (gpus, warnings)
}

/// What NVIDIA's driver on the machine behind `root` tells, and what is to be said of it: for whoever looks for the reason why
/// no GPU can be used.
pub fn driver(root: &Root) -> (Driver, Vec<String>) {
    let mut warnings = Vec::new();
    let driver = gpu::ask(root, &mut warnings);
    (driver, warnings)
}

/// Reads the machine behind `root`.
pub fn detect(root: &Root) -> Detected {
    let mut warnings = Vec::new();
    let leaves = root.cpuid().filter(|_| root.arch() == "x86_64").map(cpuid::Leaves::new);
    // Read at most once, and only if something asks: the kernel may interrupt every CPU to write it.
    let cpuinfo = cpuinfo::Lazy::new(root);

    let cpu = match &leaves {
        Some(leaves) => x86::cpu(leaves),
        None => {
            if root.arch() == "x86_64" {
                warnings.push("cannot tell the CPU's instruction sets: CPUID is not at hand".to_string());
            }
            cpuinfo.get().cpu(root.arch(), &mut warnings)
        }
    };
    let allowed = system::affinity(root, &mut warnings);
    let online = topology::online(root, &cpuinfo, allowed.as_deref(), &mut warnings);
    let topology = topology::read(root, &online, &cpuinfo, leaves.as_ref(), &mut warnings);
    // The mask may name CPUs that are offline.
    let affinity = match allowed {
        Some(allowed) => allowed.into_iter().filter(|cpu| online.binary_search(cpu).is_ok()).collect(),
        None => online,
    };
    let groups = cgroup::limits(root, &mut warnings);
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
