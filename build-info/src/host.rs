//! Machine that a build is planned for, or that an engine runs on.
//!
//! A [`Host`] is plain data. The `host` crate creates it from a live machine; `fixtures/hosts` contains further
//! examples. Properties that cannot be determined are `None` or empty, never guessed.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// One machine as this process sees it: the hardware, and the share of it that the process may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Host {
    /// `x86_64`, `aarch64`, …, as `std::env::consts::ARCH` spells it.
    pub arch: String,
    /// Network name; absent with `--no-hostname`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Operating system.
    pub os: Os,
    /// Processor.
    pub cpu: Cpu,
    /// Packages, cores, SMT siblings, NUMA nodes.
    pub topology: Topology,
    /// Main memory.
    pub memory: Memory,
    /// Limits that the affinity mask and control groups set for this process.
    pub limits: Limits,
    /// NVIDIA GPUs that the driver reports.
    #[serde(default)]
    pub gpus: Vec<Gpu>,
}

/// Operating system and the environment that it runs in.
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
    /// Hypervisor, if the CPU reports one: `KVM`, `VMware`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<String>,
}

/// Processor, without its topology.
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
    /// Highest x86-64 psABI level, 1 to 4, that `features` cover; absent on other architectures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x86_64_level: Option<u8>,
}

impl Host {
    /// Returns the memory that a process may use: the limit of the control group, capped at the available memory.
    /// `None` if neither is known.
    pub fn usable_memory(&self) -> Option<Bytes> {
        let available = self.memory.available;
        if available == Bytes(0) {
            return self.limits.memory;
        }
        Some(self.limits.memory.map_or(available, |limit| limit.min(available)))
    }
}

impl Cpu {
    /// True if a program may use the instruction set `name`.
    pub fn has(&self, name: &str) -> bool {
        self.features.contains(name)
    }
}

/// Arrangement of the logical CPUs in cores, packages and NUMA nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Topology {
    /// Online physical cores.
    pub cores: Vec<Core>,
    /// NUMA nodes that have memory or CPUs.
    #[serde(default)]
    pub nodes: Vec<NumaNode>,
}

impl Topology {
    /// Returns the number of packages (sockets).
    pub fn packages(&self) -> usize {
        self.cores.iter().map(|core| core.package).collect::<BTreeSet<_>>().len()
    }

    /// Returns the number of logical CPUs.
    pub fn logical_cpus(&self) -> usize {
        self.cores.iter().map(|core| core.cpus.len()).sum()
    }

    /// True if the CPU has both performance and efficiency cores.
    pub fn is_hybrid(&self) -> bool {
        self.cores.iter().any(|core| core.kind == CoreKind::Efficiency)
            && self.cores.iter().any(|core| core.kind == CoreKind::Performance)
    }
}

/// One physical core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Core {
    /// Package (socket) of the core.
    pub package: u32,
    /// NUMA node of the core's CPUs.
    #[serde(default)]
    pub node: u32,
    /// Performance or efficiency core; `performance` if all cores are alike.
    #[serde(default)]
    pub kind: CoreKind,
    /// Logical CPUs of the core (SMT siblings), ascending.
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

/// Kind of a core in a hybrid CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum CoreKind {
    /// P core, or any core of a CPU that is not hybrid.
    #[default]
    Performance,
    /// E core.
    Efficiency,
}

/// One cache as a core sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cache {
    /// Capacity of this cache instance, in bytes.
    pub size: Bytes,
    /// Number of logical CPUs that share this instance.
    pub shared_by: u32,
}

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NumaNode {
    /// Number of the node.
    pub id: u32,
    /// Logical CPUs of the node; empty for a memory-only node.
    pub cpus: Vec<u32>,
    /// Memory attached to the node, in bytes.
    pub memory: Bytes,
}

/// Main memory of the machine. Limits of control groups are in [`Limits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Memory {
    /// Installed memory that the kernel reports, in bytes.
    pub total: Bytes,
    /// Memory available without swapping at the time of the snapshot, in bytes.
    pub available: Bytes,
}

/// Resource limits of this process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Limits {
    /// Logical CPUs of the affinity mask.
    pub affinity: Vec<u32>,
    /// Tightest CPU quota among the control group and all its ancestors, in cores (1.5 = 150 ms of CPU time per 100
    /// ms).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_quota: Option<f64>,
    /// Tightest memory limit among the control group and all its ancestors, in bytes.
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
    /// Memory of the GPU, in bytes.
    pub memory: Bytes,
    /// Version of the kernel driver.
    pub driver: String,
}
