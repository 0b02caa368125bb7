//! What the rules have against a program, in words: which instruction, where, and what to do.

use std::fmt::Write;

use audit::native::{self, InstructionSet, KernelWidth};
use audit::portable::{self, Violation};

use super::Report;

/// Faults that are named one by one.
const NAMED: usize = 5;

impl Report {
    /// What the rules have against the program; nothing when it is as it should be.
    pub fn complaint(&self) -> Option<String> {
        let portable = self.portable.as_ref().and_then(portable_complaint);
        portable.or_else(|| self.native.as_ref().and_then(native_complaint))
    }
}

fn portable_complaint(verdict: &portable::Verdict) -> Option<String> {
    let first = verdict.violations.first()?;
    let mut text = format!(
        "{} is not portable: {} that a CPU of x86-64-v3 may not have",
        first.file.display(),
        counted(verdict.violations.len(), "place holds instructions", "places hold instructions"),
    );
    for violation in verdict.violations.iter().take(NAMED) {
        let Violation { instruction, feature, address, symbol, count, .. } = violation;
        let _ =
            write!(text, "\n    {instruction} ({feature}) at {address:#x} in {symbol}, {count} of that kind");
    }
    more(&mut text, verdict.violations.len());
    text.push_str(if verdict.violations.iter().any(|violation| violation.stripped) {
        "\n  its names are stripped, so functions that ask the CPU first cannot be told from others: audit the file \
         before it is stripped"
    } else {
        "\n  find out who compiled it for another CPU (a -march or -m flag in the build folder's \
         cmake/compile_commands.json, a library that was linked). If the function is only run after the CPU was \
         asked, add it to `allow` in profiles/audit.toml and give the reason"
    });
    Some(text)
}

fn native_complaint(verdict: &native::Verdict) -> Option<String> {
    if verdict.passed() {
        return None;
    }
    let scalar: Vec<&KernelWidth> = verdict.kernels.iter().filter(|kernel| kernel.is_scalar()).collect();
    let missed: Vec<&InstructionSet> =
        verdict.instruction_sets.iter().filter(|set| set.is_missed()).collect();
    let mut text = String::from("the program does not use what this CPU offers");
    if !scalar.is_empty() {
        let _ = write!(
            text,
            ": {} not vectorised as far as ggml's source is",
            counted(scalar.len(), "kernel is", "kernels are")
        );
    }
    for kernel in scalar.iter().take(NAMED) {
        let expected = kernel.expected.unwrap_or_default();
        let _ = write!(
            text,
            "\n    {} at {:#x}: packed arithmetic in {} registers is expected, the widest found is {}",
            kernel.name, kernel.address, expected, kernel.found
        );
    }
    more(&mut text, scalar.len());
    for set in &missed {
        let _ =
            write!(text, "\n    no instruction of {} occurs, which ggml has for {}", set.name, set.kernels);
    }
    if !verdict.knows_the_kernels() {
        let _ = write!(
            text,
            "\n    only {} of the kernels named in profiles/audit.toml were found, and {} is the least that is believed: \
             the file is stripped, has no CPU backend, or llama.cpp has renamed them",
            verdict.kernels.len(),
            verdict.least_kernels
        );
    }
    text.push_str(
        "\n  look for the file's flags in the build folder's cmake/compile_commands.json: an -O level, an -mno-… or a \
         -march that is not this CPU's. Where a new llama.cpp has changed a kernel, mend profiles/audit.toml",
    );
    Some(text)
}

fn counted(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

fn more(text: &mut String, all: usize) {
    if all > NAMED {
        let _ = write!(text, "\n    and {} more: `cargo xtask audit -v` lists them", all - NAMED);
    }
}
