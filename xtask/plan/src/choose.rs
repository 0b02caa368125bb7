//! Choice of the installed tools that a build uses.

use anyhow::{Context, Result};
use build_info::Host;
use build_info::record::Tool;
use toolchain::{CLANG_AT_LEAST, CMAKE_AT_LEAST, Compiler, CompilerKind, GCC_AT_LEAST, Toolchain, Version};

use crate::profile::{CompilerChoice, Profile};
use crate::tools::Tools;
use crate::zig::{self, Zig};
use crate::{blas, cross};

const SETUP: &str = "`cargo xtask setup` installs it";

/// Chooses the tools, and adds notes about the choice.
pub fn choose(
    profile: &Profile,
    host: &Host,
    toolchain: &Toolchain,
    notes: &mut Vec<String>,
) -> Result<Tools> {
    let compiler = compiler(profile, toolchain, notes)?;
    // Only profiles for clang use lld. In other profiles, the compiler uses its default linker.
    let linker = match (profile.compiler, compiler.kind) {
        (CompilerChoice::Best | CompilerChoice::Clang, CompilerKind::Clang) => {
            toolchain.lld.iter().find(|lld| major(lld) == Some(compiler.version.major)).cloned()
        }
        _ => None,
    };
    let cmake = toolchain
        .cmake
        .clone()
        .with_context(|| format!("cannot find cmake {CMAKE_AT_LEAST} or later\nhint: {SETUP}"))?;
    if cmake.version.parse::<Version>().is_ok_and(|found| found < CMAKE_AT_LEAST) {
        anyhow::bail!(
            "{} has version {}, but {CMAKE_AT_LEAST} or later is required\nhint: {SETUP}",
            cmake.path.display(),
            cmake.version
        );
    }
    let rustc =
        toolchain.rustc.clone().context("cannot find rustc on the path\nhint: install Rust with rustup")?;
    let aim = cross::plan(profile, host, &rustc, toolchain)?;
    Ok(Tools {
        zig: zig::plan(profile, &aim, toolchain)?,
        aim,
        blas: blas::choose(profile.blas, toolchain, notes)?,
        compiler,
        linker,
        cmake,
        ninja: toolchain.ninja.clone().with_context(|| format!("cannot find ninja\nhint: {SETUP}"))?,
        libclang: toolchain.libclang.first().cloned(),
        rustc,
        named_cpu: toolchain.named_cpu.clone(),
        qemu_user: toolchain.qemu_user.clone(),
    })
}

/// Returns the C and C++ compiler.
pub fn compiler(profile: &Profile, toolchain: &Toolchain, notes: &mut Vec<String>) -> Result<Compiler> {
    match profile.compiler {
        CompilerChoice::Best => best_compiler(toolchain, notes),
        CompilerChoice::Clang => newest(toolchain, CompilerKind::Clang, CLANG_AT_LEAST)
            .with_context(|| format!("cannot find clang {CLANG_AT_LEAST} or later\nhint: {SETUP}")),
        CompilerChoice::Gcc => newest(toolchain, CompilerKind::Gcc, GCC_AT_LEAST)
            .with_context(|| format!("cannot find gcc {GCC_AT_LEAST} or later\nhint: {SETUP}")),
        CompilerChoice::Zig => Ok(Zig::compiler()),
        CompilerChoice::System => toolchain.default_compiler.clone().with_context(|| {
            format!("cannot find a C and C++ compiler (cc, c++) on the path\nhint: {SETUP}")
        }),
    }
}

fn major(tool: &Tool) -> Option<u32> {
    tool.version.parse::<Version>().ok().map(|version| version.major)
}

/// Returns the newest compiler of a family.
pub fn newest(toolchain: &Toolchain, kind: CompilerKind, at_least: u32) -> Option<Compiler> {
    let of_kind = |found: &&Compiler| found.kind == kind && found.version.major >= at_least;
    toolchain.compilers.iter().filter(of_kind).max_by_key(|compiler| compiler.version).cloned()
}

fn best_compiler(toolchain: &Toolchain, notes: &mut Vec<String>) -> Result<Compiler> {
    if let Some(clang) = newest(toolchain, CompilerKind::Clang, CLANG_AT_LEAST) {
        return Ok(clang);
    }
    let gcc = newest(toolchain, CompilerKind::Gcc, GCC_AT_LEAST).with_context(|| {
        let found: Vec<String> =
            toolchain.compilers.iter().map(|found| format!("{} {}", found.kind, found.version)).collect();
        format!(
            "cannot find clang {CLANG_AT_LEAST} or gcc {GCC_AT_LEAST} or later (found: {})\nhint: {SETUP}",
            if found.is_empty() { "none".to_string() } else { found.join(", ") }
        )
    })?;
    notes.push(format!(
        "using gcc {}, because clang {CLANG_AT_LEAST} or later is not installed; on a Zen 5, prefill was \
         1.4 to 1.56 times as fast with clang 22 as with gcc 12; `cargo xtask setup` installs clang",
        gcc.version
    ));
    Ok(gcc)
}
