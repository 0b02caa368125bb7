//! Host + profile + source + toolchain → plan. Pure: no file, no clock, no environment is read here, so a
//! plan for a machine that is not here can be printed, compared and tested. What was planned can be read again.

mod aarch64;
pub mod blas;
pub mod bolt;
pub mod choose;
pub mod codegen;
mod cross;
pub mod cuda;
mod defaults;
mod definitions;
pub mod isa;
pub mod lto;
pub mod march;
mod places;
mod print;
mod switches;
#[cfg(test)]
pub(crate) mod tests;
pub mod variant;
pub mod zig;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use build_info::record::{Source, Tool};
use build_info::switches::Switches;
use build_info::{Defaults, Host, Sha256};
use serde::{Deserialize, Serialize};
use toolchain::{BlasLibrary, Compiler, Libclang, Rustc, Toolchain};

use crate::exit;
use crate::profile::{Blas, Isa, Linkage, Profile, Threading};
pub use codegen::CodeGen;
pub use cross::Cross;
pub use cuda::CudaPlan;
pub use isa::IsaPlan;
pub use lto::LtoPlan;
pub use variant::Variant;
pub use zig::Zig;

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

/// The plan of `profile` for `host`, with the tools at hand.
///
/// # Errors
/// When a tool is missing or too old, naming the command that installs it; when the profile makes no sense on
/// this architecture.
pub fn plan(host: &Host, profile: &Profile, source: &Source, toolchain: &Toolchain) -> Result<Plan> {
    if profile.reproducible && matches!(profile.isa, Isa::Native | Isa::Upstream) {
        return Err(exit::usage(format!(
            "profile {}: `reproducible = true` does not go with `isa = \"{}\"`, which looks at the build host",
            profile.name, profile.isa
        )));
    }
    let mut notes = Vec::new();
    let tools = choose::choose(profile, host, toolchain, &mut notes)?;
    let isa = isa::plan(profile, host, &tools, &mut notes)?;
    let lto = lto::plan(profile.lto, &tools, toolchain, &mut notes)?;
    let switches = switches::that_apply(profile, &tools.aim, &mut notes)?;
    let of_switches = switches::plan(profile, &switches, &tools, toolchain, &mut notes)?;
    let cuda = cuda::plan(profile, host, &tools, toolchain, &mut notes)?;
    let defaults = defaults::plan(profile, cuda.as_ref())?;
    let definitions = definitions::definitions(profile, &switches, source, &tools, &isa, &lto, cuda.as_ref());
    Ok(Plan {
        profile: profile.name.clone(),
        variant: None,
        target: tools.aim.triple,
        cross: tools.aim.cross,
        source: source.clone(),
        definitions,
        targets: profile.targets.clone(),
        linkage: profile.linkage,
        threading: profile.threading,
        switches,
        blas: profile.blas,
        blas_library: tools.blas,
        cuda,
        cargo_profile: profile.cargo_profile.clone(),
        codegen: isa
            .codegen
            .clone()
            .and(lto.codegen.clone())
            .and(of_switches)
            .and(tools.zig.as_ref().map(|_| zig::codegen()).unwrap_or_default()),
        lto,
        environment: CLEARED
            .iter()
            .map(|name| (name.to_string(), None))
            // Messages of compilers are parsed and shown: one language.
            .chain([("LC_ALL".to_string(), Some("C.UTF-8".to_string()))])
            .collect(),
        isa,
        reproducible: profile.reproducible,
        defaults,
        compiler: tools.compiler,
        zig: tools.zig,
        linker: tools.linker,
        cmake: tools.cmake,
        ninja: tools.ninja,
        libclang: tools.libclang,
        rustc: tools.rustc,
        notes,
    })
}

/// Variables of the user's shell that would change a build and be in no plan: taken away from every command.
/// `SOURCE_DATE_EPOCH` is among them since llama.cpp turns `GGML_NATIVE` and every AVX default off when it is set.
pub(crate) const CLEARED: &[&str] = &[
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

    /// The plan of the build in `folder`, whose record has the hash `hash`.
    ///
    /// # Errors
    /// When another version of this program wrote it.
    pub fn read(folder: &Path, hash: &Sha256) -> Result<Self> {
        let path = folder.join("plan.json");
        let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let plan: Option<Plan> = serde_json::from_slice(&text).ok();
        plan.filter(|plan| plan.hash() == *hash).with_context(|| {
            format!("{} was written by another version of cargo xtask: make that build again", path.display())
        })
    }

    /// SHA-256 over the plan as JSON. Names the build folder: another plan is another folder.
    pub fn hash(&self) -> Sha256 {
        let compiled = Plan { defaults: Defaults::default(), ..self.clone() };
        // Maps are ordered and nothing in a plan has a float or a custom serialiser that could fail.
        crate::fs::digest(&serde_json::to_vec(&compiled).unwrap_or_default())
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
