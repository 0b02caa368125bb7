//! The plan: everything that a build needs to be told.

use std::collections::BTreeMap;

use build_info::record::{Source, Tool};
use build_info::switches::Switches;
use build_info::{Defaults, Sha256};
use serde::{Deserialize, Serialize};
use toolchain::{BlasLibrary, Compiler, Libclang, Rustc};

use crate::codegen::CodeGen;
use crate::cross::Cross;
use crate::cuda::CudaPlan;
use crate::isa::IsaPlan;
use crate::lto::LtoPlan;
use crate::profile::{Blas, Linkage, Threading};
use crate::variant::Variant;
use crate::zig::Zig;

/// Everything that a build needs to be told, and nothing that changes without changing the build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Name of the profile.
    pub profile: String,
    /// What was made of the profile's plain plan.
    pub variant: Option<Variant>,
    /// Target triple.
    pub target: String,
    /// What it takes where the target is another architecture than this machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cross: Option<Cross>,
    /// The llama.cpp sources.
    pub source: Source,
    /// C and C++ compiler.
    pub compiler: Compiler,
    /// zig, where it compiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zig: Option<Zig>,
    /// Linker that the compiler is told to use; its own default if none.
    pub linker: Option<Tool>,
    /// CMake.
    pub cmake: Tool,
    /// Ninja.
    pub ninja: Tool,
    /// For bindgen.
    pub libclang: Option<Libclang>,
    /// Rust compiler.
    pub rustc: Rustc,
    /// Definitions for CMake.
    pub definitions: BTreeMap<String, String>,
    /// CMake targets.
    pub targets: Vec<String>,
    /// Static or shared libraries.
    pub linkage: Linkage,
    /// Who runs the threads.
    pub threading: Threading,
    /// What else is turned on and off.
    pub switches: Switches,
    /// BLAS.
    pub blas: Blas,
    /// The BLAS library, file by file.
    pub blas_library: Option<BlasLibrary>,
    /// NVIDIA's GPUs, where the program computes on them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<CudaPlan>,
    /// Cargo profile of the engine.
    pub cargo_profile: String,
    /// Link-time optimisation.
    pub lto: LtoPlan,
    /// Flags for compilers and the linker. `rust` goes to the engine, never to build scripts.
    pub codegen: CodeGen,
    /// Environment of every command; nothing stands for a variable that is taken away.
    pub environment: BTreeMap<String, Option<String>>,
    /// Instruction sets: flags, what is needed at run time, what the audit expects.
    pub isa: IsaPlan,
    /// Whether nothing of the build host is in it.
    pub reproducible: bool,
    /// What the engine does by default. Nothing of it is compiled: it only goes into the record, so it is not part of the
    /// hash, and a build that is there gets a new record in place of being made again.
    #[serde(default, skip_serializing_if = "Defaults::is_empty")]
    pub defaults: Defaults,
    /// Things a person should know. Not part of the hash.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// Variables of the user's shell that would change a build and be in no plan: taken away from every command.
/// `SOURCE_DATE_EPOCH` is among them since llama.cpp turns `GGML_NATIVE` and every AVX default off when it is set.
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
    /// Whether the program is to be passed on to those who have nothing to do with this machine.
    pub fn is_for_others(&self) -> bool {
        self.reproducible || self.cargo_profile == "dist"
    }

    /// The plan that `text` holds as JSON, if this version of the program wrote it and its hash is `hash`.
    pub fn parse(text: &[u8], hash: &Sha256) -> Option<Self> {
        let plan: Option<Plan> = serde_json::from_slice(text).ok();
        plan.filter(|plan| plan.hash() == *hash)
    }

    /// SHA-256 over the plan as JSON. Names the build folder: another plan is another folder.
    pub fn hash(&self) -> Sha256 {
        let compiled = Plan { defaults: Defaults::default(), ..self.clone() };
        // Maps are ordered and nothing in a plan has a float or a custom serialiser that could fail.
        Sha256::of(serde_json::to_vec(&compiled).unwrap_or_default())
    }

    /// Definitions as CMake takes them, without those that only say where a folder lies.
    pub fn cmake_flags(&self) -> Vec<String> {
        let mut all = self.definitions.clone();
        if !self.codegen.cxx.is_empty() {
            // What a profile itself defines goes before, and the check of the compile database tells of it.
            for name in ["CMAKE_C_FLAGS", "CMAKE_CXX_FLAGS"] {
                all.entry(name.to_string()).or_insert_with(|| self.codegen.cxx.join(" "));
            }
        }
        all.iter().map(|(name, value)| format!("-D{name}={value}")).collect()
    }

    /// Name of the build folder.
    pub fn folder_name(&self) -> String {
        let variant = self.variant.as_ref().map_or(String::new(), |variant| format!("-{}", variant.name));
        format!("{}{variant}-{}", self.profile, self.hash().short())
    }
}
