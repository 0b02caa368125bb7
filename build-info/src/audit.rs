//! Results of the audit of a build's finished files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::glibc::Glibc;
use crate::units::Bytes;

/// Rule that the audit checks a build against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    /// No instruction beyond x86-64-v3, except in functions that check the CPU first.
    Portable,
    /// The program runs on every x86-64 CPU. Each kernel library uses only the instructions of its CPU variant.
    Universal,
    /// The build uses the instruction sets that the host offers, and no kernel is scalar.
    Native,
    /// Like `native`, but for the CPU in the profile. Instruction sets that the CPU guard does not check occur only in
    /// functions that check the CPU first.
    Cpu,
    /// No requirement: instructions are only counted.
    #[default]
    Report,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Rule::Portable => "portable",
            Rule::Universal => "universal",
            Rule::Native => "native",
            Rule::Cpu => "cpu",
            Rule::Report => "report",
        })
    }
}

/// Instruction sets in the files of a build.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Audit {
    /// Reason why the audit was skipped; `None` if it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_done: Option<String>,
    /// Rule that the build was checked against.
    pub rule: Rule,
    /// Paths of the audited files.
    #[serde(default)]
    pub files: Vec<PathBuf>,
    /// Number of instructions per instruction set that they need. An instruction that needs two sets counts for both.
    #[serde(default)]
    pub features: BTreeMap<String, u64>,
    /// Highest level of the x86-64 psABI, 1 to 4, outside the functions in `allowed`.
    #[serde(default)]
    pub level: u32,
    /// Instruction sets outside the functions in `allowed` that belong to no psABI level.
    #[serde(default)]
    pub beyond: Vec<String>,
    /// Oldest glibc that can load the files; `None` if no file uses glibc.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glibc: Option<Glibc>,
    /// Number of instructions decoded.
    #[serde(default)]
    pub instructions: u64,
    /// Functions that may use more than x86-64-v3, because they run only on CPUs with the required instruction sets.
    #[serde(default)]
    pub allowed: Vec<AllowedSymbol>,
    /// Number of vector kernels found with the required vector width.
    #[serde(default)]
    pub kernels: u32,
    /// GPU code in the files; `None` if the files contain no GPU code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceAudit>,
    /// Duration of the audit, in wall-clock seconds.
    #[serde(default)]
    pub seconds: f64,
}

/// Code for NVIDIA GPUs in the files of a build.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeviceAudit {
    /// Code per architecture: `sm_90` is a binary for compute capability 9.0, `compute_90` is PTX text that the
    /// driver compiles.
    pub architectures: BTreeMap<String, DeviceArchitecture>,
    /// Number of kernels with a name, per family. Each instance of a template counts.
    #[serde(default)]
    pub kernels: BTreeMap<String, u32>,
    /// CUDA libraries that the loader must find before the program starts; empty if they are loaded on first use.
    #[serde(default)]
    pub libraries: Vec<String>,
}

/// GPU code for one architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeviceArchitecture {
    /// Number of code objects, about one per source file.
    pub pieces: u32,
    /// Size in the file, in bytes.
    pub stored: Bytes,
    /// Decompressed size, in bytes.
    pub unpacked: Bytes,
}

/// Function that may use more than x86-64-v3.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AllowedSymbol {
    /// Name of the function.
    pub symbol: String,
    /// Instruction set that the function uses.
    pub feature: String,
    /// Reason why the function is safe on other CPUs.
    pub reason: String,
}
