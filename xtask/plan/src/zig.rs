//! Builds for other machines with zig: its clang, with the headers and the link-time stubs of an old glibc, and a C++
//! runtime that is linked into the program. The distribution's compiler would tie the program to the build machine's
//! glibc and libstdc++.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base::exit;
use build_info::Glibc;
use serde::{Deserialize, Serialize};
use toolchain::{Compiler, CompilerKind, Toolchain, ZIG, ZIG_CLANG};

use crate::codegen::CodeGen;
use crate::cross::Aim;
use crate::profile::{CompilerChoice, Lto, Profile, Threading};

/// Name of the C compiler, a script that the stages put on the path. A plan with this name does not depend on the
/// checkout's folder.
pub const CC: &str = "zig-cc";
/// Name of the C++ compiler.
pub const CXX: &str = "zig-c++";
/// Name of the archiver.
pub const AR: &str = "zig-ar";
/// Name of the archive indexer.
pub const RANLIB: &str = "zig-ranlib";

/// zig with its target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zig {
    /// Version of zig.
    pub version: String,
    /// Target that zig compiles and links for, such as `x86_64-linux-gnu.2.28`.
    pub target: String,
    /// Oldest glibc that can run the program.
    pub glibc: Glibc,
}

impl Zig {
    /// Returns zig as the compiler of a plan.
    pub fn compiler() -> Compiler {
        Compiler { kind: CompilerKind::Clang, cc: CC.into(), cxx: CXX.into(), version: ZIG_CLANG }
    }

    /// Returns the target CPU of code for any CPU of the target's architecture.
    pub fn for_any_cpu(&self) -> &'static str {
        if self.target.starts_with("aarch64-") { "-mcpu=generic" } else { "-march=x86_64" }
    }

    /// Returns the folders with the C library's headers for the target, starting with those of the architecture. The
    /// zig program is in `folder`. Source: <https://github.com/ziglang/zig/tree/master/lib/libc/include>
    pub fn headers(&self, folder: &Path) -> [PathBuf; 4] {
        let arch = self.target.split('-').next().unwrap_or_default();
        let gnu = format!("{arch}-linux-gnu");
        let linux = format!("{arch}-linux-any");
        [gnu.as_str(), "generic-glibc", &linux, "any-linux-any"]
            .map(|name| folder.join("lib/libc/include").join(name))
    }
}

/// Plans zig. Returns `None` for a profile with another compiler.
///
/// # Errors
/// If zig is missing, or the profile requires something that zig does not support.
pub fn plan(profile: &Profile, aim: &Aim, toolchain: &Toolchain) -> Result<Option<Zig>> {
    let wrong = |what: &str| exit::usage(format!("profile {}: {what}", profile.name));
    let glibc = match (profile.compiler, profile.glibc) {
        (CompilerChoice::Zig, Some(glibc)) => glibc,
        (CompilerChoice::Zig, None) => {
            return Err(wrong(
                "`compiler = \"zig\"` requires a glibc version to build for, such as `glibc = \"2.28\"`",
            ));
        }
        (_, Some(glibc)) => {
            return Err(wrong(&format!(
                "`glibc = \"{glibc}\"` requires `compiler = \"zig\"`, because other compilers build for this \
                 machine's glibc"
            )));
        }
        (_, None) => return Ok(None),
    };
    if profile.lto != Lto::Off || profile.threading == Threading::Openmp {
        return Err(wrong("`compiler = \"zig\"` requires `lto = \"off\"` and a profile without OpenMP"));
    }
    let arch = aim.triple.split('-').next().unwrap_or_default();
    if !aim.triple.contains("linux") {
        return Err(wrong(&format!(
            "`compiler = \"zig\"` builds for Linux, but rustc builds for {}",
            aim.triple
        )));
    }
    let zig = toolchain.zig.as_ref().with_context(|| {
        format!("cannot find zig {ZIG}\nhint: `cargo xtask setup --profile {}` installs it", profile.name)
    })?;
    Ok(Some(Zig { version: zig.version.clone(), target: format!("{arch}-linux-gnu.{glibc}"), glibc }))
}

/// Returns the flags that make zig's compilers behave like clang.
pub fn codegen() -> CodeGen {
    // zig turns -O3 into -O2 and adds line tables and frame pointers. With these flags, the kernels equal those of
    // clang's -O3.
    CodeGen {
        cxx: ["-g0", "-fomit-frame-pointer", "-Xclang", "-O3"].map(str::to_string).to_vec(),
        ..CodeGen::default()
    }
}
