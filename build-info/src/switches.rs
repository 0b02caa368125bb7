//! Switches of a build: options beyond instruction sets, libraries and link-time optimisation.
//!
//! A CMake switch is a field of [`Switches`] and a row of [`CMAKE`]. Profiles, plans, CMake's arguments, the check of
//! the compile database, `cargo xtask bench switches` and the reference documentation are derived from the fields and
//! the rows.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Switches of one build. A record contains the switches found in the compile database and in the finished program. The
/// defaults match llama.cpp.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Switches {
    /// True if weights can be repacked for the CPU's kernels (`GGML_CPU_REPACK`).
    pub repack: bool,
    /// True if llamafile's matrix kernels are compiled in (`GGML_LLAMAFILE`).
    pub llamafile: bool,
    /// True if kernels prefetch weights (`GGML_CPU_PREFETCH`, from Anneal's patch). Absent in records of builds that
    /// predate the patch.
    #[serde(default)]
    pub prefetch: bool,
    /// True if the kernels of Anneal's patches are compiled in (`GGML_CPU_PATCHED_KERNELS`). Absent in records of
    /// builds that predate the patches.
    #[serde(default)]
    pub patched_kernels: bool,
    /// Allocator of the engine's memory, for Rust and C++ code.
    pub allocator: Allocator,
    /// True if large buffers ask the kernel for huge pages.
    pub huge_pages: bool,
    /// Additional flags for every C and C++ file.
    pub extra_flags: Vec<String>,
    /// True if the compiler may treat floating-point numbers as real numbers (`-ffast-math`).
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

/// Switch that is both a CMake option and a compiler definition.
pub struct CmakeSwitch {
    /// Key in profiles and records.
    pub key: &'static str,
    /// Name of the CMake option.
    pub option: &'static str,
    /// Flag that ggml-cpu is compiled with if the switch is on.
    pub definition: &'static str,
    /// True if the switch only has an effect on x86.
    pub x86_only: bool,
    /// Description for the profile reference.
    pub help: &'static str,
    /// Reads the switch from `Switches`.
    pub get: fn(&Switches) -> bool,
    /// Returns the switch in `Switches` for writing.
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

/// Table of all CMake switches.
#[rustfmt::skip]
pub static CMAKE: &[CmakeSwitch] = &[
    cmake!(repack, "GGML_CPU_REPACK", "-DGGML_USE_CPU_REPACK", false, "repack weights for the CPU's kernels"),
    cmake!(llamafile, "GGML_LLAMAFILE", "-DGGML_USE_LLAMAFILE", false, "llamafile's matrix kernels"),
    cmake!(prefetch, "GGML_CPU_PREFETCH", "-DGGML_USE_CPU_PREFETCH", true, "prefetch weights"),
    cmake!(patched_kernels, "GGML_CPU_PATCHED_KERNELS", "-DGGML_USE_CPU_PATCHED_KERNELS", true, "x86 kernels of Anneal's patches"),
];

impl CmakeSwitch {
    /// Returns the default value in llama.cpp's own build.
    pub fn upstream(&self) -> bool {
        (self.get)(&Switches::default())
    }
}

impl fmt::Display for Switches {
    /// Lists every switch except the extra flags, as in `repack on, allocator system`.
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

/// Allocator that serves `malloc`, `operator new` and Rust's allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Allocator {
    /// Allocator of the C library.
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

/// OpenMP runtime of a build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OpenMp {
    /// Library name that the program requests from the loader (`DT_NEEDED`): `libomp.so.5`, `libgomp.so.1`.
    pub library: String,
    /// File that the loader used on the build host, with links resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<std::path::PathBuf>,
}
