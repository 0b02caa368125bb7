//! What the finished files of a build were found to hold.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::glibc::Glibc;
use crate::units::Bytes;

/// What a build was held against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    /// Nothing beyond x86-64-v3 but in functions that ask the CPU first.
    Portable,
    /// The program runs on every x86-64 CPU, and kernels beside it use no more than their kind of CPU has.
    Universal,
    /// What the host offers is used, and no kernel is scalar.
    Native,
    /// Nothing: only counted.
    #[default]
    Report,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Rule::Portable => "portable",
            Rule::Universal => "universal",
            Rule::Native => "native",
            Rule::Report => "report",
        })
    }
}

/// Which instruction sets the files of a build hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Audit {
    /// Why nothing was looked at; not there when it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_done: Option<String>,
    /// What the build was held against.
    pub rule: Rule,
    /// The files.
    #[serde(default)]
    pub files: Vec<PathBuf>,
    /// Instructions by the instruction set that they need. One that needs two counts for both.
    #[serde(default)]
    pub features: BTreeMap<String, u64>,
    /// Highest level of the x86-64 psABI, 1 to 4, outside the functions of `allowed`.
    #[serde(default)]
    pub level: u32,
    /// Instruction sets outside these functions that are in no level.
    #[serde(default)]
    pub beyond: Vec<String>,
    /// The oldest glibc that the files start with, where they use any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glibc: Option<Glibc>,
    /// Instructions that were decoded.
    #[serde(default)]
    pub instructions: u64,
    /// Functions that may use more than x86-64-v3, since they are run only where the CPU has it.
    #[serde(default)]
    pub allowed: Vec<AllowedSymbol>,
    /// Vector kernels that were found, and as wide as they should be.
    #[serde(default)]
    pub kernels: u32,
    /// What is for GPUs in the files, where anything is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceAudit>,
    /// Wall-clock seconds.
    #[serde(default)]
    pub seconds: f64,
}

/// Code for NVIDIA's GPUs in the files of a build.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeviceAudit {
    /// By architecture: `sm_90` is a binary for compute capability 9.0, `compute_90` text that the driver compiles.
    pub architectures: BTreeMap<String, DeviceArchitecture>,
    /// Kernels by family, as far as the files have names: each instance of a template counts.
    #[serde(default)]
    pub kernels: BTreeMap<String, u32>,
    /// Libraries of CUDA that the loader must find before the program starts; none where they are loaded when they are
    /// needed.
    #[serde(default)]
    pub libraries: Vec<String>,
}

/// Code for one architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeviceArchitecture {
    /// Pieces, about one for each source file.
    pub pieces: u32,
    /// Bytes in the file.
    pub stored: Bytes,
    /// Bytes once unpacked.
    pub unpacked: Bytes,
}

/// A function that may use more than x86-64-v3.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AllowedSymbol {
    /// Its name.
    pub symbol: String,
    /// The instruction set.
    pub feature: String,
    /// Why that is no harm on other CPUs.
    pub reason: String,
}
