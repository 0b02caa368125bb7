//! Plan: all inputs of a build.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};
use base::shell_quote;
use build_info::record::{Source, Tool};
use build_info::switches::Switches;
use build_info::{Defaults, Sha256};
use serde::{Deserialize, Serialize};
use toolchain::{BlasLibrary, Compiler, Libclang, Rustc};

use crate::codegen::CodeGen;
use crate::cross::{Cross, NOT_HERE};
use crate::cuda::CudaPlan;
use crate::isa::IsaPlan;
use crate::lto::LtoPlan;
use crate::other_cpu::CpuEmulator;
use crate::profile::{Blas, Linkage, Threading};
use crate::variant::Variant;
use crate::zig::Zig;

/// All inputs of a build. Values that do not change the build are not part of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Name of the profile.
    pub profile: String,
    /// Variant of the profile's plain plan; `None` for the plain plan itself.
    pub variant: Option<Variant>,
    /// Target triple.
    pub target: String,
    /// Tools for a target whose architecture differs from this machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cross: Option<Cross>,
    /// Sources of llama.cpp.
    pub source: Source,
    /// C and C++ compiler.
    pub compiler: Compiler,
    /// zig, if it is the compiler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zig: Option<Zig>,
    /// Linker that the compiler uses; `None` for the compiler's default.
    pub linker: Option<Tool>,
    /// CMake program.
    pub cmake: Tool,
    /// Ninja program.
    pub ninja: Tool,
    /// libclang, for bindgen.
    pub libclang: Option<Libclang>,
    /// Rust compiler.
    pub rustc: Rustc,
    /// Definitions for CMake.
    pub definitions: BTreeMap<String, String>,
    /// CMake targets.
    pub targets: Vec<String>,
    /// Static or shared libraries.
    pub linkage: Linkage,
    /// Implementation of threads.
    pub threading: Threading,
    /// Further switches of the build.
    pub switches: Switches,
    /// Kind of BLAS library.
    pub blas: Blas,
    /// Files of the BLAS library.
    pub blas_library: Option<BlasLibrary>,
    /// CUDA, if the program computes on NVIDIA GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<CudaPlan>,
    /// Cargo profile of the engine.
    pub cargo_profile: String,
    /// Link-time optimisation.
    pub lto: LtoPlan,
    /// Flags for compilers and the linker. `rust` applies to the engine, never to build scripts.
    pub codegen: CodeGen,
    /// Environment of every command; `None` removes a variable.
    pub environment: BTreeMap<String, Option<String>>,
    /// Instruction sets: flags, features required at run time, features that the audit expects.
    pub isa: IsaPlan,
    /// True if the build contains no data of the build host.
    pub reproducible: bool,
    /// Defaults of the engine. They are only part of the record, not of the program. Therefore the hash does not
    /// include them, and an existing build gets a new record instead of being rebuilt.
    #[serde(default, skip_serializing_if = "Defaults::is_empty")]
    pub defaults: Defaults,
    /// Notes for the user. The hash does not include them.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// Variables of the user's shell that would change a build without being part of the plan. They are removed from the
/// environment of every command. For example, if `SOURCE_DATE_EPOCH` is set, llama.cpp disables `GGML_NATIVE` and
/// every AVX default.
pub const CLEARED: &[&str] = &[
    "AR",
    "ARFLAGS",
    "BINDGEN_EXTRA_CLANG_ARGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_TARGET_DIR",
    "CC",
    "CCC_OVERRIDE_OPTIONS",
    "CFLAGS",
    "CMAKE_BUILD_TYPE",
    "CMAKE_CXX_COMPILER_LAUNCHER",
    "CMAKE_C_COMPILER_LAUNCHER",
    "CMAKE_GENERATOR",
    "CMAKE_INCLUDE_PATH",
    "CMAKE_LIBRARY_PATH",
    "CMAKE_PREFIX_PATH",
    "CMAKE_TOOLCHAIN_FILE",
    "CPATH",
    "CUDAARCHS",
    "CUDACXX",
    "CUDAFLAGS",
    "CUDAHOSTCXX",
    "NVCC_APPEND_FLAGS",
    "NVCC_PREPEND_FLAGS",
    "CPLUS_INCLUDE_PATH",
    "CPPFLAGS",
    "CXX",
    "CXXFLAGS",
    "C_INCLUDE_PATH",
    "LDFLAGS",
    "LIBRARY_PATH",
    "LLVM_PROFILE_FILE",
    "RANLIB",
    "RUSTC",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTFLAGS",
    "SOURCE_DATE_EPOCH",
];

