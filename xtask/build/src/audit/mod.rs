//! Checks finished programs against the rules in profiles/audit.toml. The command `audit` and the audit stage of a
//! build use this module.

mod complaint;
mod device;
mod subject;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use audit::portable::{self, Strange};
use audit::{Ceiling, Level, Program, Rules, Symbols, native};
use build_info::audit::{AllowedSymbol, Audit, Rule};
use build_info::record::CpuVariant;
use build_info::{Bytes, Glibc};
use serde::Serialize;

use crate::process;
use crate::stages::variants;
use crate::workspace::Workspace;
pub use subject::{AuditSubject, libraries};

/// Number of functions listed per instruction set unless all functions are requested.
const SHOWN: usize = 5;

/// Result of the audit of a program and its libraries.
#[derive(Debug, Serialize)]
pub struct AuditReport {
    /// Summary that is stored in the build's record.
    #[serde(flatten)]
    pub summary: Audit,
    /// Contents of each audited file.
    pub contents: Vec<Content>,
    /// True if no rule is violated.
    pub passed: bool,
    /// Instruction sets that the files use.
    pub occurring: Vec<Occurring>,
    /// Functions with code that the disassembler cannot decode.
    pub unknown: Vec<Strange>,
    /// Result of the `portable` rule; `None` if the rule does not apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub portable: Option<portable::PortableVerdict>,
    /// Files that need a newer glibc than the build targets.
    pub too_new: Vec<TooNew>,
    /// GPU architectures that the build targets but contains no code for.
    pub lacking: Vec<String>,
    /// Result of the `native` rule; `None` if the rule does not apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native: Option<native::NativeVerdict>,
}

/// File that needs a newer glibc than the build targets.
#[derive(Debug, Serialize)]
pub struct TooNew {
    /// Path of the file.
    pub file: PathBuf,
    /// Version of glibc that the file needs.
    pub needs: Glibc,
    /// Newest version of glibc that the file may need.
    pub floor: Glibc,
}

/// Contents of one file.
#[derive(Debug, Serialize)]
pub struct Content {
    /// Path of the file.
    pub file: PathBuf,
    /// Size of the file in bytes.
    pub size: Bytes,
    /// Size of the executable code in bytes.
    pub code: Bytes,
    /// Number of functions, including code regions without a name.
    pub functions: usize,
    /// Number of instructions.
    pub instructions: u64,
    /// Size of the padding between functions in bytes.
    pub padding: Bytes,
    /// Size of the code that does not decode to an instruction, in bytes.
    pub invalid: Bytes,
    /// True if the file lacks some or all function names.
    pub stripped: bool,
}

/// Instruction set that the files use.
#[derive(Debug, Serialize)]
pub struct Occurring {
    /// Name of the instruction set.
    pub feature: String,
    /// Lowest level of the x86-64 psABI that includes the instruction set.
    pub level: String,
    /// True if every x86-64 CPU has the instruction set.
    pub baseline: bool,
    /// Number of instructions that need the instruction set.
    pub count: u64,
    /// Number of functions that contain instructions of the set.
    pub functions: usize,
    /// Functions that contain instructions of the set, sorted by descending number of instructions.
    pub symbols: Vec<SymbolUse>,
}

/// Function that uses an instruction set.
#[derive(Clone, Debug, Serialize)]
pub struct SymbolUse {
    /// Name of the function.
    pub symbol: String,
    /// Number of instructions in the function that need the instruction set.
    pub count: u64,
    /// Address of the first instruction that needs the instruction set.
    pub address: u64,
}

/// Criteria that files are checked against.
pub struct Question<'a> {
    /// Rule to apply.
    pub rule: Rule,
    /// Instruction sets that the compilers were allowed to use.
    pub isa: &'a [String],
    /// Instruction sets of the host.
    pub offered: &'a BTreeSet<String>,
    /// CPU variants with kernels in libraries next to the program; empty if the program contains its kernels.
    pub variants: &'a [CpuVariant],
    /// Oldest glibc that the files must run with; `None` for no requirement.
    pub glibc: Option<Glibc>,
    /// GPU architectures that the build targets, in the notation of NVIDIA's tools, such as `sm_90`.
    pub architectures: &'a [String],
    /// True to list all functions instead of the first few.
    pub all_symbols: bool,
}

/// Returns the instruction sets that the file at `path` may use without checking the CPU. A kernel library may use the
/// instruction sets of its CPU variant; any other file may use only plain x86-64.
fn ceiling(path: &Path, variants: &[CpuVariant]) -> Ceiling {
    let of = |variant: &&CpuVariant| path.file_name() == Some(variants::file(&variant.name).as_ref());
    let variant = variants.iter().find(of);
    Ceiling::features(variant.iter().flat_map(|variant| &variant.requires).map(String::as_str))
}

/// Returns the path of the checkout's audit rules.
pub fn rules_path(workspace: &Workspace) -> PathBuf {
    workspace.root().join("profiles/audit.toml")
}

