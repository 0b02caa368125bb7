//! The machine a build is planned for, or an engine runs on.
//!
//! A [`Host`] is plain data: the `host` crate fills it from a live machine, `fixtures/hosts` holds others.
//! Whatever cannot be told on an architecture or a system is `None` or empty, never guessed.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// One machine, as seen by this process: hardware, and what the process may use of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Host {
    /// `x86_64`, `aarch64`, …, as `std::env::consts::ARCH` spells it.
    pub arch: String,
    /// Network name. Left out with `--no-hostname`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Operating system.
    pub os: Os,
    /// The processor.
    pub cpu: Cpu,
    /// Packages, cores, SMT siblings, NUMA nodes.
    pub topology: Topology,
    /// Main memory.
    pub memory: Memory,
    /// What affinity and control groups leave of it to this process.
    pub limits: Limits,
    /// NVIDIA GPUs that the driver shows.
    #[serde(default)]
    pub gpus: Vec<Gpu>,
}

/// Operating system and what it runs on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Os {
    /// `linux`, `macos`, …
    pub family: String,
    /// `ID` of os-release: `debian`, `fedora`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distribution: Option<String>,
    /// `VERSION_ID` of os-release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Kernel release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Hypervisor, where the CPU names one: `KVM`, `VMware`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<String>,
}

/// The processor, without its arrangement into cores.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cpu {
    /// `GenuineIntel`, `AuthenticAMD`, `ARM`, …
    pub vendor: String,
    /// Marketing name.
    pub name: String,
    /// Display family (CPUID leaf 1, extended family added).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<u32>,
    /// Display model (CPUID leaf 1, extended model added); the part number on ARM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<u32>,
    /// Stepping; the revision on ARM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stepping: Option<u32>,
    /// Instruction sets that a program may use: the CPU has them and the operating system saves their
    /// registers (XCR0). Names as in `/proc/cpuinfo` and `-m` options, lower case, `_` between words:
    /// `avx2`, `avx512_vnni`, `amx_int8`.
    pub features: BTreeSet<String>,
    /// Instruction sets that the CPU has but the operating system does not enable.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub disabled_features: BTreeSet<String>,
    /// x86-64 psABI level 1 to 4 that `features` reach; absent on other architectures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x86_64_level: Option<u8>,
}

impl Host {
    /// Memory that a process may use: what the control group allows, at most what is available. `None` where neither
    /// is known.
    pub fn usable_memory(&self) -> Option<Bytes> {
        let available = self.memory.available;
        if available == Bytes(0) {
            return self.limits.memory;
        }
        Some(self.limits.memory.map_or(available, |limit| limit.min(available)))
    }
}

impl Cpu {
    /// Whether a program may use the instruction set `name`.
    pub fn has(&self, name: &str) -> bool {
        self.features.contains(name)
    }
}

/// How the machine's logical CPUs make up cores, packages and NUMA nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Topology {
    /// Every online physical core.
    pub cores: Vec<Core>,
    /// NUMA nodes that have memory or CPUs.
    #[serde(default)]
    pub nodes: Vec<NumaNode>,
}

impl Topology {
    /// Number of packages (sockets).
    pub fn packages(&self) -> usize {
        self.cores.iter().map(|core| core.package).collect::<BTreeSet<_>>().len()
    }

    /// Number of logical CPUs.
    pub fn logical_cpus(&self) -> usize {
        self.cores.iter().map(|core| core.cpus.len()).sum()
    }

    /// Whether performance and efficiency cores stand side by side.
    pub fn is_hybrid(&self) -> bool {
        self.cores.iter().any(|core| core.kind == CoreKind::Efficiency)
            && self.cores.iter().any(|core| core.kind == CoreKind::Performance)
    }
}

/// One physical core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Core {
    /// Package (socket) it sits in.
    pub package: u32,
    /// NUMA node of its CPUs.
    #[serde(default)]
    pub node: u32,
    /// Performance or efficiency core; `performance` where all are alike.
    #[serde(default)]
    pub kind: CoreKind,
    /// Its logical CPUs (SMT siblings), ascending.
    pub cpus: Vec<u32>,
    /// First-level data cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l1d: Option<Cache>,
    /// Second-level cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l2: Option<Cache>,
    /// Third-level cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l3: Option<Cache>,
}

/// Which of a hybrid CPU's two kinds a core is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum CoreKind {
    /// A P core, or any core of a CPU with one kind.
    #[default]
    Performance,
    /// An E core.
    Efficiency,
}

/// One cache as a core sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cache {
    /// Capacity of this instance.
    pub size: Bytes,
    /// Logical CPUs that share this instance.
    pub shared_by: u32,
}

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NumaNode {
    /// Its number.
    pub id: u32,
    /// Its logical CPUs; none for a memory-only node.
    pub cpus: Vec<u32>,
    /// Memory attached to it.
    pub memory: Bytes,
}

/// Main memory of the machine (limits of control groups stand in [`Limits`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Memory {
    /// Installed, as the kernel counts it.
    pub total: Bytes,
    /// Available without swapping, when it was read.
    pub available: Bytes,
}

/// What this process may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Limits {
    /// Logical CPUs of the affinity mask.
    pub affinity: Vec<u32>,
    /// Tightest CPU quota among the control group and all its ancestors, in cores (1.5 = 150 ms of CPU in
    /// 100 ms).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_quota: Option<f64>,
    /// Tightest memory limit among the control group and all its ancestors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
}

/// One NVIDIA GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gpu {
    /// Marketing name.
    pub name: String,
    /// CUDA compute capability, `8.9`.
    pub compute_capability: String,
    /// Memory on the card.
    pub memory: Bytes,
    /// Version of the kernel driver.
    pub driver: String,
}
