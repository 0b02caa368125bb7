//! Command `audit`.

use std::fmt::Write;
use std::path::PathBuf;

use ::audit::native::{self, InstructionSet};
use ::audit::portable::UNKNOWN;
use ::audit::{Rules, Spills};
use anyhow::{Result, bail};
use build::audit::{self, AuditReport, AuditSubject, Question};
use build::ui::{self, Ui};
use build::workspace::Workspace;
use build::{stages, tools};
use build_info::audit::{DeviceAudit, Rule};
use clap::ValueEnum;

/// Options of `audit`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Program, shared library, build folder or unpacked archive [default: the current native build]
    path: Option<PathBuf>,
    /// Rule to check against, instead of the rule in build_info.json
    #[arg(long = "as", value_name = "RULE")]
    rule: Option<As>,
}

/// Rule against which a program is checked.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum As {
    /// The program contains only x86-64-v3 instructions, except in functions that check the CPU first
    Portable,
    /// The program contains only baseline x86-64 instructions, and each kernel library only those of its CPU variant
    Universal,
    /// The program uses the instruction sets of this CPU, and no kernel is scalar
    Native,
}

/// Prints the instruction sets of a program.
///
/// # Errors
/// If the program violates the rule.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let path = match args.path {
        Some(path) => path,
        None => stages::named(&workspace, "native")?,
    };
    let subject = AuditSubject::find(&path)?;
    let rule = match args.rule {
        Some(As::Portable) => Rule::Portable,
        Some(As::Universal) => Rule::Universal,
        Some(As::Native) => Rule::Native,
        None => subject.rule(),
    };
    let rules = Rules::read(&audit::rules_path(&workspace))?;
    let offered = subject.offered().unwrap_or_else(|| tools::host(ui).cpu.features);
    // Builds that are not native are checked against all instruction sets that the host offers.
    let isa = match &subject.info {
        Some(info) if matches!(subject.rule(), Rule::Native | Rule::Cpu) => info.isa_required.clone(),
        _ => offered.iter().cloned().collect(),
    };
    let variants = subject.info.as_ref().map_or(&[][..], |info| &info.cpu_variants);
    let glibc = subject.info.as_ref().and_then(|info| info.glibc);
    let cuda = subject.info.as_ref().and_then(|info| info.cuda.as_ref());
    let architectures = cuda.map(|cuda| build_info::device::codes(&cuda.architectures)).unwrap_or_default();
    let question = Question {
        rule,
        isa: &isa,
        offered: &offered,
        variants,
        glibc,
        architectures: &architectures,
        all_symbols: ui.verbose(),
    };
    let report = audit::audit(&subject.files, &question, &rules)?;
    ui.result(&report, text(&report, ui.verbose()))?;
    for content in report.contents.iter().filter(|content| content.stripped) {
        ui.warn(format_args!("{} is stripped: most functions have no name", content.file.display()));
    }
    report.doubt().iter().for_each(|doubt| ui.warn(doubt));
    match report.complaint() {
        Some(complaint) => bail!("{complaint}"),
        None => Ok(()),
    }
}

fn text(report: &AuditReport, verbose: bool) -> String {
    let mut text = String::new();
    for content in &report.contents {
        let _ = writeln!(
            text,
            "{}\n  {}, {} of code, {} instructions in {} functions",
            content.file.display(),
            content.size,
            content.code,
            content.instructions,
            content.functions,
        );
        if content.invalid.0 > 0 {
            let _ = writeln!(text, "  {} of the code cannot be decoded", content.invalid);
        }
    }
    let _ = write!(text, "\n{}\n", occurring(report));
    if verbose {
        text.push_str(&symbols(report));
    }
    if let Some(verdict) = &report.native {
        let _ = write!(text, "\n{}\n", instruction_sets(&verdict.instruction_sets));
        text.push_str(&kernels(verdict, verbose));
    }
    if let Some(device) = &report.summary.device {
        let _ = write!(text, "\n{}", for_gpus(device));
    }
    for entry in &report.summary.allowed {
        let _ = write!(
            text,
            "\nallowed: {} in {}\n  {}\n",
            entry.feature,
            ui::demangled(&entry.symbol),
            entry.reason
        );
    }
    let _ = write!(text, "\n{}", conclusion(report));
    text
}

/// Returns a demangled name, truncated to the columns that remain after `taken` columns.
fn short(name: &str, taken: usize) -> String {
    let width = ui::width().unwrap_or(100);
    let most = width.saturating_sub(taken).max(20);
    let name = ui::demangled(name);
    if name.chars().count() <= most {
        return name;
    }
    format!("{}…", name.chars().take(most - 1).collect::<String>())
}

/// Returns a table of the host's instruction sets and their use.
fn instruction_sets(sets: &[InstructionSet]) -> impl std::fmt::Display {
    let rows = sets.iter().map(|set| {
        let used = match set.count {
            0 if set.is_missed() => "NO".to_string(),
            0 => "-".to_string(),
            count => count.to_string(),
        };
        let offered = if set.offered { "yes" } else { "no" };
        let most = set.functions.first().map(|name| short(name, 41)).unwrap_or_default();
        vec![set.name.clone(), offered.to_string(), used, most]
    });
    ui::columns(&["ggml has kernels for", "offered", "used", "most in"], rows)
}