impl Plan {
    /// True if the program is for other machines.
    pub fn is_for_others(&self) -> bool {
        self.reproducible || self.cargo_profile == "dist"
    }

    /// Returns the start of the command line that runs the program on this machine, or nothing if the program needs no
    /// emulator.
    pub fn emulator_command(&self) -> Vec<String> {
        let cross = self.cross.iter().flat_map(Cross::command);
        let cpu = self.isa.other_cpu.iter().flat_map(|other| &other.emulator).flat_map(CpuEmulator::command);
        cross.chain(cpu).collect()
    }

    /// Returns the program `strip` for the program's architecture.
    pub fn strip(&self) -> &Path {
        self.cross.as_ref().map_or(Path::new("strip"), |cross| &cross.strip)
    }

    /// Returns the emulator that runs the program on this machine, with the CPU that it emulates.
    pub fn emulator(&self) -> Option<(&Tool, &str)> {
        let cross = self.cross.as_ref().map(|cross| (&cross.emulator, cross.cpu.as_str()));
        let emulator = || self.isa.other_cpu.as_ref()?.emulator.as_ref();
        cross.or_else(|| emulator().map(|found| (&found.tool, found.cpu.as_str())))
    }

    /// Returns an error if the program does not run on this machine without an emulator, so that it cannot be measured.
    pub(crate) fn check_runs_here(&self, what: &str) -> Result<()> {
        if self.cross.is_some() {
            bail!("{NOT_HERE}\nhint: {what} on a machine of that architecture");
        }
        if let Some(other) = &self.isa.other_cpu {
            bail!("{}, which this build requires\nhint: {what} on a {} CPU", other.shortfall(), self.isa.isa);
        }
        Ok(())
    }

    /// Parses a plan from JSON. Returns `None` if another version of this program wrote the plan, or its hash is not
    /// `hash`.
    pub fn parse(text: &[u8], hash: &Sha256) -> Option<Self> {
        let plan: Option<Plan> = serde_json::from_slice(text).ok();
        plan.filter(|plan| plan.hash() == *hash)
    }

    /// Returns the SHA-256 of the plan as JSON. The hash is part of the build folder's name, so different plans have
    /// different folders.
    pub fn hash(&self) -> Sha256 {
        let isa = IsaPlan { other_cpu: None, ..self.isa.clone() };
        let compiled = Plan { defaults: Defaults::default(), isa, ..self.clone() };
        // Maps are ordered, and a plan contains no floats and no custom serialiser that could fail.
        Sha256::of(serde_json::to_vec(&compiled).unwrap_or_default())
    }

    /// Returns the definitions as arguments of CMake, without definitions that only contain a folder.
    pub fn cmake_flags(&self) -> Vec<String> {
        let mut all = self.definitions.clone();
        if !self.codegen.cxx.is_empty() {
            // A profile's own definition of these variables has priority. The check of the compile database reports
            // the conflict.
            for name in ["CMAKE_C_FLAGS", "CMAKE_CXX_FLAGS"] {
                // CMake splits the value as a shell does, and a flag may contain the path of the checkout.
                let quoted = self.codegen.cxx.iter().map(|flag| shell_quote(flag));
                all.entry(name.to_string()).or_insert_with(|| quoted.collect::<Vec<_>>().join(" "));
            }
        }
        all.iter().map(|(name, value)| format!("-D{name}={value}")).collect()
    }

    /// Returns the name of the build folder.
    pub fn folder_name(&self) -> String {
        let variant = self.variant.as_ref().map_or(String::new(), |variant| format!("-{}", variant.name));
        format!("{}{variant}-{}", self.profile, self.hash().short())
    }
}
