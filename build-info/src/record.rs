//! `build_info.json`: what a build is made of, and how it was found to behave.
//!
//! Unknown fields are ignored, so that an older reader takes a newer minor version; a newer major
//! version is refused with words. [`BuildInfo::read`] never panics on what it finds in a file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha256::Sha256;

use crate::audit::Audit;
use crate::defaults::Defaults;
pub use crate::device::Cuda;
use crate::gate::Gate;
use crate::glibc::Glibc;
use crate::host::Host;
use crate::optimized::{Bolt, Gain, Pgo};
use crate::switches::{OpenMp, Switches};
use crate::threads::ThreadBudget;
use crate::units::Bytes;

/// Version of the format, `major.minor`: a new major breaks readers, a new minor adds fields.
pub const SCHEMA_VERSION: &str = "1.7";

/// The record of one build. It keeps the names that existing scripts read (`build_type`, `date`, `hostname`,
/// `cpu_model`, `cpu_flags`, `cmake_flags`, `llama_version`, `compiler`, `reproducible`, `optimal_threads`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BuildInfo {
    /// Version of this format, `major.minor`.
    pub schema_version: String,
    /// Version of Anneal that made the build.
    pub anneal_version: String,
    /// `CMAKE_BUILD_TYPE` of the C++ part.
    pub build_type: String,
    /// When the build was finished, RFC 3339 in UTC.
    pub date: String,
    /// Name of the build host; left out with `--no-hostname`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Marketing name of the build host's CPU.
    pub cpu_model: String,
    /// Usable instruction sets of the build host's CPU, ascending.
    pub cpu_flags: Vec<String>,
    /// Definitions given to CMake, `-DNAME=VALUE`.
    pub cmake_flags: Vec<String>,
    /// llama.cpp's version: release or commit of the sources.
    pub llama_version: String,
    /// C++ compiler and its version.
    pub compiler: String,
    /// Whether the build names every flag and looked at nothing of the build host.
    pub reproducible: bool,
    /// Decode threads under the `balanced` policy on the build host.
    pub optimal_threads: u32,

    /// Name of the profile.
    pub profile: String,
    /// SHA-256 of the plan.
    pub plan_hash: Sha256,
    /// Target triple.
    pub target: String,
    /// The llama.cpp sources.
    pub source: Source,
    /// Every tool that took part, by its role: `cc`, `cxx`, `cmake`, `ninja`, `linker`, `rustc`, ….
    pub toolchain: BTreeMap<String, Tool>,
    /// Flags as they were found in the compile database.
    pub effective_flags: EffectiveFlags,
    /// Instruction sets without which the CPU guard refuses to start.
    pub isa_required: Vec<String>,
    /// Kernels for kinds of CPUs, of which the engine loads one; none where the kernels are part of the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpu_variants: Vec<CpuVariant>,
    /// The oldest glibc that the program starts with, where that is not the build host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glibc: Option<Glibc>,
    /// BLAS library, if one was linked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blas: Option<Blas>,
    /// What it was compiled for, where it is a build for NVIDIA's GPUs. The engine then refuses to go on without one, see
    /// `--require-gpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<Cuda>,
    /// Who runs the threads: OpenMP or ggml's own pool.
    pub threading: Threading,
    /// The OpenMP runtime, where it is OpenMP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub openmp: Option<OpenMp>,
    /// What else was turned on and off; records of Anneal before 1.2 of this format say nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches: Option<Switches>,
    /// Defaults of the engine that the profile wants; none before 1.6 of this format; 1.6 called them `runtime`.
    #[serde(default, alias = "runtime", skip_serializing_if = "Defaults::is_empty")]
    pub defaults: Defaults,
    /// Link-time optimisation: `off`, `thin` or `full`.
    pub lto: String,
    /// Plan of the build that this one was made from, with a profile or by BOLT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_plan: Option<Sha256>,
    /// Profile-guided optimisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pgo: Option<Pgo>,
    /// What BOLT did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bolt: Option<Bolt>,
    /// What the profile, or BOLT, brought.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<Gain>,
    /// What a profile, or BOLT, would have brought: the last comparison in which this build stayed current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<Gain>,
    /// The build host.
    pub host: Host,
    /// Threads recommended for the build host.
    pub threads: ThreadBudget,
    /// Files of the build.
    pub artifacts: Vec<Artifact>,
    /// Seconds that each stage took, in order; of a build from a store all but the smoke test were run where it was made.
    pub stages: Vec<StageTime>,
    /// What ran the programs of this build where it was made, of another architecture: they were seen to give the right
    /// results, and no speed was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulated: Option<Emulated>,
    /// What the smoke test measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smoke: Option<Smoke>,
    /// Which instruction sets the finished files hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<Audit>,
    /// What the correctness gate found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<Gate>,
    /// The store that it was taken from, where it was not compiled here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_store: Option<FromStore>,
    /// Things the planner wants its reader to know.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Where a build came from that another machine has compiled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FromStore {
    /// The store: a folder, a URL or a bucket.
    pub store: String,
    /// What the build was found by.
    pub key: Sha256,
    /// Digest of the object that held its files.
    pub object: Sha256,
    /// When it was published, RFC 3339 in UTC.
    pub published: String,
    /// When it was taken, RFC 3339 in UTC.
    pub taken: String,
}

