//! What the rules have against a program, in words: which instruction, where, and what to do.

use std::fmt::Write;

use audit::native::{self, InstructionSet, KernelWidth};
use audit::portable::{self, Strange, UNKNOWN, Violation};
use build_info::audit::Rule;

use super::{AuditReport, TooNew};
use crate::ui::demangled;

/// Faults that are named one by one.
const NAMED: usize = 5;

impl AuditReport {
    /// What the rules have against the program; nothing when it is as it should be.
    pub fn complaint(&self) -> Option<String> {
        let portable =
            self.portable.as_ref().and_then(|verdict| portable_complaint(verdict, self.summary.rule));
        let native = || self.native.as_ref().and_then(native_complaint);
        let glibc = || self.too_new.first().map(glibc_complaint);
        portable.or_else(native).or_else(glibc).or_else(|| device_complaint(&self.lacking))
    }

    /// What nobody can answer for, though the rule lets it pass.
    pub fn doubt(&self) -> Option<String> {
        let failed = self.portable.is_some();
        (!failed && !self.unknown.is_empty()).then(|| {
            format!(
                "{}\n  a CPU without them dies of an illegal instruction, and no rule can tell which CPU that is",
                unknown_code(&self.unknown)
            )
        })
    }
}

/// Which code the disassembler does not know, and where.
fn unknown_code(unknown: &[Strange]) -> String {
    let places: u64 = unknown.iter().map(|one| one.count).sum();
    let mut text = format!(
        "the disassembler does not know the code in {} of {}",
        if places == 1 { "1 place".to_string() } else { format!("{places} places") },
        counted(unknown.len(), "function", "functions")
    );
    for one in unknown.iter().take(NAMED) {
        let Strange { symbol, address, bytes, count, .. } = one;
        let _ = write!(text, "\n    {bytes} at {address:#x} in {}, {count} of that kind", demangled(symbol));
    }
    more(&mut text, unknown.len());
    text
}

fn portable_complaint(verdict: &portable::PortableVerdict, rule: Rule) -> Option<String> {
    let cpu = match rule {
        Rule::Universal => "CPU that it is for",
        _ => "CPU of x86-64-v3",
    };
    if verdict.violations.is_empty()
        && let Some(first) = verdict.unknown.first()
    {
        return Some(format!(
            "{} may not be portable: {}\n  find out what it is (a newer disassembler: `llvm-objdump -d`). If it is data, \
             or only run after the CPU was asked, add the function to `allow` in profiles/audit.toml with the feature \
             \"{UNKNOWN}\", and give the reason",
            first.file.display(),
            unknown_code(&verdict.unknown)
        ));
    }
    let first = verdict.violations.first()?;
    let mut text = format!(
        "{} is not portable: {} that a {cpu} may not have",
        first.file.display(),
        counted(verdict.violations.len(), "place holds instructions", "places hold instructions"),
    );
    for violation in verdict.violations.iter().take(NAMED) {
        let Violation { instruction, feature, address, count, .. } = violation;
        let symbol = demangled(&violation.symbol);
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

fn glibc_complaint(found: &TooNew) -> String {
    let TooNew { file, needs, floor } = found;
    format!(
        "{} starts with glibc {needs} and later, and is meant for {floor} and later\n  find the function: `objdump -T` \
         lists what is taken of the C library, each with the version of glibc that it came with. Call another one, or \
         raise `glibc` in the build profile",
        file.display()
    )
}

fn device_complaint(lacking: &[String]) -> Option<String> {
    (!lacking.is_empty()).then(|| {
        format!(
            "the program is to be for {}, and holds no such code for GPUs\n  look at the nvcc commands in the build folder's \
             cmake/compile_commands.json (--generate-code), and whether libggml-cuda.a is among the linker's arguments",
            lacking.join(", ")
        )
    })
}

fn native_complaint(verdict: &native::NativeVerdict) -> Option<String> {
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
