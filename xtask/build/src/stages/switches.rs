//! Proof that the switches took effect: in the compile database, and in the finished program, which is asked.

use anyhow::{Context, Result, bail};
use build_info::record::EffectiveFlags;
use build_info::switches::{Allocator, CMAKE, OpenMp, Switches};
use plan::Plan;
use plan::profile::Threading;
use serde::Deserialize;

use super::state::Build;

const OPENMP: &str = "-DGGML_USE_OPENMP";

/// Holds the definitions that ggml-cpu is compiled with against the plan.
///
/// # Errors
/// When one is there that was turned off, or OpenMP is not though it was asked for: CMake only warns then.
pub fn check_definitions(plan: &Plan, flags: &EffectiveFlags) -> Result<()> {
    let threads =
        ("threading", OPENMP, plan.threading == Threading::Threadpool, plan.threading == Threading::Openmp);
    // That they are there cannot be asked for: patches are left out of trees that they do not fit.
    let switches =
        CMAKE.iter().map(|switch| (switch.key, switch.definition, !(switch.get)(&plan.switches), false));
    let asked = std::iter::once(threads).chain(switches);
    for (key, definition, must_not, must) in asked {
        let there = defines(flags, definition);
        if (there && must_not) || (!there && must) {
            bail!(
                "the {} build is not what its profile says: ggml-cpu is compiled {} {definition}, against the key \
                 `{key}`; look for a definition in the profile that overrides it, and for CMake's warnings",
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

/// The switches as they were found; those of the finished program have been checked.
pub fn found(plan: &Plan, flags: &EffectiveFlags) -> Switches {
    let mut found = plan.switches.clone();
    for switch in CMAKE {
        *(switch.place)(&mut found) = defines(flags, switch.definition);
    }
    found
}

/// What the finished program tells of itself; a program that tells nothing has nothing of it.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct ProgramSwitches {
    allocator: Option<AllocatorJson>,
    /// Whether large buffers ask for huge pages.
    huge_pages: bool,
    /// The OpenMP runtime that the loader took.
    pub openmp: Option<OpenMp>,
}

/// Who serves its memory.
#[derive(Deserialize)]
struct AllocatorJson {
    name: Allocator,
    /// Whether C's and C++'s as well as Rust's.
    serves_cpp: bool,
}

/// Asks the newest engine.
pub fn ask(build: &Build) -> Result<ProgramSwitches> {
    build.ask_engine()
}

/// Holds the finished program against the plan.
///
/// # Errors
/// When its allocator, huge pages or OpenMP runtime are not the plan's.
pub fn check_engine(build: &Build) -> Result<()> {
    super::openmp::linked(build)?;
    let switches = &build.plan.switches;
    let answer = ask(build)?;
    check_answer(switches, &answer)
        .with_context(|| format!("the {} build is not what its profile says", build.plan.profile))
}

fn check_answer(switches: &Switches, answer: &ProgramSwitches) -> Result<()> {
    let (name, serves_cpp) = match &answer.allocator {
        Some(memory) => (memory.name, memory.serves_cpp),
        None => (Allocator::System, true),
    };
    if name != switches.allocator {
        bail!("`allocator = \"{}\"`, but {name} serves the engine's memory", switches.allocator);
    }
    if !serves_cpp {
        bail!(
            "{name} serves Rust's memory but not C++'s: its `malloc` is not the one that the program's `operator new` \
             and `posix_memalign` reach"
        );
    }
    if switches.huge_pages != answer.huge_pages {
        bail!(
            "`huge_pages = {}`, but large buffers of the CPU backend {} ask for huge pages",
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
            (mimalloc.clone(), r#"{"allocator":{"name":"mimalloc","serves_cpp":false}}"#, Some("not C++'s")),
            (mimalloc, "{}", Some("but system serves")),
            (huge.clone(), r#"{"huge_pages":true}"#, None),
            (huge, "{}", Some("do not ask for huge pages")),
            (Switches::default(), r#"{"huge_pages":true}"#, Some("do ask for huge pages")),
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
