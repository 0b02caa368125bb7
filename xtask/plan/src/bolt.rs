//! BOLT: which `llvm-bolt` rewrites a program, how it learns what is hot, and what it is told. Nothing is run here.
//!
//! Panchenko, Auler, Nell, Ottoni: "BOLT: A Practical Binary Optimizer for Data Centers and Beyond", CGO 2019.

use std::path::PathBuf;

use anyhow::{Result, bail};
use build_info::record::Tool;
use toolchain::{BOLT_AT_LEAST, CompilerKind, Toolchain};

use crate::cross::NOT_HERE;
use crate::plan::Plan;
use crate::profile::Linkage;

/// `llvm-bolt` and its companions, which lie beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoltTools {
    /// Instruments, and rewrites.
    pub bolt: Tool,
    /// Adds profiles up.
    pub merge_fdata: PathBuf,
    /// Makes a profile of what `perf` recorded.
    pub perf2bolt: PathBuf,
}

/// The tools for the programs of `plan`.
///
/// BOLT reads machine code, so an `llvm-bolt` of another LLVM than the compiler's works as long as it knows every
/// instruction; those functions that hold others it leaves alone. Hence a note, and no refusal.
///
/// # Errors
/// When BOLT knows no such programs, or there is no `llvm-bolt` that will do: before anything is built.
pub fn tools(plan: &Plan, toolchain: &Toolchain, notes: &mut Vec<String>) -> Result<BoltTools> {
    let known = ["x86_64-", "aarch64-"].iter().any(|arch| plan.target.starts_with(arch));
    if !known || !plan.target.contains("linux") {
        bail!(
            "BOLT rewrites programs for Linux on x86-64 and AArch64, and this build is for {}",
            plan.target
        );
    }
    if plan.cross.is_some() {
        bail!("{NOT_HERE}: use BOLT there");
    }
    if plan.linkage == Linkage::Shared {
        bail!(
            "the profile {} links llama.cpp as shared libraries, which are not linked anew here, so BOLT would reach \
             the small program around them alone: take a profile with `linkage = \"static\"`",
            plan.profile
        );
    }
    let is_archive = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "a");
    if plan.blas_library.iter().flat_map(|blas| &blas.libraries).any(is_archive) {
        bail!(
            "the profile {} links a BLAS library into the program, whose kernels are assembly written by hand: BOLT \
             would move what it cannot understand; take a profile without it, or with the distribution's library",
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
            "llvm-bolt {wanted} is needed, and there is none: `cargo xtask setup` names the package manager's own; on \
             Debian and Ubuntu `apt-get install bolt-{wanted}`"
        );
    };
    if bolt.llvm_major < Some(BOLT_AT_LEAST) {
        bail!(
            "{} is of version {}, and {BOLT_AT_LEAST} is the oldest that folds identical functions safely: install \
             bolt-{wanted} (Debian)",
            bolt.path.display(),
            bolt.version
        );
    }
    if bolt.llvm_major != Some(wanted) {
        notes.push(format!(
            "llvm-bolt {} rewrites what LLVM {wanted} compiled: functions with instructions that it does not know stay \
             as they are; bolt-{wanted} would know them all",
            bolt.version
        ));
    }
    let name = bolt.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let sibling = |other: &str| bolt.path.with_file_name(name.replacen("llvm-bolt", other, 1));
    Ok(BoltTools { merge_fdata: sibling("merge-fdata"), perf2bolt: sibling("perf2bolt"), bolt: bolt.clone() })
}

/// The CPU guard, and what the C library starts a program with: code that BOLT must leave where and as it is. The
/// guard runs before the program knows its CPU, so nothing may be woven into it, and it must stay the first to run;
/// `_start`, `_init` and `_fini` are hand-written assembly without unwinding tables. Regular expressions over names
/// as BOLT has them: a local function's is followed by its file's.
const UNTOUCHED: &str =
    "-skip-funcs=check/guard\\.c/.*,construct/guard\\.c/.*,anneal_guard_required,_start,_init,_fini";

/// Options that make counters of a program write to `fdata`, each process to a file of its own.
pub fn instrument(fdata: &std::path::Path) -> Vec<String> {
    vec![
        "-instrument".to_string(),
        format!("--instrumentation-file={}", fdata.display()),
        "--instrumentation-file-append-pid".to_string(),
        UNTOUCHED.to_string(),
    ]
}

/// Options of the rewriting.
pub fn rewrite() -> Vec<String> {
    [
        // Newell, Pupyrev: "Improved Basic Block Reordering", 2020: likely successors follow each other.
        "-reorder-blocks=ext-tsp",
        // Functions that call each other stand close: fewer misses of the instruction cache and its TLB.
        "-reorder-functions=cdsort",
        "-split-functions",
        "-split-all-cold",
        "-split-eh",
        // Not `all`: ggml tells its backends' buffer types apart by the addresses of functions, and two with equal
        // code must stay two.
        "-icf=safe",
        // Two seconds, and line numbers in a backtrace stay true. Without it llvm-bolt strips them.
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
        // llvm-bolts that are there, newest first; the one that is taken, or what the error says; whether it is noted
        let cases: [(&[&str], Result<&str, &str>, bool); 6] = [
            (&["22.1.8"], Ok("22.1.8"), false),
            (&["23.1.0", "22.1.8", "19.1.7"], Ok("22.1.8"), false),
            (&["23.1.0"], Ok("23.1.0"), true),
            (&["21.1.0"], Ok("21.1.0"), true),
            (&["19.1.7"], Err("20 is the oldest"), false),
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
        // Of other counts: another folder.
        let other = native.bolted(&"cd".repeat(32).try_into().unwrap());
        assert_ne!(other.folder_name(), bolted.folder_name());
    }
}
