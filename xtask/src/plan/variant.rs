//! Plans derived from a plan: the same build, instrumented, with a profile, or ready for BOLT.

use std::path::PathBuf;

use anyhow::{Result, bail};
use build_info::Sha256;
use build_info::record::Tool;
use serde::Serialize;
use toolchain::{CompilerKind, Toolchain};

use super::{CodeGen, Plan};
use crate::profile::PgoScope;

/// What was made of a plain plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Variant {
    /// Part of the build folder's name.
    pub name: String,
    /// Hash of the plain plan.
    pub base: Sha256,
    /// The profile that the compilers use.
    pub profile: Option<Sha256>,
}

/// A merged profile, named by its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profdata {
    /// The file.
    pub path: PathBuf,
    /// Digest of its content.
    pub digest: Sha256,
}

impl Plan {
    /// This build with counters in the code of `scope`.
    ///
    /// The counters are plain additions. Threads lose some of each other's counts so; atomic ones made the
    /// training 15 times as slow, and one thread at a time trains anyway.
    pub fn instrumented(&self, scope: PgoScope) -> Plan {
        let mut codegen = CodeGen::default();
        // Even when only C++ is to be optimised: Rust's flag brings the profile runtime that C++'s counters need,
        // so that clang's own (libclang-rt) is not.
        codegen.rust.push("-Cprofile-generate".to_string());
        if scope.cpp() {
            codegen.cxx.push("-fprofile-generate".to_string());
        }
        self.derived("pgo-train", None, codegen)
    }

    /// This build with the profile `profdata` for the code of `scope`.
    pub fn profiled(&self, scope: PgoScope, profdata: &Profdata) -> Plan {
        let mut codegen = CodeGen::default();
        let path = profdata.path.display();
        if scope.cpp() {
            codegen.cxx.push(format!("-fprofile-use={path}"));
        }
        if scope.rust() {
            codegen.rust.push(format!("-Cprofile-use={path}"));
        }
        self.derived("pgo", Some(profdata.digest.clone()), codegen)
    }

    /// This build with the relocations that BOLT needs to move code about. They are no part of what is loaded.
    pub fn relocatable(&self) -> Plan {
        let codegen = CodeGen { link: vec!["-Wl,--emit-relocs".to_string()], ..CodeGen::default() };
        self.derived("relocatable", None, codegen)
    }

    fn derived(&self, name: &str, profile: Option<Sha256>, more: CodeGen) -> Plan {
        let base = self.base();
        let (names, earlier) = match &self.variant {
            Some(variant) => (format!("{}-{name}", variant.name), variant.profile.clone()),
            None => (name.to_string(), None),
        };
        Plan {
            variant: Some(Variant { name: names, base, profile: profile.or(earlier) }),
            codegen: self.codegen.clone().and(more),
            // Nothing of a profile is in the plan that names every flag.
            reproducible: false,
            ..self.clone()
        }
    }

    /// Hash of the plain plan that this one comes from; its own when it is plain.
    pub fn base(&self) -> Sha256 {
        self.variant.as_ref().map_or_else(|| self.hash(), |variant| variant.base.clone())
    }
}

/// The `llvm-profdata` that reads what both compilers write.
///
/// # Errors
/// When the compilers are of different LLVMs, or there is no such `llvm-profdata`: before anything is compiled.
pub fn profdata_tool(plan: &Plan, scope: PgoScope, toolchain: &Toolchain) -> Result<Tool> {
    let rustc = plan.rustc.llvm.major;
    let cxx = plan.compiler.version.major;
    if scope.cpp() && plan.compiler.kind != CompilerKind::Clang {
        bail!(
            "one profile over C++ and Rust takes clang {rustc}, and the compiler is {} {cxx}: `cargo xtask setup` \
             installs clang (Debian: clang-{rustc}), or use --scope rust",
            plan.compiler.kind
        );
    }
    if scope.cpp() && cxx != rustc {
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
