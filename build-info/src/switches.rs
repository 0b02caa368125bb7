//! Switches of a build: what it turns on and off beyond instruction sets, libraries and link-time optimisation.
//!
//! A switch of CMake is a field of [`Switches`] and a row of [`CMAKE`]. Profiles, plans, CMake's arguments, the check of the
//! compile database, `cargo xtask bench switches` and the reference follow from the two.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Switches of one build. In a record: as they were found in the compile database and the finished program. The default is
/// llama.cpp's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Switches {
    /// True if weights can be repacked for the CPU's kernels (`GGML_CPU_REPACK`).
    pub repack: bool,
    /// True if llamafile's matrix kernels are compiled in (`GGML_LLAMAFILE`).
    pub llamafile: bool,
    /// True if kernels ask for weights ahead of their use (`GGML_CPU_PREFETCH`, of our patch). Absent in the records of
    /// builds from before the patch.
    #[serde(default)]
    pub prefetch: bool,
    /// True if the kernels of our patches are compiled in (`GGML_CPU_PATCHED_KERNELS`). Absent in the records of builds
    /// from before the patches.
    #[serde(default)]
    pub patched_kernels: bool,
    /// Allocator of the engine's memory, C++'s included.
    pub allocator: Allocator,
    /// True if large buffers ask the kernel for huge pages.
    pub huge_pages: bool,
    /// Further flags for every C and C++ file.
    pub extra_flags: Vec<String>,
    /// True if the compiler may compute as if floating-point numbers were real numbers.
    pub fast_math: bool,
}

impl Default for Switches {
    fn default() -> Self {
        Self {
            repack: true,
            llamafile: true,
            prefetch: false,
            patched_kernels: false,
            allocator: Allocator::System,
            huge_pages: false,
            extra_flags: Vec::new(),
            fast_math: false,
        }
    }
}

/// A switch that is an option of CMake, and a definition for the compiler.
pub struct CmakeSwitch {
    /// Key in profiles and records.
    pub key: &'static str,
    /// Option of CMake.
    pub option: &'static str,
    /// Flag that ggml-cpu is compiled with if the switch is on.
    pub definition: &'static str,
    /// True if only x86 has what the switch turns on.
    pub x86_only: bool,
    /// Explanation for the reference of profiles.
    pub help: &'static str,
    /// Value in `Switches`.
    pub get: fn(&Switches) -> bool,
    /// Place in `Switches`.
    pub place: fn(&mut Switches) -> &mut bool,
}

macro_rules! cmake {
    ($key:ident, $option:literal, $definition:literal, $x86_only:literal, $help:literal) => {
        CmakeSwitch {
            key: stringify!($key),
            option: $option,
            definition: $definition,
            x86_only: $x86_only,
            help: $help,
            get: |switches| switches.$key,
            place: |switches| &mut switches.$key,
        }
    };
}

/// Every switch of CMake.
#[rustfmt::skip]
pub static CMAKE: &[CmakeSwitch] = &[
    cmake!(repack, "GGML_CPU_REPACK", "-DGGML_USE_CPU_REPACK", false, "repack weights for the CPU's kernels"),
    cmake!(llamafile, "GGML_LLAMAFILE", "-DGGML_USE_LLAMAFILE", false, "llamafile's matrix kernels"),
    cmake!(prefetch, "GGML_CPU_PREFETCH", "-DGGML_USE_CPU_PREFETCH", true, "ask for weights ahead of their use"),
    cmake!(patched_kernels, "GGML_CPU_PATCHED_KERNELS", "-DGGML_USE_CPU_PATCHED_KERNELS", true, "x86 kernels of our patches"),
];

impl CmakeSwitch {
    /// Value in llama.cpp's own build.
    pub fn upstream(&self) -> bool {
        (self.get)(&Switches::default())
    }
}

impl fmt::Display for Switches {
    /// Every switch except the extra flags, as in `repack on, allocator system`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = |on: bool| if on { "on" } else { "off" };
        for switch in CMAKE {
            write!(f, "{} {}, ", switch.key.replace('_', " "), on((switch.get)(self)))?;
        }
        write!(
            f,
            "allocator {}, huge pages {}, fast-math {}",
            self.allocator,
            on(self.huge_pages),
            on(self.fast_math)
        )
    }
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
