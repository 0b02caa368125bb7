//! Checks for installed tools that do not fit together.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::setup::manager::{AptVersions, Manager};
use crate::setup::requirement::{self, Requirement};
use crate::tools::{
    CLANG_AT_LEAST, CMAKE_AT_LEAST, Compiler, CompilerKind, GCC_AT_LEAST, LIBCLANG_AT_LEAST, Toolchain,
};

/// Two tools, or a tool and a requirement, that do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    /// Severity of the mismatch.
    pub severity: Severity,
    /// Tools that do not fit together.
    pub what: String,
    /// Consequence of the mismatch.
    pub why: String,
    /// Remedy, preferably a command.
    pub mend: String,
}

/// Severity of a mismatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Prevents every build.
    Blocks,
    /// Something is slower or cannot be used.
    Costs,
    /// Informs the user; the build works around the mismatch.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Severity::Blocks => "blocks",
            Severity::Costs => "costs",
            Severity::Note => "note",
        })
    }
}

/// Returns all mismatches among the tools, the most severe first, with remedies for `manager`.
pub fn mismatches(toolchain: &Toolchain, manager: Option<Manager>) -> Vec<Mismatch> {
    let check = Check { toolchain, manager };
    let mut found = Vec::new();
    found.extend(check.cmake());
    found.extend(check.compilers());
    found.extend(check.libclang());
    found.extend(check.rustc_and_clang());
    found.extend(check.lld());
    found.extend(check.profdata());
    found.extend(check.nvcc());
    found.extend(check.cuda_home());
    found.sort_by_key(|mismatch| mismatch.severity);
    found
}

struct Check<'a> {
    toolchain: &'a Toolchain,
    manager: Option<Manager>,
}

