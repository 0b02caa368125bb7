//! Plans derived from a plan: the same build, instrumented, with a PGO profile, or for BOLT.

use std::path::PathBuf;

use anyhow::{Result, bail};
use build_info::Sha256;
use build_info::record::Tool;
use serde::{Deserialize, Serialize};
use toolchain::{CompilerKind, Toolchain};

use crate::codegen::CodeGen;
use crate::plan::Plan;
use crate::profile::PgoScope;

/// Linker flag that keeps relocations; passed through the compiler driver.
const EMIT_RELOCATIONS: &str = "-Wl,--emit-relocs";

/// Derivation of a plan from a plain plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// Part of the build folder's name.
    pub name: String,
    /// Hash of the plain plan.
    pub base: Sha256,
    /// Digest of the PGO profile that the compilers use, or of BOLT's profile if BOLT rewrites the program.
    pub profile: Option<Sha256>,
    /// Folder of gcc's counts, which must be next to the objects.
    pub gcda: Option<PathBuf>,
    /// True if ggml-cpu is compiled without the PGO profile. Its kernels are hand-vectorised loops.
    #[serde(default)]
    pub spares_kernels: bool,
}

/// Code that a PGO profile covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Languages that the profile covers.
    pub scope: PgoScope,
    /// True if the profile covers ggml's CPU kernels. The kernels are hand-vectorised loops with few branches. With a
    /// profile, LLVM 22 makes some of them slower: on a Zen 4, prefill of an F16 model was 0.67 times as fast.
    pub kernels: bool,
}

/// Merged profile, named after its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profdata {
    /// Path of the profile.
    pub path: PathBuf,
    /// Digest of the profile's content, which includes gcc's counts if gcc compiles C++.
    pub digest: Sha256,
    /// Folder of gcc's counts of the C++ code, if gcc compiles.
    pub gcda: Option<PathBuf>,
}

impl Plan {
    /// Returns this build with counters in the code of `subject`.
    ///
    /// Counters are plain additions, so several threads would lose counts. Atomic counters made training 15 times as
    /// slow, so training uses one thread.
    pub fn instrumented(&self, subject: Subject) -> Plan {
        let mut codegen = CodeGen::default();
        // This flag is also required if only C++ is optimised: it adds the profile runtime that C++'s counters need.
        codegen.own_rust.push("-Cprofile-generate".to_string());
        if subject.scope.cpp() {
            codegen.cxx.push("-fprofile-generate".to_string());
            if self.compiler.kind == CompilerKind::Gcc {
                codegen.cxx.push("-fprofile-update=single".to_string());
                // Link with gcc, which adds libgcov, the library that writes the counts.
                codegen.rust.push(format!("-Clinker={}", self.compiler.cc.display()));
                codegen.link.push("-fprofile-generate".to_string());
            }
        }
        self.derived("pgo-train", None, codegen).sparing_kernels(subject)
    }

    /// Returns this build with the profile `profdata` for the code of `subject`.
    pub fn profiled(&self, subject: Subject, profdata: &Profdata) -> Plan {
        let scope = subject.scope;
        let mut codegen = CodeGen::default();
        let path = profdata.path.display();
        match &profdata.gcda {
            // Files that the training never reached have no counts. gcc does not find the shim's counts either,
            // because cargo compiles the shim in another folder.
            Some(_) => codegen.cxx.extend(
                ["-fprofile-use", "-fprofile-correction", "-Wno-missing-profile"].map(str::to_string),
            ),
            None if scope.cpp() => codegen.cxx.push(format!("-fprofile-use={path}")),
            None => {}
        }
        if scope.rust() {
            codegen.own_rust.push(format!("-Cprofile-use={path}"));
        }
        self.derived("pgo", Some(profdata), codegen).sparing_kernels(subject)
    }

    /// Returns this build with the relocations that BOLT needs to move code. The relocations are not loaded at run
    /// time.
    pub fn relocatable(&self) -> Plan {
        let codegen = CodeGen { link: vec![EMIT_RELOCATIONS.to_string()], ..CodeGen::default() };
        self.derived("relocatable", None, codegen)
    }

