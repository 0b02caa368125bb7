//! What a build turns on and off beyond instruction sets, libraries and link-time optimisation.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The switches of one build. In a record: as they were found in the compile database and the finished program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Switches {
    /// Whether weights can be rearranged for the CPU's kernels (`GGML_CPU_REPACK`).
    pub repack: bool,
    /// Whether llamafile's matrix kernels are compiled in (`GGML_LLAMAFILE`).
    pub llamafile: bool,
    /// Whether kernels ask for weights ahead of their use (`GGML_CPU_PREFETCH`, of our patch). Absent in the records of
    /// builds before there was one.
    #[serde(default)]
    pub prefetch: bool,
    /// Whether the kernels of our patches are compiled in (`GGML_CPU_PATCHED_KERNELS`). Absent in the records of builds
    /// before there were any.
    #[serde(default)]
    pub patched_kernels: bool,
    /// Who serves the engine's memory, C++'s included.
    pub allocator: Allocator,
    /// Whether large buffers ask the kernel for huge pages.
    pub huge_pages: bool,
    /// Further flags for every C and C++ file.
    pub extra_flags: Vec<String>,
    /// Whether the compiler may compute as if floating-point numbers were real ones.
    pub fast_math: bool,
}

/// Who serves `malloc`, `operator new` and Rust's allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Allocator {
    /// The C library.
    System,
    /// jemalloc, linked into the program.
    Jemalloc,
    /// mimalloc, linked into the program.
    Mimalloc,
}

impl fmt::Display for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Allocator::System => "system",
            Allocator::Jemalloc => "jemalloc",
            Allocator::Mimalloc => "mimalloc",
        })
    }
}

/// The OpenMP runtime of a build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OpenMp {
    /// As the program asks the loader for it (`DT_NEEDED`): `libomp.so.5`, `libgomp.so.1`.
    pub library: String,
    /// The file that the loader took on the build host, links followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<std::path::PathBuf>,
}