/// Disassembles `files`, which belong to one build, and checks them against `question`.
///
/// # Errors
/// If a file is damaged or is not an x86-64 program. Rule violations are not errors; see [`AuditReport::complaint`].
pub fn audit(files: &[PathBuf], question: &Question, rules: &Rules) -> Result<AuditReport> {
    let started = Instant::now();
    let mut programs = Vec::new();
    for file in files {
        process::check_interrupted()?;
        programs.push(Program::open(file)?);
    }
    let isa = question.isa.iter().cloned().collect();
    let portable = match question.rule {
        Rule::Portable => Some(portable::check(&programs, rules)),
        Rule::Universal => {
            let ceiling = |program: &Program| ceiling(&program.path, question.variants);
            Some(portable::check_each(&programs, ceiling, rules))
        }
        Rule::Cpu => {
            // OSXSAVE, which the CPU guard checks, shows that the CPU has XSAVE too.
            let xsave = question.isa.iter().any(|name| name == "osxsave").then_some("xsave");
            let names = || question.isa.iter().map(String::as_str).chain(xsave);
            let ceiling = |_: &Program| Ceiling::features(names());
            Some(portable::check_each(&programs, ceiling, rules))
        }
        Rule::Native | Rule::Report => None,
    };
    let native = match question.rule {
        Rule::Native => Some(native::check(&programs, rules, &isa, question.offered)),
        // The host has a different CPU.
        Rule::Cpu => Some(native::check(&programs, rules, &isa, &isa)),
        Rule::Portable | Rule::Universal | Rule::Report => None,
    };

    let mut features: BTreeMap<String, u64> = BTreeMap::new();
    for (name, count) in programs.iter().flat_map(Program::features) {
        *features.entry(name).or_default() += count;
    }
    let allowed: Vec<AllowedSymbol> =
        portable.iter().flat_map(|verdict| &verdict.allowed).map(allowed).collect();
    let (level, beyond) = level(&programs, &allowed);
    let summary = Audit {
        not_done: None,
        rule: question.rule,
        files: files.to_vec(),
        features,
        level,
        beyond,
        glibc: programs.iter().filter_map(glibc).max(),
        instructions: programs.iter().map(|program| program.instructions).sum(),
        allowed,
        kernels: native.as_ref().map_or(0, |verdict| {
            count(
                verdict
                    .kernels
                    .iter()
                    .filter(|kernel| kernel.expected.is_some() && !kernel.is_scalar())
                    .count(),
            )
        }),
        device: device::audit(&programs, rules),
        seconds: 0.0,
    };
    let mut report = AuditReport {
        summary,
        contents: programs.iter().map(content).collect(),
        passed: true,
        unknown: portable::strange(&programs, rules),
        occurring: occurring(&programs, question.all_symbols),
        too_new: too_new(&programs, question.glibc),
        lacking: device::lacking(&programs, question.architectures),
        portable,
        native,
    };
    report.passed = report.complaint().is_none();
    report.summary.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

/// Returns the oldest glibc that can load `program`, or `None` if it does not use glibc.
fn glibc(program: &Program) -> Option<Glibc> {
    program.dynamic.glibc().map(Glibc::from)
}

fn too_new(programs: &[Program], floor: Option<Glibc>) -> Vec<TooNew> {
    let of = |program: &Program| {
        let (needs, floor) = (glibc(program)?, floor?);
        (needs > floor).then(|| TooNew { file: program.path.clone(), needs, floor })
    };
    programs.iter().filter_map(of).collect()
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn allowed(found: &portable::Allowed) -> AllowedSymbol {
    AllowedSymbol {
        symbol: found.symbol.clone(),
        feature: found.feature.name(),
        reason: found.reason.clone(),
    }
}

/// Returns the highest psABI level of the code in `programs`, and the instruction sets that belong to no level. Ignores
/// the instructions that `allowed` permits.
fn level(programs: &[Program], allowed: &[AllowedSymbol]) -> (u32, Vec<String>) {
    let excused: BTreeSet<(&str, &str)> =
        allowed.iter().map(|entry| (entry.symbol.as_str(), entry.feature.as_str())).collect();
    let (mut level, mut beyond) = (1, BTreeSet::new());
    for function in programs.iter().flat_map(|program| &program.functions) {
        for used in &function.uses {
            // The level is checked first: names are expensive to compute, and most functions need no look-up in
            // `excused`.
            if used.feature.level() > Level::V3
                && excused.contains(&(function.name().as_str(), used.feature.name().as_str()))
            {
                continue;
            }
            match used.feature.level().number() {
                Some(number) => level = level.max(number),
                None => drop(beyond.insert(used.feature.name())),
            }
        }
    }
    (level, beyond.into_iter().collect())
}

fn content(program: &Program) -> Content {
    Content {
        file: program.path.clone(),
        size: Bytes(program.size),
        code: Bytes(program.code),
        functions: program.functions.len(),
        instructions: program.instructions,
        padding: Bytes(program.padding),
        invalid: Bytes(program.invalid),
        stripped: program.symbols != Symbols::All,
    }
}

/// Returns the instruction sets in `programs`, sorted from the lowest psABI level to the highest.
fn occurring(programs: &[Program], all: bool) -> Vec<Occurring> {
    let mut found: BTreeMap<(Level, String), Vec<SymbolUse>> = BTreeMap::new();
    for function in programs.iter().flat_map(|program| &program.functions) {
        for used in &function.uses {
            let users = found.entry((used.feature.level(), used.feature.name())).or_default();
            users.push(SymbolUse { symbol: function.name(), count: used.count, address: used.address });
        }
    }
    let mut all_occurring = Vec::new();
    for ((level, feature), mut symbols) in found {
        symbols.sort_by(|a, b| b.count.cmp(&a.count).then(a.address.cmp(&b.address)));
        let (count, functions) = (symbols.iter().map(|user| user.count).sum(), symbols.len());
        if !all || level == Level::V1 {
            symbols.truncate(SHOWN);
        }
        let baseline = level == Level::V1;
        all_occurring.push(Occurring {
            feature,
            level: level.to_string(),
            baseline,
            count,
            functions,
            symbols,
        });
    }
    all_occurring
}

/// Returns `path` relative to `folder`, or `path` itself if it is not in `folder`.
pub fn relative(path: &Path, folder: &Path) -> PathBuf {
    path.strip_prefix(folder).unwrap_or(path).to_path_buf()
}
