//! Holds finished programs against the rules in profiles/audit.toml: for the command `audit` and for the stage.

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

/// Functions that are named of each instruction set when not all are asked for.
const SHOWN: usize = 5;

/// What there is to know of a program.
#[derive(Debug, Serialize)]
pub struct AuditReport {
    /// What the record of a build keeps.
    #[serde(flatten)]
    pub summary: Audit,
    /// The files, with what was in them.
    pub contents: Vec<Content>,
    /// Whether the rule has nothing against the program; so it is where there is no rule.
    pub passed: bool,
    /// The instruction sets that occur.
    pub occurring: Vec<Occurring>,
    /// Functions with code that the disassembler does not know.
    pub unknown: Vec<Strange>,
    /// What `portable` found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub portable: Option<portable::PortableVerdict>,
    /// Files that need a newer glibc than the build is for.
    pub too_new: Vec<TooNew>,
    /// Architectures of GPUs that the build is for, and that have no code in it.
    pub lacking: Vec<String>,
    /// What `native` found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native: Option<native::NativeVerdict>,
}

/// A file that needs a newer glibc than it should.
#[derive(Debug, Serialize)]
pub struct TooNew {
    /// The file.
    pub file: PathBuf,
    /// What it needs.
    pub needs: Glibc,
    /// What it should be content with.
    pub floor: Glibc,
}

/// What was in a file.
#[derive(Debug, Serialize)]
pub struct Content {
    /// The file.
    pub file: PathBuf,
    /// Its size.
    pub size: Bytes,
    /// Executable bytes.
    pub code: Bytes,
    /// Number of functions, and of stretches of code without a name.
    pub functions: usize,
    /// Number of instructions.
    pub instructions: u64,
    /// Bytes between functions.
    pub padding: Bytes,
    /// Bytes that are no instruction.
    pub invalid: Bytes,
    /// Whether names are missing.
    pub stripped: bool,
}

/// An instruction set that occurs.
#[derive(Debug, Serialize)]
pub struct Occurring {
    /// Its name.
    pub feature: String,
    /// The level of the psABI that has it.
    pub level: String,
    /// Whether it is in every x86-64 CPU.
    pub baseline: bool,
    /// Number of instructions.
    pub count: u64,
    /// Number of functions that hold them.
    pub functions: usize,
    /// These functions, those with the most instructions first.
    pub symbols: Vec<SymbolUse>,
}

/// A function that uses an instruction set.
#[derive(Clone, Debug, Serialize)]
pub struct SymbolUse {
    /// Its name.
    pub symbol: String,
    /// How many such instructions it has.
    pub count: u64,
    /// Address of the first.
    pub address: u64,
}

/// What to hold files against.
pub struct Question<'a> {
    /// The rule.
    pub rule: Rule,
    /// Instruction sets that the compilers were free to use.
    pub isa: &'a [String],
    /// Instruction sets of the host.
    pub offered: &'a BTreeSet<String>,
    /// Kernels for kinds of CPUs, where they are libraries beside the program.
    pub variants: &'a [CpuVariant],
    /// The oldest glibc that the files are to start with, where that is named.
    pub glibc: Option<Glibc>,
    /// Architectures of GPUs that the build is for, as NVIDIA's tools spell them: `sm_90`.
    pub architectures: &'a [String],
    /// Whether to name all functions.
    pub all_symbols: bool,
}

/// What the file at `path` may use without asking the CPU: a library of kernels what its variant takes, all else nothing
/// beyond plain x86-64.
fn ceiling(path: &Path, variants: &[CpuVariant]) -> Ceiling {
    let of = |variant: &&CpuVariant| path.file_name() == Some(variants::file(&variant.name).as_ref());
    let variant = variants.iter().find(of);
    Ceiling::features(variant.iter().flat_map(|variant| &variant.requires).map(String::as_str))
}

/// The rules of a checkout.
pub fn rules_path(workspace: &Workspace) -> PathBuf {
    workspace.root().join("profiles/audit.toml")
}

/// Disassembles `files`, which belong together, and answers `question`.
///
/// # Errors
/// When a file is no program for x86-64 or is damaged. What the rules have against the files is no error here:
/// [`AuditReport::complaint`].
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
        Rule::Native | Rule::Report => None,
    };
    let native =
        (question.rule == Rule::Native).then(|| native::check(&programs, rules, &isa, question.offered));

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

/// The oldest glibc that `program` starts with, where it uses any.
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

/// The highest level outside `allowed`, and what is in no level.
fn level(programs: &[Program], allowed: &[AllowedSymbol]) -> (u32, Vec<String>) {
    let excused: BTreeSet<(&str, &str)> =
        allowed.iter().map(|entry| (entry.symbol.as_str(), entry.feature.as_str())).collect();
    let (mut level, mut beyond) = (1, BTreeSet::new());
    for function in programs.iter().flat_map(|program| &program.functions) {
        for used in &function.uses {
            // Names are costly, and most of the code needs none.
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

/// The instruction sets that occur, the most basic first.
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

/// `path` as seen from `folder`, where it lies in it.
pub fn relative(path: &Path, folder: &Path) -> PathBuf {
    path.strip_prefix(folder).unwrap_or(path).to_path_buf()
}
