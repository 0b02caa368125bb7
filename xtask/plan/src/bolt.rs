//! BOLT: the `llvm-bolt` that rewrites a program, its instrumentation and its options. This module runs no program.
//!
//! Source: Panchenko, Auler, Nell, Ottoni: "BOLT: A Practical Binary Optimizer for Data Centers and Beyond", CGO
//! 2019.

use std::path::PathBuf;

use anyhow::{Result, bail};
use build_info::record::Tool;
use toolchain::{BOLT_AT_LEAST, CompilerKind, Toolchain};

use crate::plan::Plan;
use crate::profile::Linkage;

/// `llvm-bolt` and its companions in the same folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoltTools {
    /// Path of `llvm-bolt`, which instruments and rewrites programs.
    pub bolt: Tool,
    /// Path of `merge-fdata`, which merges profiles.
    pub merge_fdata: PathBuf,
    /// Path of `perf2bolt`, which converts a `perf` recording to a profile.
    pub perf2bolt: PathBuf,
}

/// Returns the tools for the programs of `plan`.
///
/// BOLT reads machine code. An `llvm-bolt` whose LLVM version differs from the compiler's still works, but skips
/// functions with instructions that it does not know. A version difference therefore only adds a note.
///
/// # Errors
/// If BOLT does not support programs of this kind, or no usable `llvm-bolt` is installed. Both are reported before
/// anything is built.
pub fn tools(plan: &Plan, toolchain: &Toolchain, notes: &mut Vec<String>) -> Result<BoltTools> {
    let known = ["x86_64-", "aarch64-"].iter().any(|arch| plan.target.starts_with(arch));
    if !known || !plan.target.contains("linux") {
        bail!(
            "BOLT only supports programs for Linux on x86-64 and AArch64, but this build is for {}",
            plan.target
        );
    }
    plan.check_runs_here("use BOLT")?;
    if plan.linkage == Linkage::Shared {
        bail!(
            "the profile {} links llama.cpp as shared libraries, which BOLT would not rewrite\nhint: use a \
             profile with `linkage = \"static\"`",
            plan.profile
        );
    }
    let is_archive = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "a");
    if plan.blas_library.iter().flat_map(|blas| &blas.libraries).any(is_archive) {
        bail!(
            "the profile {} links a BLAS library into the program, and BOLT cannot move its hand-written \
             assembly correctly\nhint: use a profile without BLAS, or one that links the distribution's \
             shared BLAS library",
            plan.profile
        );
    }
    let wanted = match plan.compiler.kind {
        CompilerKind::Clang => plan.compiler.version.major,
        CompilerKind::Gcc => plan.rustc.llvm.major,
    };
    let of = |major: u32| toolchain.llvm_bolt.iter().find(|tool| tool.llvm_major == Some(major));
    let Some(bolt) = of(wanted).or(toolchain.llvm_bolt.first()) else {
        bail!(
            "llvm-bolt {wanted} is missing\nhint: `cargo xtask setup` shows the package to install; on Debian and \
             Ubuntu, run `apt-get install bolt-{wanted}`"
        );
    };
    if bolt.llvm_major < Some(BOLT_AT_LEAST) {
        bail!(
            "{} has version {}, but folding identical functions safely requires {BOLT_AT_LEAST} or \
             later\nhint: install bolt-{wanted} (Debian)",
            bolt.path.display(),
            bolt.version
        );
    }
    if bolt.llvm_major != Some(wanted) {
        notes.push(format!(
            "llvm-bolt {} may not know all instructions in code from LLVM {wanted}, and leaves functions \
             with unknown instructions unchanged; install bolt-{wanted}, which knows them all",
            bolt.version
        ));
    }
    let name = bolt.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let sibling = |other: &str| bolt.path.with_file_name(name.replacen("llvm-bolt", other, 1));
    Ok(BoltTools { merge_fdata: sibling("merge-fdata"), perf2bolt: sibling("perf2bolt"), bolt: bolt.clone() })
}

/// Functions that BOLT must not move or change: the CPU guard and the C library's start-up code. The guard runs before
/// the program knows its CPU, so BOLT must not add instructions to the guard, and the guard must stay the first
/// function to run. `_start`, `_init` and `_fini` are hand-written assembly without unwinding tables. The list contains
/// regular expressions, which BOLT matches against names. BOLT appends the file's name to the name of a local function.
const UNTOUCHED: &str =
    "-skip-funcs=check/guard\\.c/.*,construct/guard\\.c/.*,anneal_guard_required,_start,_init,_fini";