    /// Returns this build, rewritten by BOLT with the profile whose digest is `profile`.
    pub fn bolted(&self, profile: &Sha256) -> Plan {
        let codegen = CodeGen { link: vec![EMIT_RELOCATIONS.to_string()], ..CodeGen::default() };
        let mut plan = self.derived("bolt", None, codegen);
        if let Some(variant) = &mut plan.variant {
            variant.profile = Some(profile.clone());
        }
        plan
    }

    fn derived(&self, name: &str, profdata: Option<&Profdata>, more: CodeGen) -> Plan {
        let earlier = self.variant.clone();
        let variant = Variant {
            name: earlier.as_ref().map_or(name.to_string(), |variant| format!("{}-{name}", variant.name)),
            base: self.base(),
            profile: profdata
                .map(|profdata| profdata.digest.clone())
                .or(earlier.as_ref().and_then(|variant| variant.profile.clone())),
            gcda: profdata
                .and_then(|profdata| profdata.gcda.clone())
                .or(earlier.as_ref().and_then(|variant| variant.gcda.clone())),
            spares_kernels: earlier.is_some_and(|variant| variant.spares_kernels),
        };
        Plan {
            variant: Some(variant),
            codegen: self.codegen.clone().and(more),
            // The plan does not contain the content of the profile.
            reproducible: false,
            ..self.clone()
        }
    }

    fn sparing_kernels(mut self, subject: Subject) -> Plan {
        if let Some(variant) = &mut self.variant {
            variant.spares_kernels = subject.scope.cpp() && !subject.kernels;
        }
        self
    }

    /// Returns the hash of the plain plan from which this plan is derived. For a plain plan, this is its own hash.
    pub fn base(&self) -> Sha256 {
        self.variant.as_ref().map_or_else(|| self.hash(), |variant| variant.base.clone())
    }
}

/// Returns the `llvm-profdata` that reads the counts of rustc and clang. gcc reads its own counts.
///
/// # Errors
/// If the build is for another machine, the compilers use different LLVM versions, or clang's profile runtime or a
/// suitable `llvm-profdata` is not installed. All are reported before anything is compiled.
pub fn profdata_tool(plan: &Plan, scope: PgoScope, toolchain: &Toolchain) -> Result<Tool> {
    plan.check_runs_here("record the PGO profile")?;
    let rustc = plan.rustc.llvm.major;
    let cxx = plan.compiler.version.major;
    if scope.cpp() && plan.compiler.kind == CompilerKind::Clang && cxx != rustc {
        bail!(
            "clang {cxx} and rustc (LLVM {rustc}) write profiles in different formats\nhint: install \
             clang-{rustc}, or a rustc based on LLVM {cxx} with `rustup toolchain install`, or use --scope rust"
        );
    }
    // rustc has its own runtime for the engine, but CMake links its first test program with clang.
    if scope.cpp() && plan.compiler.kind == CompilerKind::Clang && !toolchain.profile_runtimes.contains(&cxx)
    {
        bail!(
            "clang {cxx} has no profile runtime, so it cannot link a program that collects a profile\nhint: \
             install libclang-rt-{cxx}-dev (Debian) or compiler-rt, or use --scope rust"
        );
    }
    match toolchain.llvm_profdata.iter().find(|tool| tool.llvm_major == Some(rustc)) {
        Some(tool) => Ok(tool.clone()),
        None => {
            let found: Vec<String> =
                toolchain.llvm_profdata.iter().map(|tool| tool.version.clone()).collect();
            bail!(
                "merging profiles of rustc (LLVM {rustc}) requires llvm-profdata {rustc}, but {} is \
                 installed\nhint: install llvm-{rustc} (Debian), or run `rustup component add llvm-tools`",
                if found.is_empty() {
                    "none".to_string()
                } else {
                    format!("only version {}", found.join(", "))
                }
            )
        }
    }
}
