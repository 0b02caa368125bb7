//! Flags for a profile's switches, and the keys that the switches conflict with.

use anyhow::{Result, bail};
use base::exit;
use build_info::switches::{CMAKE, Switches};
use toolchain::{CompilerKind, Toolchain};

use crate::codegen::CodeGen;
use crate::cross::Aim;
use crate::profile::{Linkage, Profile, Threading};
use crate::tools::Tools;

/// Linker flag that replaces ggml's allocator for large buffers with the engine's, for huge pages.
pub const WRAPPED: &str = "-Wl,--wrap=ggml_aligned_malloc";

/// Flags for fast math. Infinities stay enabled, because ggml requires them: softmax uses them as masks
/// (`ggml-cpu/vec.h`).
const FAST_MATH: [&str; 2] = ["-ffast-math", "-fno-finite-math-only"];

/// Prefixes of flags that must be set with a profile key, each with the name of the key.
const ELSEWHERE: [(&str, &str); 8] = [
    ("-march=", "isa"),
    ("-mcpu=", "isa"),
    ("-flto", "lto"),
    ("-ffast-math", "fast_math"),
    ("-Ofast", "fast_math"),
    ("-ffinite-math-only", "fast_math"),
    ("-fopenmp", "threading"),
    // CMake appends the flag of the build type, and compilers use the last such flag.
    ("-O", "build_type, or definitions.CMAKE_CXX_FLAGS_RELEASE"),
];

/// Returns the profile's switches without those that have no effect in this build.
///
/// # Errors
/// If the user set a switch that has no effect.
pub fn that_apply(profile: &Profile, aim: &Aim, notes: &mut Vec<String>) -> Result<Switches> {
    let asked = &profile.switches;
    let x86 = aim.arch == "x86_64";
    // The linker can replace ggml's allocator for buffers.
    let wraps = profile.linkage == Linkage::Static && aim.triple.contains("linux");
    if asked.huge_pages && !wraps {
        let takes = "requires `linkage = \"static\"` and Linux";
        if profile.sets.iter().any(|set| set.to_string() == "huge_pages=true") {
            return Err(exit::usage(format!("profile {}: `huge_pages = true` {takes}", profile.name)));
        }
        notes.push(format!("`huge_pages` is ignored, because it {takes}"));
    }
    let mut applied = Switches { huge_pages: asked.huge_pages && wraps, ..asked.clone() };
    for switch in CMAKE.iter().filter(|switch| switch.x86_only && !x86) {
        *(switch.place)(&mut applied) = false;
    }
    Ok(applied)
}

/// Plans `switches`, the switches of the profile that have an effect.
///
/// # Errors
/// If a switch conflicts with another key, or its library is missing.
pub fn plan(
    profile: &Profile,
    switches: &Switches,
    tools: &Tools,
    toolchain: &Toolchain,
    notes: &mut Vec<String>,
) -> Result<CodeGen> {
    let mut codegen = CodeGen { cxx: extra_flags(profile)?, ..CodeGen::default() };
    let clang = tools.compiler.version.major;
    if profile.threading == Threading::Openmp
        && tools.compiler.kind == CompilerKind::Clang
        && !toolchain.openmp.iter().any(|major| [0, clang].contains(major))
    {
        bail!(
            "`threading = \"openmp\"` with clang {clang} requires clang's OpenMP runtime, which is missing\nhint: \
             `cargo xtask setup --profile {}` installs it (package libomp-{clang}-dev on Debian)",
            profile.name
        );
    }
    if switches.huge_pages {
        codegen.link.push(WRAPPED.to_string());
    }
    if switches.fast_math {
        codegen.cxx.extend(FAST_MATH.map(str::to_string));
        notes.push(
            "fast-math lets the compiler reorder additions and ignore the sign of zero, so results differ \
             from those of other builds; only the correctness gate shows whether the results are acceptable"
                .to_string(),
        );
    }
    Ok(codegen)
}

/// Returns the profile's own flags. Each flag must be passed unchanged to the compiler of every file.
fn extra_flags(profile: &Profile) -> Result<Vec<String>> {
    for flag in &profile.switches.extra_flags {
        let refused =
            |why: String| exit::usage(format!("profile {}: extra flag {flag:?} {why}", profile.name));
        if !flag.starts_with('-') || flag.contains(|c: char| c.is_whitespace() || "\"'\\;$".contains(c)) {
            return Err(refused(
                "must begin with `-`, and must not contain spaces, quotes, backslashes, `;` or `$`"
                    .to_string(),
            ));
        }
        if let Some((_, key)) = ELSEWHERE.iter().find(|(prefix, _)| flag.starts_with(prefix)) {
            return Err(refused(format!("has its own key\nhint: set the key {key}")));
        }
    }
    Ok(profile.switches.extra_flags.clone())
}