impl Check<'_> {
    /// Returns the command that installs `requirement` for the major version `major` of LLVM.
    fn mend(&self, requirement: Requirement, major: u32) -> String {
        let packages = |manager: Manager| manager.packages(requirement, &AptVersions::of_llvm(major));
        match self.manager.and_then(|manager| Some((manager, packages(manager)?))) {
            Some((manager, packages)) => manager.install_by_hand(&packages),
            None => format!("install {requirement} (LLVM {major})"),
        }
    }

    /// Returns the major version of rustc's LLVM.
    fn rustc(&self) -> Option<u32> {
        self.toolchain.rustc.as_ref().map(|rustc| rustc.llvm.major)
    }

    fn clang(&self) -> Option<&Compiler> {
        requirement::clang(self.toolchain)
    }

    fn cmake(&self) -> Option<Mismatch> {
        let cmake = self.toolchain.cmake.as_ref()?;
        let version = requirement::version(cmake)?;
        (version < CMAKE_AT_LEAST).then(|| Mismatch {
            severity: Severity::Blocks,
            what: format!("cmake {version} ({})", cmake.path.display()),
            why: format!("builds require cmake {CMAKE_AT_LEAST} or later"),
            mend: "cargo xtask setup (installs cmake with pip, only for this checkout)".to_string(),
        })
    }

    fn compilers(&self) -> Option<Mismatch> {
        if self.clang().is_some() || requirement::gcc(self.toolchain).is_some() {
            return None;
        }
        let newest = |kind| requirement::newest(self.toolchain, kind);
        let best = newest(CompilerKind::Clang).or_else(|| newest(CompilerKind::Gcc))?;
        Some(Mismatch {
            severity: Severity::Blocks,
            what: format!("{} {} ({})", best.kind, best.version, best.cc.display()),
            why: format!("llama.cpp needs clang {CLANG_AT_LEAST} or gcc {GCC_AT_LEAST}, or later"),
            mend: self.mend(Requirement::Clang, self.rustc().unwrap_or(CLANG_AT_LEAST)),
        })
    }

    fn libclang(&self) -> Option<Mismatch> {
        let major = self.clang().map(|clang| clang.version.major).or(self.rustc()).unwrap_or(CLANG_AT_LEAST);
        let mend = || self.mend(Requirement::Libclang, major);
        let severity = Severity::Blocks;
        let Some(first) = self.toolchain.libclang.first() else {
            return Some(Mismatch {
                severity,
                what: "libclang or its headers are missing".to_string(),
                why: "bindgen needs libclang to read llama.h".to_string(),
                mend: mend(),
            });
        };
        (1..LIBCLANG_AT_LEAST).contains(&first.version.major).then(|| Mismatch {
            severity,
            what: format!("libclang {} ({})", first.version, first.dir.display()),
            why: format!("bindgen needs version {LIBCLANG_AT_LEAST} or later"),
            mend: mend(),
        })
    }

    fn rustc_and_clang(&self) -> Option<Mismatch> {
        let (clang, rustc) = (self.clang()?, self.rustc()?);
        let of_rustc =
            |compiler: &Compiler| compiler.kind == CompilerKind::Clang && compiler.version.major == rustc;
        (!self.toolchain.compilers.iter().any(of_rustc)).then(|| Mismatch {
            severity: Severity::Costs,
            what: format!("clang {} and rustc's LLVM {rustc}", clang.version),
            why: "link-time optimisation across C++ and Rust, and a PGO profile for both, require the same \
                  LLVM version"
                .to_string(),
            mend: self.mend(Requirement::Clang, rustc),
        })
    }

    fn lld(&self) -> Option<Mismatch> {
        let clang = self.clang()?;
        let newest = self.toolchain.lld.first()?;
        let major = clang.version.major;
        (!self.toolchain.lld.iter().any(|lld| lld.llvm_major == Some(major))).then(|| Mismatch {
            severity: Severity::Costs,
            what: format!("lld {} ({}) and clang {}", newest.version, newest.path.display(), clang.version),
            why: "a linker from another LLVM version cannot read clang's bitcode, so link-time optimisation is impossible"
                .to_string(),
            mend: self.mend(Requirement::Lld, major),
        })
    }

    /// Checks llvm-profdata. rustc and clang write profiles in the format of their LLVM, which a newer llvm-profdata
    /// can read and an older one cannot.
    fn profdata(&self) -> Vec<Mismatch> {
        let clang = self.clang().map(|clang| ("clang", clang.version.major));
        let rustc = self.rustc().map(|major| ("rustc's LLVM", major));
        let Some((whose, needed)) = clang.into_iter().chain(rustc).max_by_key(|(_, major)| *major) else {
            return Vec::new();
        };
        let tools = &self.toolchain.llvm_profdata;
        let good = tools.iter().find(|tool| tool.llvm_major >= Some(needed));
        let old: Vec<_> = tools.iter().filter(|tool| tool.llvm_major < Some(needed)).collect();
        let what = |tool: &build_info::record::Tool| {
            format!("llvm-profdata {} ({}) and {whose} {needed}", tool.version, tool.path.display())
        };
        match (good, old.as_slice()) {
            (Some(good), old) => old
                .iter()
                .map(|tool| Mismatch {
                    severity: Severity::Note,
                    what: what(tool),
                    why: "an older llvm-profdata cannot read the profiles".to_string(),
                    mend: format!(
                        "not needed, because builds use {}; use the same program on the command line",
                        good.path.display()
                    ),
                })
                .collect(),
            (None, [newest, ..]) => vec![Mismatch {
                severity: Severity::Costs,
                what: what(newest),
                why:
                    "an older llvm-profdata cannot read the profiles, so profile-guided builds are impossible"
                        .to_string(),
                mend: self.mend(Requirement::LlvmTools, needed),
            }],
            (None, []) => Vec::new(),
        }
    }

    /// Reports that the toolkit that the user specified is not usable. The build uses another toolkit or none.
    fn cuda_home(&self) -> Option<Mismatch> {
        let named = self.toolchain.cuda_home.as_ref()?;
        let fault = named.fault.as_ref()?;
        Some(Mismatch {
            severity: Severity::Costs,
            what: named.to_string(),
            why: format!("it contains no CUDA toolkit: {fault}"),
            mend: format!("set {0} to the folder that contains bin/nvcc, or unset {0}", named.variable),
        })
    }

    /// Reports if CUDA accepts no installed host compiler. CUDA refuses compilers newer than those it knows.
    fn nvcc(&self) -> Option<Mismatch> {
        let cuda = self.toolchain.cuda.first()?;
        if self.toolchain.compilers.iter().any(|compiler| cuda.takes(compiler)) {
            return None;
        }
        let first = self.toolchain.default_compiler.as_ref().or(self.toolchain.compilers.first())?;
        let bound = cuda.hosts.newest(first.kind).unwrap_or_default();
        Some(Mismatch {
            severity: Severity::Costs,
            what: format!("nvcc {} and {} {}", cuda.nvcc.version, first.kind, first.version),
            why: format!(
                "this version of CUDA accepts {} up to version {bound} as its host compiler",
                first.kind
            ),
            mend: match (self.manager, first.kind) {
                (Some(Manager::Apt), CompilerKind::Gcc) => {
                    Manager::Apt.install_by_hand(&[format!("g++-{bound}")])
                }
                _ => {
                    format!(
                        "also install {} {bound}, or install a newer CUDA with `cargo xtask setup --cuda`",
                        first.kind
                    )
                }
            },
        })
    }
}

#[cfg(test)]
mod tests;
