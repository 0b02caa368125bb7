//! Audit failures as text: the instruction, its address and function, and the remedy.

use std::fmt::Write;

use audit::native::{self, InstructionSet, KernelWidth};
use audit::portable::{self, Strange, UNKNOWN, Violation};
use build_info::audit::Rule;

use super::{AuditReport, TooNew};
use crate::ui::demangled;

/// Maximum number of faults that are listed individually.
const NAMED: usize = 5;

impl AuditReport {
    /// Returns a description of the rule violations, or `None` if the program passes.
    pub fn complaint(&self) -> Option<String> {
        let portable =
            self.portable.as_ref().and_then(|verdict| portable_complaint(verdict, self.summary.rule));
        let native = || self.native.as_ref().and_then(native_complaint);
        let glibc = || self.too_new.first().map(glibc_complaint);
        portable.or_else(native).or_else(glibc).or_else(|| device_complaint(&self.lacking))
    }

    /// Returns a warning about code that the rule accepts but the disassembler cannot decode, or `None`.
    pub fn doubt(&self) -> Option<String> {
        let failed = self.portable.is_some();
        (!failed && !self.unknown.is_empty()).then(|| {
            format!(
                "{}\n  the program crashes on a CPU without these instructions, and the audit cannot tell \
                 which CPUs lack them",
                unknown_code(&self.unknown)
            )
        })
    }
}

/// Describes the code that cannot be decoded: the number of places, then the bytes, address and function of the first
/// few.
fn unknown_code(unknown: &[Strange]) -> String {
    let places: u64 = unknown.iter().map(|one| one.count).sum();
    let mut text = format!(
        "the disassembler cannot decode the code at {} in {}",
        if places == 1 { "1 place".to_string() } else { format!("{places} places") },
        counted(unknown.len(), "function", "functions")
    );
    for one in unknown.iter().take(NAMED) {
        let Strange { symbol, address, bytes, count, .. } = one;
        let _ = write!(text, "\n    {bytes} at {address:#x} in {}, the first of {count}", demangled(symbol));
    }
    more(&mut text, unknown.len());
    text
}

fn portable_complaint(verdict: &portable::PortableVerdict, rule: Rule) -> Option<String> {
    let cpu = match rule {
        Rule::Universal => "CPU of this variant",
        Rule::Cpu => "CPU of this kind",
        _ => "x86-64-v3 CPU",
    };
    if verdict.violations.is_empty()
        && let Some(first) = verdict.unknown.first()
    {
        return Some(format!(
            "{} may not be portable: {}\nhint: find out what the code is, for example with a newer \
             disassembler (`llvm-objdump -d`)\nhint: if the code is data, or only runs after a CPU check, add \
             the function to `allow` in profiles/audit.toml with the feature \"{UNKNOWN}\" and the reason",
            first.file.display(),
            unknown_code(&verdict.unknown)
        ));
    }
    let first = verdict.violations.first()?;
    let mut text = format!(
        "{} is not portable: {} that a {cpu} may lack",
        first.file.display(),
        counted(verdict.violations.len(), "place contains instructions", "places contain instructions"),
    );
    for violation in verdict.violations.iter().take(NAMED) {
        let Violation { instruction, feature, address, count, .. } = violation;
        let symbol = demangled(&violation.symbol);
        let _ =
            write!(text, "\n    {instruction} ({feature}) at {address:#x} in {symbol}, the first of {count}");
    }
    more(&mut text, verdict.violations.len());
    text.push_str(if verdict.violations.iter().any(|violation| violation.stripped) {
        "\n  the file is stripped, so the audit cannot recognise functions that check the CPU first\nhint: \
         audit the file before you strip it"
    } else {
        "\nhint: find out why the code was compiled for another CPU: look for a -march or -m flag in the \
         build folder's cmake/compile_commands.json, and for a linked library that needs these instructions\n\
         hint: if the function only runs after a CPU check, add it to `allow` in profiles/audit.toml with \
         the reason"
    });
    Some(text)
}

fn glibc_complaint(found: &TooNew) -> String {
    let TooNew { file, needs, floor } = found;
    format!(
        "{} needs glibc {needs} or later, but the build targets glibc {floor} or later\nhint: `objdump -T` \
         lists the C library functions that the file uses, with their glibc versions. Replace the newer \
         functions, or raise `glibc` in the build profile",
        file.display()
    )
}

fn device_complaint(lacking: &[String]) -> Option<String> {
    (!lacking.is_empty()).then(|| {
        format!(
            "the program contains no GPU code for {}, which the build targets\nhint: check --generate-code \
             in the nvcc commands of the build folder's cmake/compile_commands.json, and check that \
             libggml-cuda.a is among the linker's arguments",
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
    let mut text = String::from("the program does not use all instruction sets of this CPU");
    if !scalar.is_empty() {
        let _ = write!(
            text,
            ": {} less vectorised than in ggml's source",
            counted(scalar.len(), "kernel is", "kernels are")
        );
    }
    for kernel in scalar.iter().take(NAMED) {
        let expected = kernel.expected.unwrap_or_default();
        let _ = write!(
            text,
            "\n    {} at {:#x}: expected packed arithmetic in {} registers, but the widest found is {}",
            kernel.name, kernel.address, expected, kernel.found
        );
    }
    more(&mut text, scalar.len());
    for set in &missed {
        let _ = write!(
            text,
            "\n    the program contains no {} instructions, although ggml has kernels for {}",
            set.name, set.kernels
        );
    }
    if !verdict.knows_the_kernels() {
        let _ = write!(
            text,
            "\n    only {} of the kernels named in profiles/audit.toml were found, but at least {} are \
             required: the file is stripped or has no CPU backend, or llama.cpp has renamed the kernels",
            verdict.kernels.len(),
            verdict.least_kernels
        );
    }
    text.push_str(
        "\nhint: check the file's flags in the build folder's cmake/compile_commands.json: the -O level, -mno-… \
         and -march. If a new llama.cpp has changed a kernel, update profiles/audit.toml",
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
