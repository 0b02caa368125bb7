//! Link-time optimisation of C++ and Rust, together or separately.
//!
//! If clang and rustc have the same LLVM major version, one lld reads the bitcode of both, and the linker can inline
//! C++ into Rust (<https://doc.rust-lang.org/rustc/linker-plugin-lto.html>). Otherwise each side is optimised
//! separately.

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
    /// Mode that the profile requests.
    pub mode: Lto,
    /// True if C++ can be inlined into Rust.
    pub across: bool,
    /// Archiver that can read the format of the objects; `None` for the default.
    pub ar: Option<PathBuf>,
    /// Archive indexer that can read the format of the objects; `None` for the default.
    pub ranlib: Option<PathBuf>,
    /// Flags for the tools.
    #[serde(skip)]
    pub codegen: CodeGen,
}

/// Plans link-time optimisation.
///
/// # Errors
/// If the compiler is clang, and lld or llvm-ar of the same version is missing.
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
                    "link-time optimisation with clang {major} requires lld {major}, which is missing\nhint: \
                     `cargo xtask setup` installs it"
                )
            })?;
            let ar = toolchain.llvm_ar.iter().find(|ar| ar.llvm_major == Some(major)).with_context(|| {
                format!(
                    "link-time optimisation with clang {major} requires llvm-ar {major}, which is \
                     missing\nhint: `cargo xtask setup` installs it (package llvm-{major} on Debian)"
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
                    "C++ and Rust are optimised separately at link time, because clang is based on LLVM \
                     {major} and rustc on LLVM {rustc}; with clang {rustc}, calls between the languages \
                     could be inlined"
                ));
            } else {
                plan.codegen.rust.push("-Clinker-plugin-lto".to_string());
                // This flag is for shared objects that other crates make in addition to their libraries. The engine's
                // own flags select this linker for the engine.
                plan.codegen.rust.push(format!("-Clink-arg=--ld-path={}", lld.path.display()));
                // rustc always writes summaries, and lld excludes modules with summaries from a full LTO.
                plan.across = mode == Lto::Thin;
                if mode == Lto::Full {
                    notes.push(
                        "`lto = \"full\"` merges all C++ into one module and adds Rust as thin modules, so \
                         calls between the languages are not inlined; `lto = \"thin\"` inlines them"
                            .to_string(),
                    );
                }
            }
        }
        CompilerKind::Gcc => {
            let cc = &tools.compiler.cc;
            // gcc's own archiver loads the plugin that reads gcc's objects. A compiler called `cc` has no such
            // sibling.
            if file_name(cc).contains("gcc") {
                plan.ar = Some(sibling(cc, "gcc", "gcc-ar"));
                plan.ranlib = Some(sibling(cc, "gcc", "gcc-ranlib"));
            } else {
                plan.codegen.cxx.push("-ffat-lto-objects".to_string());
            }
            plan.codegen.cxx.push("-flto=auto".to_string());
            plan.codegen.rust.push(format!("-Clinker={}", tools.compiler.cc.display()));
            plan.codegen.rust.extend(without_rusts_lld(&tools.rustc));
            // Only GNU linkers load gcc's plugin.
            plan.codegen.link.extend(["-fuse-ld=bfd".to_string(), "-flto=auto".to_string()]);
            plan.codegen.cargo_lto = Some(alone.to_string());
            notes.push(format!(
                "C++ and Rust are optimised separately at link time, because gcc {} and rustc have no \
                 common bitcode format; clang {} and rustc do",
                tools.compiler.version, tools.rustc.llvm.major
            ));
        }
    }
    Ok(plan)
}

/// Returns the flags to link the engine with clang and the lld at `lld`, which reads the bitcode of C++ and Rust.
pub fn linked_by_lld(clang: &Path, lld: &Path, rustc: &Rustc) -> CodeGen {
    let mut rust = vec![format!("-Clinker={}", clang.display())];
    rust.extend(without_rusts_lld(rustc));
    CodeGen { rust, link: vec![format!("--ld-path={}", lld.display())], ..CodeGen::default() }
}

/// Returns the flag that keeps rustc from using its own lld. Since 1.90, rustc prefers its lld to any named linker on
/// this target. On other targets, the flag is unstable and not needed.
/// <https://blog.rust-lang.org/2025/09/01/rust-lld-on-1.90.0-stable/>
fn without_rusts_lld(rustc: &Rustc) -> Option<String> {
    (rustc.host == "x86_64-unknown-linux-gnu").then(|| "-Clinker-features=-lld".to_string())
}
