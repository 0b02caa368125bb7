//! Instruction sets of a CPU with a `-march` name, as reported by the compilers. Anneal has no table of CPU names, so
//! the CPUs that a new compiler adds are supported without a change to Anneal.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use base::exit;
use build_info::words::nearest;
use plan::profile::{CompilerChoice, Isa, Profile, Target};
use plan::{IsaPlan, choose};
use toolchain::{NamedCpu, Toolchain};

use crate::features;

/// Returns `toolchain` with the CPU that `profile` names, if it names one.
///
/// # Errors
/// A usage error if a compiler does not know the CPU, and another error if a compiler cannot be run.
pub fn with(profile: &Profile, mut toolchain: Toolchain) -> Result<Toolchain> {
    toolchain.named_cpu = match &profile.isa {
        Isa::Cpu(name) => ask(name, profile, &toolchain)?,
        _ => None,
    };
    Ok(toolchain)
}

/// Asks the compilers of `profile` for the instruction sets of the CPU `name`. Returns `None` if the planner rejects
/// the profile anyway.
fn ask(name: &str, profile: &Profile, toolchain: &Toolchain) -> Result<Option<NamedCpu>> {
    if profile.target != Target::Host || std::env::consts::ARCH != "x86_64" {
        return Ok(None);
    }
    let compiler = choose::compiler(profile, toolchain, &mut Vec::new())?;
    let is_zig = profile.compiler == CompilerChoice::Zig;
    let (program, before) = match (&toolchain.zig, is_zig) {
        (Some(zig), true) => (zig.path.clone(), vec!["cc".to_string()]),
        (None, true) => return Ok(None),
        (_, false) => (compiler.cc, Vec::new()),
    };
    let flags: Vec<String> = before.into_iter().chain(IsaPlan::cpu_flags(name, is_zig)).collect();
    let asked = features::of_compiler("x86_64", program.as_os_str(), &flags);
    let of = format!("{} {}", compiler.kind, compiler.version);
    let features = asked.map_err(|error| unknown(name, &of, &format!("{error:#}")))?;
    if let Some(rustc) = &toolchain.rustc {
        let known = rustc_cpus(&rustc.path)?;
        if !known.iter().any(|cpu| cpu == name) {
            let of = format!("rustc {} (LLVM {})", rustc.version, rustc.llvm);
            return Err(unknown(name, &of, &format!("values are: {}", known.join(", "))));
        }
    }
    let features = features.into_iter().map(str::to_string).collect();
    Ok(Some(NamedCpu { name: name.to_string(), features }))
}

/// Returns the CPUs that rustc compiles for.
fn rustc_cpus(rustc: &Path) -> Result<Vec<String>> {
    let output = Command::new(rustc)
        .args(["--print", "target-cpus", "--target", "x86_64-unknown-linux-gnu"])
        .output()
        .with_context(|| format!("cannot run {}", rustc.display()))?;
    if !output.status.success() {
        bail!("cannot list the CPUs of {}: {}", rustc.display(), String::from_utf8_lossy(&output.stderr));
    }
    // The first lines are a heading and `native`.
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text
        .lines()
        .filter_map(|line| line.strip_prefix("    ")?.split_whitespace().next())
        .map(str::to_string)
        .collect())
}

/// Returns the error for the CPU `name`, which the compiler `of` does not know. `answer` is the compiler's message.
fn unknown(name: &str, of: &str, answer: &str) -> anyhow::Error {
    let cpus = listed(answer);
    let words: Vec<&str> = Isa::words().collect();
    if cpus.is_empty() {
        return exit::usage(format!("`isa` has no value {name:?}, according to {of}: {answer}"));
    }
    let near = nearest(name, words.iter().copied().chain(cpus.iter().copied()));
    exit::usage(format!(
        "`isa` has no value {name:?}: it is none of {}, and {of} knows no CPU of that name\nhint: {}CPUs that {of} \
         knows: {}",
        words.join(", "),
        near.map_or(String::new(), |near| format!("did you mean {near}? ")),
        cpus.join(", ")
    ))
}

/// Returns the CPUs in a compiler's message about an unknown CPU. clang separates them by commas, and gcc by spaces.
fn listed(answer: &str) -> Vec<&str> {
    let lists = ["values are:", "switch are:"];
    let Some(list) = lists.iter().find_map(|before| answer.split_once(before)) else { return Vec::new() };
    let list = list.1.lines().next().unwrap_or_default().split(';').next().unwrap_or_default();
    list.split([',', ' ']).filter(|name| !name.is_empty() && *name != "native").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_cpu_is_told_with_those_that_the_compiler_knows() {
        let clang = "clang failed: error: unknown target CPU 'znver9'\nnote: valid target CPU values are: nocona, \
                     znver1, znver2, x86-64\n";
        let gcc = "cc1: note: valid arguments to ‘-march=’ switch are: nocona znver1 znver2 x86-64 native; did you \
                   mean ‘znver1’?\n";
        for answer in [clang, gcc] {
            assert_eq!(listed(answer), ["nocona", "znver1", "znver2", "x86-64"], "{answer}");
            let error = unknown("znver9", "clang 22.1.8", answer);
            assert_eq!(exit::code_of(&error), 2);
            let text = error.to_string();
            assert!(
                text.contains("clang 22.1.8 knows no CPU of that name\nhint: did you mean znver2? CPUs"),
                "{text}"
            );
        }
        let text = unknown("navite", "clang 22.1.8", clang).to_string();
        assert!(
            text.starts_with("`isa` has no value \"navite\": ") && text.contains("did you mean native?"),
            "{text}"
        );
        let text = unknown("x", "zig", "it crashed").to_string();
        assert!(text.ends_with("according to zig: it crashed"), "{text}");
    }

    /// Asks the compilers of this machine.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_compilers_tell_what_a_cpu_has() {
        let workspace = crate::workspace::Workspace::find().unwrap();
        let profile = |isa: &str| {
            let name = format!("native+isa:{isa}");
            crate::profile::load(&workspace.build_profiles(), &name).unwrap()
        };
        let found = toolchain::discover(&crate::tools::search(&workspace), None);
        let asked = |isa: &str| with(&profile(isa), found.clone()).map(|toolchain| toolchain.named_cpu);
        assert_eq!(asked("native").unwrap(), None);
        let zen = asked("znver1").unwrap().unwrap();
        let has = |name: &str| zen.features.iter().any(|feature| feature == name);
        assert!(has("avx2") && has("sse4a") && has("f16c") && !has("avx512f") && !has("sha_ni"), "{zen:?}");
        let error = asked("znver99").unwrap_err();
        assert!(exit::code_of(&error) == 2 && error.to_string().contains("znver1"), "{error}");
    }
}
