//! Link-time optimisation: whose bitcode meets whose.
//!
//! clang and rustc of one LLVM major write bitcode that one lld reads, so the linker can inline C++ into Rust
//! (<https://doc.rust-lang.org/rustc/linker-plugin-lto.html>). Otherwise each side is optimised for itself.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use toolchain::{CompilerKind, Rustc, Toolchain};

use crate::codegen::CodeGen;
use crate::profile::Lto;
use crate::siblings::{file_name, sibling};
use crate::tools::Tools;

/// Link-time optimisation of a build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LtoPlan {
    /// As the profile has it.
    pub mode: Lto,
    /// Whether C++ can be inlined into Rust.
    pub across: bool,
    /// Archiver that knows the objects' format.
    pub ar: Option<PathBuf>,
    /// Indexer of archives, likewise.
    pub ranlib: Option<PathBuf>,
    /// What it takes of the tools.
    #[serde(skip)]
    pub codegen: CodeGen,
}

/// Plans it.
///
/// # Errors
/// When clang is to do it and lld or llvm-ar of its version is missing.
pub fn plan(mode: Lto, tools: &Tools, toolchain: &Toolchain, notes: &mut Vec<String>) -> Result<LtoPlan> {
    let mut plan = LtoPlan { mode, across: false, ar: None, ranlib: None, codegen: CodeGen::default() };
    if mode == Lto::Off {
        return Ok(plan);
    }
    let alone = if mode == Lto::Full { "fat" } else { "thin" };
    match tools.compiler.kind {
        CompilerKind::Clang => {
            let major = tools.compiler.version.major;
            let lld = tools.linker.as_ref().with_context(|| {
                format!(
                    "link-time optimisation with clang {major} takes lld {major}, and there is none; `cargo xtask \
                     setup` installs it"
                )
            })?;
            let ar = toolchain.llvm_ar.iter().find(|ar| ar.llvm_major == Some(major)).with_context(|| {
                format!(
                    "link-time optimisation with clang {major} takes llvm-ar {major}, which writes archives of \
                     bitcode, and there is none; `cargo xtask setup` installs it (package llvm-{major} on Debian)"
                )
            })?;
            plan.ar = Some(ar.path.clone());
            plan.ranlib = Some(sibling(&ar.path, "llvm-ar", "llvm-ranlib"));
            plan.codegen = linked_by_lld(&tools.compiler.cc, &lld.path, &tools.rustc);
            plan.codegen.cxx.push(format!("-flto={mode}"));
            let rustc = tools.rustc.llvm.major;
            if rustc != major {
                plan.codegen.cargo_lto = Some(alone.to_string());
                notes.push(format!(
                    "C++ and Rust are optimised each for itself at link time: clang is of LLVM {major}, rustc of LLVM \
                     {rustc}; with clang {rustc} calls between them can be inlined"
                ));
            } else {
                plan.codegen.rust.push("-Clinker-plugin-lto".to_string());
                // For the shared objects that crates of others are made into beside their libraries: the engine itself
                // gets this linker by its own flags.
                plan.codegen.rust.push(format!("-Clink-arg=--ld-path={}", lld.path.display()));
                // rustc writes summaries always, and lld keeps modules with summaries apart from a full LTO.
                plan.across = mode == Lto::Thin;
                if mode == Lto::Full {
                    notes.push(
                        "`lto = \"full\"` makes one module of all C++; Rust joins it as thin modules, so nothing is \
                         inlined across the border: `lto = \"thin\"` does that"
                            .to_string(),
                    );
                }
            }
        }
        CompilerKind::Gcc => {
            let cc = &tools.compiler.cc;
            // gcc's own archiver loads the plugin that reads its objects; `cc` has no such sibling.
            if file_name(cc).contains("gcc") {
                plan.ar = Some(sibling(cc, "gcc", "gcc-ar"));
                plan.ranlib = Some(sibling(cc, "gcc", "gcc-ranlib"));
            } else {
                plan.codegen.cxx.push("-ffat-lto-objects".to_string());
            }
            plan.codegen.cxx.push("-flto=auto".to_string());
            plan.codegen.rust.push(format!("-Clinker={}", tools.compiler.cc.display()));
            plan.codegen.rust.extend(without_rusts_lld(&tools.rustc));
            // Only GNU's linkers load gcc's plugin.
            plan.codegen.link.extend(["-fuse-ld=bfd".to_string(), "-flto=auto".to_string()]);
            plan.codegen.cargo_lto = Some(alone.to_string());
            notes.push(format!(
                "C++ and Rust are optimised each for itself at link time: gcc {} and rustc share no intermediate \
                 code; clang {} does",
                tools.compiler.version, tools.rustc.llvm.major
            ));
        }
    }
    Ok(plan)
}

/// The engine linked by clang with the lld at `lld`, which reads the bitcode of both sides.
pub fn linked_by_lld(clang: &Path, lld: &Path, rustc: &Rustc) -> CodeGen {
    let mut rust = vec![format!("-Clinker={}", clang.display())];
    rust.extend(without_rusts_lld(rustc));
    CodeGen { rust, link: vec![format!("--ld-path={}", lld.display())], ..CodeGen::default() }
}

/// Since 1.90 rustc puts its own lld before any linker that is named, on this one target; elsewhere the flag is not
/// stable and not needed. <https://blog.rust-lang.org/2025/09/01/rust-lld-on-1.90.0-stable/>
fn without_rusts_lld(rustc: &Rustc) -> Option<String> {
    (rustc.host == "x86_64-unknown-linux-gnu").then(|| "-Clinker-features=-lld".to_string())
}
