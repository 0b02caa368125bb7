//! Builds for machines that are not here: zig's clang, with the headers and the link-time stubs of an old glibc and a C++
//! runtime that becomes part of the program. The distribution's own compiler would bind the program to the glibc and the
//! libstdc++ of the machine that it was built on.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base::exit;
use build_info::Glibc;
use serde::{Deserialize, Serialize};
use toolchain::{Compiler, CompilerKind, Toolchain, ZIG, ZIG_CLANG};

use crate::codegen::CodeGen;
use crate::cross::Aim;
use crate::profile::{CompilerChoice, Lto, Profile, Threading};

/// The C compiler's name: that of a script which the stages put on the path, so that a plan has no folder of its checkout.
pub const CC: &str = "zig-cc";
/// The C++ compiler's.
pub const CXX: &str = "zig-c++";
/// The archiver's.
pub const AR: &str = "zig-ar";
/// That of the indexer of archives.
pub const RANLIB: &str = "zig-ranlib";

/// Which zig builds, and for what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zig {
    /// Its version.
    pub version: String,
    /// What it compiles and links for, as in `x86_64-linux-gnu.2.28`.
    pub target: String,
    /// The oldest glibc that the program starts with.
    pub glibc: Glibc,
}

impl Zig {
    /// zig as a compiler of its plan.
    pub fn compiler() -> Compiler {
        Compiler { kind: CompilerKind::Clang, cc: CC.into(), cxx: CXX.into(), version: ZIG_CLANG }
    }

    /// What compiles for any CPU of the target's architecture.
    pub fn for_any_cpu(&self) -> &'static str {
        if self.target.starts_with("aarch64-") { "-mcpu=generic" } else { "-march=x86_64" }
    }

    /// Where zig, whose program lies in `folder`, keeps the C library's headers for the target: those of the architecture
    /// first. <https://github.com/ziglang/zig/tree/master/lib/libc/include>
    pub fn headers(&self, folder: &Path) -> [PathBuf; 4] {
        let arch = self.target.split('-').next().unwrap_or_default();
        let gnu = format!("{arch}-linux-gnu");
        let linux = format!("{arch}-linux-any");
        [gnu.as_str(), "generic-glibc", &linux, "any-linux-any"]
            .map(|name| folder.join("lib/libc/include").join(name))
    }
}

/// Plans it; nothing for a profile of another compiler.
///
/// # Errors
/// When zig is missing, or the profile wants of it what it does not do.
pub fn plan(profile: &Profile, aim: &Aim, toolchain: &Toolchain) -> Result<Option<Zig>> {
    let wrong = |what: &str| exit::usage(format!("profile {}: {what}", profile.name));
    let glibc = match (profile.compiler, profile.glibc) {
        (CompilerChoice::Zig, Some(glibc)) => glibc,
        (CompilerChoice::Zig, None) => {
            return Err(wrong("`compiler = \"zig\"` takes a glibc to build for, as in `glibc = \"2.28\"`"));
        }
        (_, Some(glibc)) => {
            return Err(wrong(&format!(
                "`glibc = \"{glibc}\"` takes `compiler = \"zig\"`: other compilers build for the glibc that is here"
            )));
        }
        (_, None) => return Ok(None),
    };
    if profile.lto != Lto::Off || profile.threading == Threading::Openmp {
        return Err(wrong("`compiler = \"zig\"` goes with `lto = \"off\"` and without OpenMP"));
    }
    let arch = aim.triple.split('-').next().unwrap_or_default();
    if !aim.triple.contains("linux") {
        return Err(wrong(&format!("`compiler = \"zig\"` builds for Linux, and rustc for {}", aim.triple)));
    }
    let zig = toolchain.zig.as_ref().with_context(|| {
        format!("no zig {ZIG}; `cargo xtask setup --profile {}` installs it", profile.name)
    })?;
    Ok(Some(Zig { version: zig.version.clone(), target: format!("{arch}-linux-gnu.{glibc}"), glibc }))
}

/// What it takes of zig's compilers to be clang's.
pub fn codegen() -> CodeGen {
    // zig takes -O3 for -O2, and adds line tables and frame pointers: with these the kernels are those of clang's -O3.
    CodeGen {
        cxx: ["-g0", "-fomit-frame-pointer", "-Xclang", "-O3"].map(str::to_string).to_vec(),
        ..CodeGen::default()
    }
}
