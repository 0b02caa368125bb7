//! Check that the switches took effect: in the compile database and in the finished program.

use anyhow::{Context, Result, bail};
use build_info::record::EffectiveFlags;
use build_info::switches::{Allocator, CMAKE, OpenMp, Switches};
use plan::Plan;
use plan::profile::Threading;
use serde::Deserialize;

use super::state::Build;

const OPENMP: &str = "-DGGML_USE_OPENMP";

/// Checks that ggml-cpu is compiled with the definitions in the plan.
///
/// # Errors
/// If a disabled definition is present, or OpenMP is requested but not found: CMake only warns about missing OpenMP.
pub fn check_definitions(plan: &Plan, flags: &EffectiveFlags) -> Result<()> {
    let threads =
        ("threading", OPENMP, plan.threading == Threading::Threadpool, plan.threading == Threading::Openmp);
    // Enabled switches may be absent, because patches that do not apply to a tree are skipped.
    let switches =
        CMAKE.iter().map(|switch| (switch.key, switch.definition, !(switch.get)(&plan.switches), false));
    let asked = std::iter::once(threads).chain(switches);
    for (key, definition, must_not, must) in asked {
        let there = defines(flags, definition);
        if (there && must_not) || (!there && must) {
            bail!(
                "the {} build does not match its profile: ggml-cpu is compiled {} {definition}, contrary to \
                 the key `{key}`\nhint: look for a definition in the profile that overrides the key, and for \
                 CMake's warnings",
                plan.profile,
                if there { "with" } else { "without" }
            );
        }
    }
    Ok(())
}

fn defines(flags: &EffectiveFlags, definition: &str) -> bool {
    flags.definitions.iter().any(|found| found == definition)
}

/// Returns the switches that took effect. The switches of the finished program have already been checked.
pub fn found(plan: &Plan, flags: &EffectiveFlags) -> Switches {
    let mut found = plan.switches.clone();
    for switch in CMAKE {
        *(switch.place)(&mut found) = defines(flags, switch.definition);
    }
    found
}

/// Switches that the finished program reports. A missing value means that the program lacks the feature.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct ProgramSwitches {
    allocator: Option<AllocatorJson>,
    /// True if large buffers request huge pages.
    huge_pages: bool,
    /// OpenMP runtime that the loader chose.
    pub openmp: Option<OpenMp>,
}

/// Allocator that the program reports.
#[derive(Deserialize)]
struct AllocatorJson {
    name: Allocator,
    /// True if the allocator serves C and C++ as well as Rust.
    serves_cpp: bool,
}

/// Returns the switches that the newest engine reports.
///
/// # Errors
/// If the engine cannot be run.
pub fn ask(build: &Build) -> Result<ProgramSwitches> {
    build.ask_engine()
}

/// Checks the finished program against the plan. Does nothing if this machine cannot run the program.
///
/// # Errors
/// If the program's allocator, huge pages or OpenMP runtime differ from the plan's.
pub fn check_engine(build: &Build) -> Result<()> {
    super::openmp::linked(build)?;
    if build.not_run()?.is_some() {
        return Ok(());
    }
    let switches = &build.plan.switches;
    let answer = ask(build)?;
    check_answer(switches, &answer)
        .with_context(|| format!("the {} build does not match its profile", build.plan.profile))
}

fn check_answer(switches: &Switches, answer: &ProgramSwitches) -> Result<()> {
    let (name, serves_cpp) = match &answer.allocator {
        Some(memory) => (memory.name, memory.serves_cpp),
        None => (Allocator::System, true),
    };
    if name != switches.allocator {
        bail!(
            "the profile has `allocator = \"{}\"`, but the engine's allocator is {name}",
            switches.allocator
        );
    }
    if !serves_cpp {
        bail!(
            "{name} is the allocator of Rust but not of C++: the program's `operator new` and `posix_memalign` \
             use another `malloc`"
        );
    }
    if switches.huge_pages != answer.huge_pages {
        bail!(
            "the profile has `huge_pages = {}`, but large buffers of the CPU backend {} request huge pages",
            switches.huge_pages,
            if answer.huge_pages { "do" } else { "do not" }
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_what_the_plan_says_is_refused() {
        let mimalloc = Switches { allocator: Allocator::Mimalloc, ..Switches::default() };
        let huge = Switches { huge_pages: true, ..Switches::default() };
        let cases = [
            (Switches::default(), "{}", None),
            (
                Switches::default(),
                r#"{"allocator":{"name":"system","serves_cpp":true},"huge_pages":false}"#,
                None,
            ),
            (mimalloc.clone(), r#"{"allocator":{"name":"mimalloc","serves_cpp":true}}"#, None),
            (
                mimalloc.clone(),
                r#"{"allocator":{"name":"mimalloc","serves_cpp":false}}"#,
                Some("but not of C++"),
            ),
            (mimalloc, "{}", Some("allocator is system")),
            (huge.clone(), r#"{"huge_pages":true}"#, None),
            (huge, "{}", Some("do not request huge pages")),
            (Switches::default(), r#"{"huge_pages":true}"#, Some("do request huge pages")),
        ];
        for (switches, answer, expected) in cases {
            let checked = check_answer(&switches, &serde_json::from_str(answer).unwrap());
            match expected {
                None => assert!(checked.is_ok(), "{answer}: {checked:?}"),
                Some(part) => assert!(checked.unwrap_err().to_string().contains(part), "{answer}"),
            }
        }
    }
}
