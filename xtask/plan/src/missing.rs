//! Plans for machines with missing tools. For each missing tool, the plan assumes the tool of the reference toolchain
//! and marks it as missing.

use anyhow::Result;
use build_info::Host;
use build_info::record::Source;
use serde::Serialize;
use toolchain::{CompilerKind, Toolchain};

use crate::plan::Plan;
use crate::planner::plan;
use crate::profile::Profile;
use crate::reference::reference_toolchain;

/// Tool that a plan assumes, because no usable one was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// Name of the tool.
    pub tool: &'static str,
    /// Version that the plan assumes.
    pub version: String,
    /// Version that was found and is not usable; `None` if no version was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
}

/// Kind of tool that may be missing.
struct Kind {
    name: &'static str,
    /// Returns the version of the first tool of this kind.
    version: fn(&Toolchain) -> Option<String>,
    /// Copies the tools of this kind from the second toolchain to the first.
    take: fn(&mut Toolchain, &Toolchain),
}

/// Defines a kind of tool that is kept in the field `$field` of a toolchain.
macro_rules! kind {
    ($name:literal, $field:ident, $version:expr) => {
        Kind {
            name: $name,
            version: $version,
            take: |toolchain, reference| toolchain.$field.clone_from(&reference.$field),
        }
    };
}

/// Kinds of tools, in the order in which the planner tries to do without them. Compilers come first, because one of
/// the two families is enough.
static KINDS: &[Kind] = &[
    kind!("clang", compilers, |all| {
        let clang = all.compilers.iter().find(|found| found.kind == CompilerKind::Clang);
        clang.map(|found| found.version.to_string())
    }),
    kind!("C and C++ compiler", default_compiler, |all| all
        .default_compiler
        .as_ref()
        .map(|found| found.version.to_string())),
    kind!("lld", lld, |all| all.lld.first().map(|found| found.version.clone())),
    kind!("llvm-ar", llvm_ar, |all| all.llvm_ar.first().map(|found| found.version.clone())),
    kind!("cmake", cmake, |all| all.cmake.as_ref().map(|found| found.version.clone())),
    kind!("ninja", ninja, |all| all.ninja.as_ref().map(|found| found.version.clone())),
    kind!("zig", zig, |all| all.zig.as_ref().map(|found| found.version.clone())),
    kind!("OpenMP runtime of clang", openmp, |all| all.openmp.first().map(u32::to_string)),
    kind!("BLAS library", blas, |all| all.blas.first().map(|found| found.version.clone())),
    kind!("CUDA toolkit", cuda, |all| all.cuda.first().map(|found| found.nvcc.version.clone())),
    kind!("qemu-aarch64", aarch64, |all| all.aarch64.as_ref().map(|found| found.tool.version.clone())),
    kind!("rustc's standard library for aarch64", rust_targets, |all| {
        let there = all.rust_targets.iter().any(|target| target.starts_with("aarch64"));
        all.rustc.as_ref().filter(|_| there).map(|found| found.version.to_string())
    }),
    kind!("rustc", rustc, |all| all.rustc.as_ref().map(|found| found.version.to_string())),
];

/// Plans `profile` for `host`. For each missing tool, the plan assumes the tool of the reference toolchain. Returns
/// the missing tools with the plan.
///
/// # Errors
/// Returns the errors of [`plan`] that installing tools would not fix.
pub fn plan_marked(
    host: &Host,
    profile: &Profile,
    source: &Source,
    toolchain: &Toolchain,
) -> Result<(Plan, Vec<Missing>)> {
    if let Ok(plan) = plan(host, profile, source, toolchain) {
        return Ok((plan, Vec::new()));
    }
    let reference = reference_toolchain(&host.arch)?;
    let with = |kinds: &[&Kind]| {
        let mut tools = toolchain.clone();
        kinds.iter().for_each(|kind| (kind.take)(&mut tools, &reference));
        plan(host, profile, source, &tools)
    };
    let mut needed: Vec<&Kind> = KINDS.iter().collect();
    let mut planned = with(&needed)?;
    for kind in KINDS {
        let others: Vec<&Kind> = needed.iter().copied().filter(|other| !std::ptr::eq(*other, kind)).collect();
        if let Ok(plan) = with(&others) {
            (planned, needed) = (plan, others);
        }
    }
    let missing = needed.iter().map(|kind| Missing {
        tool: kind.name,
        version: (kind.version)(&reference).unwrap_or_default(),
        found: (kind.version)(toolchain),
    });
    Ok((planned, missing.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{host, profile, source};

    fn missing(name: &str, change: fn(&mut Toolchain)) -> Vec<&'static str> {
        let mut tools = reference_toolchain("x86_64").unwrap();
        change(&mut tools);
        let profile = profile(name);
        let (plan, missing) = plan_marked(&host("zen5-vm"), &profile, &source(), &tools).unwrap();
        assert_eq!(plan.profile, name);
        assert!(missing.iter().all(|missing| !missing.version.is_empty()), "{missing:?}");
        missing.into_iter().map(|missing| missing.tool).collect()
    }

    #[test]
    fn tools_that_lack_are_marked_and_no_other() {
        assert!(missing("portable", |_| ()).is_empty());
        assert_eq!(missing("portable", |tools| tools.zig = None), ["zig"]);
        assert_eq!(missing("portable", |tools| (tools.zig, tools.cmake) = (None, None)), ["cmake", "zig"]);
        assert_eq!(missing("native", |tools| tools.ninja = None), ["ninja"]);
        // gcc is sufficient.
        let no_clang = |tools: &mut Toolchain| {
            tools.compilers.retain(|found| found.kind == CompilerKind::Gcc);
        };
        assert!(missing("native", no_clang).is_empty());
        assert_eq!(missing("native", |tools| tools.compilers.clear()), ["clang"]);
    }

    #[test]
    fn a_tool_that_is_too_old_is_told_with_its_version() {
        let mut tools = reference_toolchain("x86_64").unwrap();
        tools.cmake.as_mut().unwrap().version = "3.10.2".to_string();
        let (_, missing) = plan_marked(&host("zen5-vm"), &profile("native"), &source(), &tools).unwrap();
        let [missing] = &missing[..] else { panic!("{missing:?}") };
        assert_eq!((missing.tool, missing.found.as_deref()), ("cmake", Some("3.10.2")));
    }

    #[test]
    fn what_no_tool_mends_is_an_error() {
        let tools = reference_toolchain("x86_64").unwrap();
        let profile = profile("native+reproducible:true");
        let error = plan_marked(&host("zen5-vm"), &profile, &source(), &tools).unwrap_err();
        assert!(error.to_string().contains("conflicts with"), "{error}");
        // If tools are missing too, only the error about the profile is reported.
        let error = plan_marked(&host("zen5-vm"), &profile, &source(), &Toolchain::default()).unwrap_err();
        assert!(error.to_string().contains("conflicts with"), "{error}");
    }
}
