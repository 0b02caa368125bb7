//! Build record `build_info.json`: the inputs of a build, and the results of its checks.
//!
//! Unknown fields are ignored, so that an older reader accepts a newer minor version. A newer major version is
//! rejected with an error. [`BuildInfo::read`] never panics, even if the file is damaged.

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

/// Folder of a wheel's files, relative to the folder above the program's. pip puts the program into the `bin` folder of
/// an environment that other packages share, so the record and the kernel libraries have a separate folder.
pub const WHEEL_FOLDER: &str = "lib/anneal-wheel";

/// Version of the format, `major.minor`: a new major version breaks readers, and a new minor version adds fields.
pub const SCHEMA_VERSION: &str = "1.9";

/// The record of one build. It keeps the field names that existing scripts read (`build_type`, `date`, `hostname`,
/// `cpu_model`, `cpu_flags`, `cmake_flags`, `llama_version`, `compiler`, `reproducible`, `optimal_threads`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BuildInfo {
    /// Version of this format, `major.minor`.
    pub schema_version: String,
    /// Version of Anneal that made the build.
    pub anneal_version: String,
    /// Commit of Anneal that made the build, 40 hex digits, followed by `-dirty` if tracked files differed from the
    /// commit. Absent before version 1.8 of this format, outside a git checkout, and in archives of reproducible
    /// builds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anneal_commit: Option<String>,
    /// `CMAKE_BUILD_TYPE` of the C++ part.
    pub build_type: String,
    /// Date when the build was finished, RFC 3339 in UTC.
    pub date: String,
    /// Name of the build host; absent with `--no-hostname`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Marketing name of the build host's CPU.
    pub cpu_model: String,
    /// Usable instruction sets of the build host's CPU, ascending.
    pub cpu_flags: Vec<String>,
    /// CMake definitions, `-DNAME=VALUE`.
    pub cmake_flags: Vec<String>,
    /// Version of llama.cpp: release or commit of the sources.
    pub llama_version: String,
    /// C++ compiler and its version.
    pub compiler: String,
    /// True if every flag is explicit and no property of the build host was used.
    pub reproducible: bool,
    /// Number of decode threads under the `balanced` policy on the build host.
    pub optimal_threads: u32,

    /// Name of the profile.
    pub profile: String,
    /// SHA-256 of the plan.
    pub plan_hash: Sha256,
    /// Target triple.
    pub target: String,
    /// The llama.cpp sources.
    pub source: Source,
    /// Tools used for the build, by role: `cc`, `cxx`, `cmake`, `ninja`, `linker`, `rustc`, ….
    pub toolchain: BTreeMap<String, Tool>,
    /// Compiler flags found in the compile database.
    pub effective_flags: EffectiveFlags,
    /// Instruction sets that the CPU guard requires at start-up.
    pub isa_required: Vec<String>,
    /// Kernel libraries, one for each kind of CPU; the engine loads one of them. Empty if the kernels are part of the
    /// program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpu_variants: Vec<CpuVariant>,
    /// Oldest glibc that the program runs with; `None` means the build host's glibc.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glibc: Option<Glibc>,
    /// BLAS library; `None` if none is linked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blas: Option<Blas>,
    /// CUDA properties, if the build is for NVIDIA GPUs. The engine of such a build refuses to run without a GPU; see
    /// `--require-gpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<Cuda>,
    /// Runtime that runs the threads: OpenMP or ggml's thread pool.
    pub threading: Threading,
    /// OpenMP runtime, if the build uses OpenMP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub openmp: Option<OpenMp>,
    /// Further switches of the build; absent in records before version 1.2 of this format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches: Option<Switches>,
    /// Run-time defaults from the profile. Absent before version 1.6 of this format; version 1.6 called the field
    /// `runtime`.
    #[serde(default, alias = "runtime", skip_serializing_if = "Defaults::is_empty")]
    pub defaults: Defaults,
    /// Link-time optimisation: `off`, `thin` or `full`.
    pub lto: String,
    /// Plan hash of the original build, if this build was made from it by PGO or BOLT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_plan: Option<Sha256>,
    /// Profile-guided optimisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pgo: Option<Pgo>,
    /// Result of BOLT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bolt: Option<Bolt>,
    /// Measured effect of the profile or of BOLT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<Gain>,
    /// Last comparison in which an optimised build was rejected and this build stayed current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<Gain>,
    /// The build host.
    pub host: Host,
    /// Threads recommended for the build host.
    pub threads: ThreadBudget,
    /// Files of the build.
    pub artifacts: Vec<Artifact>,
    /// Duration of each stage, in order. If the build came from a store, only the smoke test ran on this machine.
    pub stages: Vec<StageTime>,
    /// Emulator that ran the programs of this build on the build host, whose CPU cannot run them. Results were checked,
    /// but speed was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulated: Option<Emulated>,
    /// Reason why the build host could not run the program, so that neither the smoke test nor the correctness gate
    /// ran; absent if they ran. Only a build for a CPU that the profile specifies has this field. New in version 1.9 of
    /// this format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_run: Option<String>,
    /// Result of the smoke test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smoke: Option<Smoke>,
    /// Result of the audit of the finished files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<Audit>,
    /// Result of the correctness gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<Gate>,
    /// Store that the build was downloaded from; `None` if it was compiled on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_store: Option<FromStore>,
    /// Remarks of the planner for the reader.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Origin of a build that another machine compiled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FromStore {
    /// Location of the store: a folder, a URL or a bucket.
    pub store: String,
    /// Key of the build in the store.
    pub key: Sha256,
    /// Digest of the object that contained the build's files.
    pub object: Sha256,
    /// Date of publication, RFC 3339 in UTC.
    pub published: String,
    /// Date of the download, RFC 3339 in UTC.
    pub taken: String,
}

