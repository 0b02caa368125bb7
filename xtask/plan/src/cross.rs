//! Builds for another architecture than this machine's: which, and what it takes beyond a compiler.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use base::exit;
use build_info::Host;
use build_info::record::Tool;
use serde::{Deserialize, Serialize};
use toolchain::{AARCH64, Rustc, Toolchain};

use crate::profile::{Blas, CompilerChoice, Isa, Profile, Target};
use crate::siblings::sibling;

/// The CPU that is emulated: it has what a portable build for aarch64 needs, and none of what came later (SVE, i8mm,
/// bf16), so that a program which runs there keeps what the profile promises.
const CPU: &str = "neoverse-n1";

/// Why nothing is learnt of how such a program runs.
pub const NOT_HERE: &str =
    "this build is for another machine than this one, and an emulator does not run it as that machine does";

/// What a build is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aim {
    /// Target triple.
    pub triple: String,
    /// Its architecture, spelled as [`Host::arch`].
    pub arch: String,
    /// What it takes where that is not this machine's.
    pub cross: Option<Cross>,
}

/// What a build for another architecture takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cross {
    /// What runs its programs here: qemu's user mode.
    pub emulator: Tool,
    /// Folder whose `lib` holds the loader and the C library of that architecture.
    pub sysroot: PathBuf,
    /// The CPU that is emulated, as the emulator calls it.
    pub cpu: String,
    /// `llvm-strip`: the system's own strip knows programs of this machine alone.
    pub strip: PathBuf,
}

impl Cross {
    /// The words before a program and its arguments, by which it runs here.
    pub fn command(&self) -> [String; 5] {
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        [text(&self.emulator.path), "-cpu".into(), self.cpu.clone(), "-L".into(), text(&self.sysroot)]
    }
}

/// Plans what `profile` is for.
///
/// # Errors
/// Wrong usage where the profile wants something of this machine for another one; else when there is nothing to build
/// for that machine with, or nothing that runs what was built: the correctness gate is not left out in silence.
pub fn plan(profile: &Profile, host: &Host, rustc: &Rustc, toolchain: &Toolchain) -> Result<Aim> {
    let arch = match profile.target {
        Target::Aarch64 if rustc.host != AARCH64 => "aarch64",
        Target::Host | Target::Aarch64 => {
            return Ok(Aim { triple: rustc.host.clone(), arch: host.arch.clone(), cross: None });
        }
    };
    let target = profile.target;
    let wrong = |what: &str| {
        exit::usage(format!(
            "profile {}: `target = \"{target}\"` on a machine of {}: {what}",
            profile.name, rustc.host
        ))
    };
    if profile.compiler != CompilerChoice::Zig {
        return Err(wrong("it takes `compiler = \"zig\"`, which brings that machine's C library"));
    }
    if matches!(profile.isa, Isa::Native | Isa::Upstream) {
        return Err(wrong(&format!("`isa = \"{}\"` looks at this machine's CPU", profile.isa)));
    }
    if profile.blas != Blas::Off {
        return Err(wrong("it goes with `blas = \"off\"`: the libraries that are here are for this machine"));
    }
    let setup = format!("`cargo xtask setup --profile {}` installs it", profile.name);
    if !toolchain.rust_targets.iter().any(|there| there == AARCH64) {
        bail!(
            "rustc {} has no standard library for {target}: `rustup target add {target}` brings it; {setup}",
            rustc.version
        );
    }
    let found = toolchain.aarch64.as_ref().with_context(|| {
        format!(
            "there is no qemu-aarch64 with the C library of {arch} (Debian: qemu-user, libc6-arm64-cross), and a build \
             that was never run is not taken for right; {setup}"
        )
    })?;
    let ar = toolchain
        .llvm_ar
        .first()
        .with_context(|| format!("there is no llvm-strip, which knows programs of {arch}; {setup}"))?;
    let cross = Cross {
        emulator: found.tool.clone(),
        sysroot: found.sysroot.clone(),
        cpu: CPU.to_string(),
        strip: sibling(&ar.path, "llvm-ar", "llvm-strip"),
    };
    Ok(Aim { triple: target.to_string(), arch: arch.to_string(), cross: Some(cross) })
}
