//! Plans derived from a plan: the same build, instrumented, with a profile, or ready for BOLT.

use std::path::PathBuf;

use anyhow::{Result, bail};
use build_info::Sha256;
use build_info::record::Tool;
use serde::{Deserialize, Serialize};
use toolchain::{CompilerKind, Toolchain};

use crate::codegen::CodeGen;
use crate::cross::NOT_HERE;
use crate::plan::Plan;
use crate::profile::PgoScope;

/// For the linker, through the compiler that drives it.
const EMIT_RELOCATIONS: &str = "-Wl,--emit-relocs";

/// What was made of a plain plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// Part of the build folder's name.
    pub name: String,
    /// Hash of the plain plan.
    pub base: Sha256,
    /// The profile that the compilers use; where BOLT rewrites the program, BOLT's.
    pub profile: Option<Sha256>,
    /// Where gcc's counts lie, which are put beside the objects.
    pub gcda: Option<PathBuf>,
    /// Whether ggml-cpu, whose kernels are loops written for vectors by hand, is compiled as without a profile.
    #[serde(default)]
    pub spares_kernels: bool,
}

/// What a profile is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Which code.
    pub scope: PgoScope,
    /// Whether ggml's CPU kernels are part of it. They are loops written for vectors by hand, with hardly a branch; with
    /// a profile LLVM 22 lays some of them out worse: prefill of an F16 model was 0.67 times as fast on a Zen 4.
    pub kernels: bool,
}

/// A merged profile, named by its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profdata {
    /// The file.
    pub path: PathBuf,
    /// Digest of its content; where gcc compiles, with that of its counts.
    pub digest: Sha256,
    /// Folder of gcc's counts of the C++ code, where gcc compiles.
    pub gcda: Option<PathBuf>,
}

impl Plan {
    /// This build with counters in the code of `scope`.
    ///
    /// The counters are plain additions. Threads lose some of each other's counts so; atomic ones made the
    /// training 15 times as slow, and one thread at a time trains anyway.
    pub fn instrumented(&self, subject: Subject) -> Plan {
        let mut codegen = CodeGen::default();
        // Even when only C++ is to be optimised: Rust's flag brings the profile runtime that C++'s counters need,
        // so that clang's own (libclang-rt) is not.
        codegen.own_rust.push("-Cprofile-generate".to_string());
        if subject.scope.cpp() {
            codegen.cxx.push("-fprofile-generate".to_string());
            if self.compiler.kind == CompilerKind::Gcc {
                codegen.cxx.push("-fprofile-update=single".to_string());
                // For libgcov, which writes the counts.
                codegen.rust.push(format!("-Clinker={}", self.compiler.cc.display()));
                codegen.link.push("-fprofile-generate".to_string());
            }
        }
        self.derived("pgo-train", None, codegen).sparing_kernels(subject)
    }

    /// This build with the profile `profdata` for the code of `scope`.
    pub fn profiled(&self, subject: Subject, profdata: &Profdata) -> Plan {
        let scope = subject.scope;
        let mut codegen = CodeGen::default();
        let path = profdata.path.display();
        match &profdata.gcda {
            // Files that training never reached have no counts; and those of the shim, which cargo compiles
            // elsewhere, are not found.
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

    /// This build with the relocations that BOLT needs to move code about. They are no part of what is loaded.
    pub fn relocatable(&self) -> Plan {
        let codegen = CodeGen { link: vec![EMIT_RELOCATIONS.to_string()], ..CodeGen::default() };
        self.derived("relocatable", None, codegen)
    }

    /// This build, rewritten by BOLT with the profile of the digest `profile`.
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
            // Nothing of a profile is in the plan that names every flag.
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

    /// Hash of the plain plan that this one comes from; its own when it is plain.
    pub fn base(&self) -> Sha256 {
        self.variant.as_ref().map_or_else(|| self.hash(), |variant| variant.base.clone())
    }
}

/// The `llvm-profdata` that reads what rustc and clang write. gcc reads its own counts.
///
/// # Errors
/// When the build is for another machine, the compilers are of different LLVMs, or there is no such `llvm-profdata`: before anything is compiled.
pub fn profdata_tool(plan: &Plan, scope: PgoScope, toolchain: &Toolchain) -> Result<Tool> {
    if plan.cross.is_some() {
        bail!("{NOT_HERE}: gather the profile there");
    }
    let rustc = plan.rustc.llvm.major;
    let cxx = plan.compiler.version.major;
    if scope.cpp() && plan.compiler.kind == CompilerKind::Clang && cxx != rustc {
        bail!(
            "clang {cxx} and rustc (LLVM {rustc}) write profiles of different formats: install clang-{rustc}, or take \
             a rustc of LLVM {cxx} with `rustup toolchain install`, or use --scope rust"
        );
    }
    match toolchain.llvm_profdata.iter().find(|tool| tool.llvm_major == Some(rustc)) {
        Some(tool) => Ok(tool.clone()),
        None => {
            let found: Vec<String> =
                toolchain.llvm_profdata.iter().map(|tool| tool.version.clone()).collect();
            bail!(
                "llvm-profdata {rustc} is needed to merge profiles of rustc (LLVM {rustc}), and there is {}: install \
                 llvm-{rustc} (Debian), or `rustup component add llvm-tools`",
                if found.is_empty() { "none".to_string() } else { format!("only {}", found.join(", ")) }
            )
        }
    }
}