/// Returns a table of the instruction sets in the program. The instruction sets that every x86-64 CPU has are combined
/// in one row.
fn occurring(report: &AuditReport) -> impl std::fmt::Display {
    let all = &report.occurring;
    let baseline = all.iter().filter(|one| one.baseline);
    let mut rows = vec![vec![
        "x86-64".to_string(),
        "(all CPUs)".to_string(),
        baseline.map(|one| one.count).sum::<u64>().to_string(),
        String::new(),
        String::new(),
    ]];
    rows.extend(all.iter().filter(|one| !one.baseline).map(|one| {
        let most = one.symbols.first().map(|user| short(&user.symbol, 59)).unwrap_or_default();
        vec![one.level.clone(), one.feature.clone(), one.count.to_string(), one.functions.to_string(), most]
    }));
    rows.extend(report.unknown.first().map(|most| {
        let count: u64 = report.unknown.iter().map(|one| one.count).sum();
        let most = short(&most.symbol, 59);
        vec!["?".to_string(), UNKNOWN.to_string(), count.to_string(), report.unknown.len().to_string(), most]
    }));
    ui::columns(&["level", "instruction set", "instructions", "functions", "most in"], rows)
}

/// Returns all functions with instructions beyond the baseline, by instruction set.
fn symbols(report: &AuditReport) -> String {
    let mut text = String::new();
    for one in report.occurring.iter().filter(|one| !one.baseline) {
        let _ = writeln!(text, "\n{} ({}):", one.feature, one.level);
        for user in &one.symbols {
            let name = ui::demangled(&user.symbol);
            let _ = writeln!(text, "{:>8}  {:#x}  {name}", user.count, user.address);
        }
    }
    if !report.unknown.is_empty() {
        let _ = writeln!(text, "\n{UNKNOWN}:");
    }
    for one in &report.unknown {
        let name = ui::demangled(&one.symbol);
        let _ = writeln!(text, "{:>8}  {:#x}  {name}  {}", one.count, one.address, one.bytes);
    }
    text
}

/// Returns a description of the GPU code: its architectures, and its kernels by purpose.
fn for_gpus(device: &DeviceAudit) -> String {
    let architectures = device.architectures.iter().map(|(name, found)| {
        vec![name.clone(), found.pieces.to_string(), found.stored.to_string(), found.unpacked.to_string()]
    });
    let mut text = format!("{}\n", ui::columns(&["for GPUs", "pieces", "stored", "unpacked"], architectures));
    let kernels = device.kernels.iter().map(|(family, count)| vec![family.clone(), count.to_string()]);
    if kernels.len() > 0 {
        let _ = write!(text, "\n{}\n", ui::columns(&["kernels for GPUs", "instances"], kernels));
    }
    let libraries = match &device.libraries[..] {
        [] => "the driver and cuBLAS are loaded at run time, on demand".to_string(),
        some => format!("linked: {}", some.join(", ")),
    };
    let _ = writeln!(text, "{libraries}");
    text
}

fn kernels(verdict: &native::NativeVerdict, verbose: bool) -> String {
    let judged: Vec<_> = verdict.kernels.iter().filter(|kernel| kernel.expected.is_some()).collect();
    let scalar = judged.iter().filter(|kernel| kernel.is_scalar()).count();
    let mut text = format!(
        "\nkernels: {} found, {} of the expected width\n",
        verdict.kernels.len(),
        judged.len() - scalar
    );
    for kernel in judged.iter().filter(|kernel| verbose || kernel.is_scalar()) {
        let expected = kernel.expected.unwrap_or_default();
        let _ = writeln!(text, "  {}: {} (expected: {expected})", kernel.name, kernel.found);
    }
    if verdict.kernels_examined > 0 {
        let _ = writeln!(
            text,
            "spills: {} of Anneal's kernels examined, {} with too many spilt registers in an inner loop",
            verdict.kernels_examined,
            verdict.spills.len()
        );
    }
    for kernel in &verdict.spills {
        let Spills { address, moves, arithmetic } = kernel.spills;
        let _ = writeln!(
            text,
            "  {} at {address:#x}: {moves} loads and stores of spilt registers for {arithmetic} arithmetic instructions",
            ui::demangled(&kernel.name)
        );
    }
    text
}

fn conclusion(report: &AuditReport) -> String {
    let summary = &report.summary;
    let mut text = match summary.level {
        1 => "uses x86-64".to_string(),
        level => format!("uses up to x86-64-v{level}"),
    };
    if !summary.beyond.is_empty() {
        let _ = write!(text, " and {}", summary.beyond.join(", "));
    }
    if let Some(glibc) = summary.glibc {
        let _ = write!(text, "; it runs with glibc {glibc} and later");
    }
    let seconds = summary.seconds;
    match (summary.rule, report.complaint().is_none()) {
        (Rule::Report, _) => format!("no rule applied ({seconds:.1} s); the program {text}"),
        (rule, true) => format!("{rule}: passed ({seconds:.1} s); the program {text}"),
        (rule, false) => format!("{rule}: FAILED ({seconds:.1} s); the program {text}"),
    }
}