/// Origin of the llama.cpp sources.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Source {
    /// Kind of origin: `crate`, `sdist`, `git` or `path`.
    pub origin: String,
    /// Version within the origin: a crate version, a package version or a commit.
    pub version: String,
    /// SHA-256 of the source tree as unpacked, before the patches.
    pub digest: Sha256,
    /// Patches applied, in order.
    pub patches: Vec<Patch>,
}

/// One patch of the sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Patch {
    /// Name of the patch file.
    pub name: String,
    /// Digest of the patch file.
    pub sha256: Sha256,
}

/// One tool of the toolchain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tool {
    /// Path of the tool.
    pub path: PathBuf,
    /// Version of the tool, `22.1.8`.
    pub version: String,
    /// Major version of LLVM, for tools based on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llvm_major: Option<u32>,
}

/// Code generation flags found in the compile database.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EffectiveFlags {
    /// Flags `-march`, `-mcpu`, `-m…`, `-O…`, `-f…` common to all of ggml-cpu's files, in order.
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
    /// Version according to the library's files.
    pub version: String,
    /// Threading model, if the library states it: `pthread`, `openmp` or `serial`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threading: Option<String>,
    /// Library files: the shared libraries that the loader finds for the finished program, or the archives linked
    /// into the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub libraries: Vec<PathBuf>,
    /// Name and version that the library reports to the finished program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<String>,
    /// SHA-256 of the library's sources, if Anneal compiled them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Sha256>,
}

/// Runtime that runs the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Threading {
    /// OpenMP's runtime.
    Openmp,
    /// ggml's own thread pool, attached by the engine.
    Threadpool,
}

/// Kernels for one kind of CPU, in a separate library: `lib/libggml-cpu-NAME.so`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CpuVariant {
    /// Name of the variant in llama.cpp: `haswell`, `zen4`.
    pub name: String,
    /// Instruction sets that the variant was compiled for, spelled as in [`crate::host::Cpu::features`].
    pub requires: Vec<String>,
}

/// One file of a build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Artifact {
    /// Path relative to the build folder.
    pub path: PathBuf,
    /// Size of the file, in bytes.
    pub size: Bytes,
    /// Digest of the file's content.
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
    /// CPU seconds of all programs that the stage ran. Absent if unknown: in older builds, and with a compiler cache,
    /// whose server process is not a child of the stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
}

/// Emulator that ran the build's programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Emulated {
    /// Name and version of the emulator.
    pub emulator: String,
    /// CPU that the emulator emulated.
    pub cpu: String,
}

/// Result of the smoke test: two greedy runs on a tiny synthetic model gave equal tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Smoke {
    /// Name of the model.
    pub model: String,
    /// Number of tokens compared.
    pub tokens: u32,
    /// Prefill speed in tokens per second. The model is tiny, so the figure is not a benchmark.
    pub prefill_tokens_per_second: f64,
    /// Decode speed in tokens per second. The model is tiny, so the figure is not a benchmark.
    pub decode_tokens_per_second: f64,
}

/// Reason why a `build_info.json` was rejected.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error from the operating system.
        source: std::io::Error,
    },
    /// The path is a folder, a pipe, a socket or a device.
    #[error("{} is not a regular file", path.display())]
    NoFile {
        /// Path of the folder, pipe, socket or device.
        path: PathBuf,
    },
    /// The content does not match this version of the format.
    #[error("{} is damaged: {source}", path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Position and cause of the parse error.
        source: serde_json::Error,
    },
    /// A later version of Anneal wrote the file.
    #[error(
        "{} has schema version {found}, but this program reads {SCHEMA_VERSION}\nhint: use the `anneal` \
         program from the same build",
        path.display()
    )]
    Newer {
        /// Path of the file.
        path: PathBuf,
        /// Version of the file's format.
        found: String,
    },
}

impl BuildInfo {
    /// Reads the record at `path`.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, or has a newer major version.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let io = |source| ReadError::Io { path: path.to_path_buf(), source };
        // Opening a pipe without a writer would block forever.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(ReadError::NoFile { path: path.to_path_buf() });
        }
        let text = std::fs::read(path).map_err(io)?;
        Self::parse(&text, path)
    }

    /// Parses the record in `text`; `path` is only used in errors.
    ///
    /// # Errors
    /// If the text is damaged or has a newer major version.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, ReadError> {
        let damaged = |source| ReadError::Damaged { path: path.to_path_buf(), source };
        // The version is parsed first, because other fields may have any form in a newer major version.
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
