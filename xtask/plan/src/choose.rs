//! Which of the tools at hand a build uses.

use anyhow::{Context, Result};
use build_info::Host;
use build_info::record::Tool;
use toolchain::{CLANG_AT_LEAST, CMAKE_AT_LEAST, Compiler, CompilerKind, GCC_AT_LEAST, Toolchain, Version};

use crate::profile::{CompilerChoice, Profile};
use crate::tools::Tools;
use crate::zig::{self, Zig};
use crate::{blas, cross};

const SETUP: &str = "`cargo xtask setup` installs it";

/// Chooses, and notes what a person should know about the choice.
pub fn choose(
    profile: &Profile,
    host: &Host,
    toolchain: &Toolchain,
    notes: &mut Vec<String>,
) -> Result<Tools> {
    let compiler = compiler(profile, toolchain, notes)?;
    // A compiler's own linker is left alone when the profile asks for what CMake does by itself.
    let linker = match (profile.compiler, compiler.kind) {
        (CompilerChoice::Best | CompilerChoice::Clang, CompilerKind::Clang) => {
            toolchain.lld.iter().find(|lld| major(lld) == Some(compiler.version.major)).cloned()
        }
        _ => None,
    };
    let cmake =
        toolchain.cmake.clone().with_context(|| format!("no cmake {CMAKE_AT_LEAST} or later; {SETUP}"))?;
    if cmake.version.parse::<Version>().is_ok_and(|found| found < CMAKE_AT_LEAST) {
        anyhow::bail!(
            "{} is version {}, and {CMAKE_AT_LEAST} or later is needed; {SETUP}",
            cmake.path.display(),
            cmake.version
        );
    }
    let rustc = toolchain.rustc.clone().context("no rustc on the path; install Rust with rustup")?;
    let aim = cross::plan(profile, host, &rustc, toolchain)?;
    Ok(Tools {
        zig: zig::plan(profile, &aim, toolchain)?,
        aim,
        blas: blas::choose(profile.blas, toolchain, notes)?,
        compiler,
        linker,
        cmake,
        ninja: toolchain.ninja.clone().with_context(|| format!("no ninja; {SETUP}"))?,
        libclang: toolchain.libclang.first().cloned(),
        rustc,
    })
}

/// The C and C++ compiler.
pub fn compiler(profile: &Profile, toolchain: &Toolchain, notes: &mut Vec<String>) -> Result<Compiler> {
    match profile.compiler {
        CompilerChoice::Best => best_compiler(toolchain, notes),
        CompilerChoice::Clang => newest(toolchain, CompilerKind::Clang, CLANG_AT_LEAST)
            .with_context(|| format!("no clang {CLANG_AT_LEAST} or later; {SETUP}")),
        CompilerChoice::Gcc => newest(toolchain, CompilerKind::Gcc, GCC_AT_LEAST)
            .with_context(|| format!("no gcc {GCC_AT_LEAST} or later; {SETUP}")),
        CompilerChoice::Zig => Ok(Zig::compiler()),
        CompilerChoice::System => toolchain
            .default_compiler
            .clone()
            .with_context(|| format!("no C and C++ compiler (cc, c++) on the path; {SETUP}")),
    }
}

fn major(tool: &Tool) -> Option<u32> {
    tool.version.parse::<Version>().ok().map(|version| version.major)
}

/// The newest compiler of a family.
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
            "no clang {CLANG_AT_LEAST} or gcc {GCC_AT_LEAST} or later (found: {}); {SETUP}",
            if found.is_empty() { "none".to_string() } else { found.join(", ") }
        )
    })?;
    notes.push(format!(
        "gcc {} compiles, since there is no clang {CLANG_AT_LEAST} or later: prompts were evaluated 1.4 to 1.56 \
         times as fast with clang 22 as with gcc 12 on a Zen 5; {SETUP}",
        gcc.version
    ));
    Ok(gcc)
}
