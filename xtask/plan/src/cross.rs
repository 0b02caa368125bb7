//! Builds for another architecture, and the tools that they need in addition to a compiler.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use base::exit;
use build_info::Host;
use build_info::record::Tool;
use serde::{Deserialize, Serialize};
use toolchain::{AARCH64, Rustc, Toolchain};

use crate::profile::{Blas, CompilerChoice, Isa, Profile, Target};
use crate::siblings::sibling;

/// Emulated CPU. It has the features that a portable build for aarch64 needs, but no later features (SVE, i8mm, bf16).
/// A program that runs on this CPU therefore also runs on every CPU that the profile supports.
const CPU: &str = "neoverse-n1";

/// Reason why a cross-compiled program cannot be profiled on this machine.
pub const NOT_HERE: &str =
    "this build is for another architecture, and its behaviour in an emulator is not representative";

/// Target of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aim {
    /// Target triple.
    pub triple: String,
    /// Architecture of the target, spelled as in [`Host::arch`].
    pub arch: String,
    /// Tools for a target whose architecture differs from this machine's; `None` for this machine's architecture.
    pub cross: Option<Cross>,
}

/// Tools for a build for another architecture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cross {
    /// Emulator that runs the target's programs on this machine: qemu's user mode.
    pub emulator: Tool,
    /// Folder whose `lib` contains the loader and the C library of the target architecture.
    pub sysroot: PathBuf,
    /// Emulated CPU, as named by the emulator.
    pub cpu: String,
    /// Path of `llvm-strip`. The system's own strip only supports programs for this machine's architecture.
    pub strip: PathBuf,
}

impl Cross {
    /// Returns the start of the command line that runs a program of the target on this machine. The program and its
    /// arguments follow.
    pub fn command(&self) -> [String; 5] {
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        [text(&self.emulator.path), "-cpu".into(), self.cpu.clone(), "-L".into(), text(&self.sysroot)]
    }
}

/// Plans the target of `profile`.
///
/// # Errors
/// Returns a usage error if a profile for another architecture depends on properties of this machine. Returns another
/// error if the tools for building or running the target's programs are missing: the correctness gate is never
/// skipped silently.
pub fn plan(profile: &Profile, host: &Host, rustc: &Rustc, toolchain: &Toolchain) -> Result<Aim> {
    let arch = match profile.target {
        Target::Aarch64 if rustc.host != AARCH64 => "aarch64",
        Target::Host | Target::Aarch64 => {
            return Ok(Aim { triple: rustc.host.clone(), arch: host.arch.clone(), cross: None });
        }
    };
    let target = profile.target;
    let wrong = |what: &str| {
        exit::usage(format!("profile {}: `target = \"{target}\"` on {} {what}", profile.name, rustc.host))
    };
    if profile.compiler != CompilerChoice::Zig {
        return Err(wrong("requires `compiler = \"zig\"`, because zig contains the target's C library"));
    }
    if matches!(profile.isa, Isa::Native | Isa::Upstream) {
        return Err(wrong(&format!(
            "conflicts with `isa = \"{}\"`, which depends on this machine's CPU",
            profile.isa
        )));
    }
    if profile.blas != Blas::Off {
        return Err(wrong(
            "requires `blas = \"off\"`, because the installed BLAS libraries are for this machine",
        ));
    }
    let setup = format!("run `cargo xtask setup --profile {}`", profile.name);
    if !toolchain.rust_targets.iter().any(|there| there == AARCH64) {
        bail!(
            "rustc {} has no standard library for {target}\nhint: run `rustup target add {target}`, or \
             {setup}",
            rustc.version
        );
    }
    let found = toolchain.aarch64.as_ref().with_context(|| {
        format!(
            "cannot find qemu-aarch64 or the C library of {arch}; both are required to test the build \
             (Debian: qemu-user, libc6-arm64-cross)\nhint: {setup}"
        )
    })?;
    let ar = toolchain.llvm_ar.first().with_context(|| {
        format!("cannot find llvm-strip, which is required to strip programs for {arch}\nhint: {setup}")
    })?;
    let cross = Cross {
        emulator: found.tool.clone(),
        sysroot: found.sysroot.clone(),
        cpu: CPU.to_string(),
        strip: sibling(&ar.path, "llvm-ar", "llvm-strip"),
    };
    Ok(Aim { triple: target.to_string(), arch: arch.to_string(), cross: Some(cross) })
}