/// Where the llama.cpp sources came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Source {
    /// `crate`, `sdist`, `git` or `path`.
    pub origin: String,
    /// Version within the origin: a crate's, a package's, a commit.
    pub version: String,
    /// SHA-256 over the tree as unpacked, before the patches.
    pub digest: Sha256,
    /// Patches applied, in order.
    pub patches: Vec<Patch>,
}

/// One patch on the sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Patch {
    /// Name of its file.
    pub name: String,
    /// Digest of its content.
    pub sha256: Sha256,
}

/// One tool of the toolchain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tool {
    /// Where it was found.
    pub path: PathBuf,
    /// Version, `22.1.8`.
    pub version: String,
    /// LLVM major version it is built on, where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llvm_major: Option<u32>,
}

/// Code generation flags that the compile database really holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EffectiveFlags {
    /// `-march`, `-mcpu`, `-m…`, `-O…`, `-f…` flags common to all of ggml-cpu's files, in order.
    pub ggml_cpu: Vec<String>,
    /// Preprocessor definitions common to all of ggml-cpu's files.
    pub definitions: Vec<String>,
    /// Number of compile commands that were read.
    pub commands: u32,
}

/// A BLAS library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Blas {
    /// `openblas`, `blis`, `mkl`, …
    pub vendor: String,
    /// Version, as its files tell it.
    pub version: String,
    /// `pthread`, `openmp` or `serial`, where the library says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threading: Option<String>,
    /// The files: as the loader finds them for the finished program, or the archives that became part of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub libraries: Vec<PathBuf>,
    /// What the library calls itself when the finished program asks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<String>,
    /// SHA-256 of the sources, where Anneal built it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Sha256>,
}

/// Who runs the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Threading {
    /// OpenMP's runtime.
    Openmp,
    /// ggml's own thread pool, attached by the engine.
    Threadpool,
}

/// Kernels for one kind of CPU, in a library of their own: `lib/libggml-cpu-NAME.so`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CpuVariant {
    /// As llama.cpp calls it: `haswell`, `zen4`.
    pub name: String,
    /// Instruction sets that it was compiled to use, spelled as in [`crate::host::Cpu::features`].
    pub requires: Vec<String>,
}

/// One file of a build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Artifact {
    /// Path within the build folder.
    pub path: PathBuf,
    /// Size.
    pub size: Bytes,
    /// Digest of the content.
    pub sha256: Sha256,
}

/// Duration of one stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StageTime {
    /// Name of the stage.
    pub name: String,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// CPU seconds of all that it ran. Absent where they are not known: of older builds, and where a compiler cache
    /// compiled, whose server is not among the programs that were run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
}

/// An emulator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Emulated {
    /// Its name and version.
    pub emulator: String,
    /// The CPU that it stood for.
    pub cpu: String,
}

/// What the smoke test saw: two greedy runs on a tiny synthetic model gave equal tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Smoke {
    /// The model.
    pub model: String,
    /// Tokens compared.
    pub tokens: u32,
    /// Prefill speed in tokens per second. On a tiny model: a sign of life, no benchmark.
    pub prefill_tokens_per_second: f64,
    /// Decode speed in tokens per second, likewise.
    pub decode_tokens_per_second: f64,
}

/// Why a `build_info.json` was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A folder, a pipe, a socket or a device.
    #[error("{} is no regular file", path.display())]
    NoFile {
        /// What lies there.
        path: PathBuf,
    },
    /// The file is not what this version of the format says.
    #[error("{} is damaged: {source}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A later Anneal wrote it.
    #[error(
        "{} has schema version {found}; this program reads {SCHEMA_VERSION}: use the anneal that was built with it",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: String,
    },
}

impl BuildInfo {
    /// Reads the record at `path`.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let io = |source| ReadError::Io { path: path.to_path_buf(), source };
        // A pipe that nobody writes to would be waited for without end.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(ReadError::NoFile { path: path.to_path_buf() });
        }
        let text = std::fs::read(path).map_err(io)?;
        Self::parse(&text, path)
    }

    /// Takes the record in `text`; `path` is only for the error.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, ReadError> {
        let damaged = |source| ReadError::Damaged { path: path.to_path_buf(), source };
        // The version first: the rest of a newer major may look like anything.
        #[derive(Deserialize)]
        struct RecordVersion {
            schema_version: String,
        }
        let RecordVersion { schema_version: found } = serde_json::from_slice(text).map_err(damaged)?;
        let major = |version: &str| version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        match (major(&found), major(SCHEMA_VERSION)) {
            (Some(theirs), Some(ours)) if theirs <= ours => {}
            _ => return Err(ReadError::Newer { path: path.to_path_buf(), found }),
        }
        serde_json::from_slice(text).map_err(damaged)
    }
}