/// Returns the options that instrument a program. Each process of the program writes its counters to a separate file,
/// whose name starts with `fdata`.
pub fn instrument(fdata: &std::path::Path) -> Vec<String> {
    vec![
        "-instrument".to_string(),
        format!("--instrumentation-file={}", fdata.display()),
        "--instrumentation-file-append-pid".to_string(),
        UNTOUCHED.to_string(),
    ]
}

/// Returns the options that rewrite a program.
pub fn rewrite() -> Vec<String> {
    [
        // Newell, Pupyrev: "Improved Basic Block Reordering", 2020: likely successors follow each other.
        "-reorder-blocks=ext-tsp",
        // Functions that call each other are placed close together, which reduces misses in the instruction cache and
        // its TLB.
        "-reorder-functions=cdsort",
        "-split-functions",
        "-split-all-cold",
        "-split-eh",
        // `all` would be wrong: ggml identifies buffer types of its backends by the addresses of functions, so two
        // functions with equal code must stay separate.
        "-icf=safe",
        // Keeps line numbers in backtraces correct, at a cost of two seconds. Without this option, llvm-bolt removes
        // the line numbers.
        "-update-debug-sections",
        "-dyno-stats",
        UNTOUCHED,
    ]
    .map(String::from)
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::reference_plan;

    fn bolt(version: &str) -> Tool {
        let major = version.split('.').next().and_then(|major| major.parse().ok());
        let name = format!("/usr/bin/llvm-bolt-{}", major.unwrap_or(0));
        Tool { path: name.into(), version: version.to_string(), llvm_major: major }
    }

    #[test]
    fn the_compilers_own_bolt_is_taken_and_another_is_told_of() {
        // Installed versions of llvm-bolt, newest first; the chosen version or part of the error; true if a note is
        // added.
        let cases: [(&[&str], Result<&str, &str>, bool); 6] = [
            (&["22.1.8"], Ok("22.1.8"), false),
            (&["23.1.0", "22.1.8", "19.1.7"], Ok("22.1.8"), false),
            (&["23.1.0"], Ok("23.1.0"), true),
            (&["21.1.0"], Ok("21.1.0"), true),
            (&["19.1.7"], Err("20 or later"), false),
            (&[], Err("apt-get install bolt-22"), false),
        ];
        let plan = reference_plan("native");
        for (versions, expected, noted) in cases {
            let llvm_bolt = versions.iter().map(|version| bolt(version)).collect();
            let toolchain = Toolchain { llvm_bolt, ..Toolchain::default() };
            let mut notes = Vec::new();
            match (tools(&plan, &toolchain, &mut notes), expected) {
                (Ok(tools), Ok(version)) => {
                    assert_eq!(tools.bolt.version, version);
                    let major = version.split('.').next().unwrap();
                    assert_eq!(tools.merge_fdata, PathBuf::from(format!("/usr/bin/merge-fdata-{major}")));
                    assert_eq!(tools.perf2bolt, PathBuf::from(format!("/usr/bin/perf2bolt-{major}")));
                }
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (found, _) => panic!("{versions:?}: {found:?}"),
            }
            assert_eq!(!notes.is_empty(), noted, "{versions:?}: {notes:?}");
        }
    }

    #[test]
    fn what_bolt_cannot_rewrite_is_refused_before_anything_is_built() {
        let toolchain = Toolchain { llvm_bolt: vec![bolt("22.1.8")], ..Toolchain::default() };
        let native = reference_plan("native");
        let cases = [
            (Plan { target: "aarch64-apple-darwin".into(), ..native.clone() }, "Linux on x86-64 and AArch64"),
            (Plan { target: "riscv64gc-unknown-linux-gnu".into(), ..native.clone() }, "riscv64gc"),
            (Plan { linkage: Linkage::Shared, ..native }, "`linkage = \"static\"`"),
        ];
        for (plan, expected) in cases {
            let error = tools(&plan, &toolchain, &mut Vec::new()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_bolted_plan_is_another_build_of_the_same_base() {
        let native = reference_plan("native");
        let profile: build_info::Sha256 = "ab".repeat(32).try_into().unwrap();
        let bolted = native.bolted(&profile);
        assert_eq!(bolted.base(), native.hash());
        assert!(bolted.folder_name().starts_with("native-bolt-"), "{}", bolted.folder_name());
        assert_eq!(bolted.variant.as_ref().unwrap().profile, Some(profile));
        assert_ne!(bolted.hash(), native.relocatable().hash());
        // A different profile gives a different folder.
        let other = native.bolted(&"cd".repeat(32).try_into().unwrap());
        assert_ne!(other.folder_name(), bolted.folder_name());
    }
}
