//! Audit stage: checks the instruction sets in the finished program's code.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use audit::{Dynamic, Rules};
use build_info::audit::{Audit, Rule};
use build_info::{Glibc, Sha256};
use plan::CudaPlan;
use plan::profile::{Isa, Linkage};

use super::state::Build;
use super::variants;
use crate::audit::{Question, libraries, rules_path};
use crate::ui::Progress;
use crate::{audit as auditing, fs};

/// Returns the inputs of the audit: the digests of the engine's sources and of the rules.
pub fn input(build: &Build) -> Result<String> {
    Ok(format!("{} {}", build.engine_source, rules(build)?))
}

/// Returns the digest of the rules.
pub fn rules(build: &Build) -> Result<Sha256> {
    let path = rules_path(build.workspace);
    let rules = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Sha256::of(&rules))
}

/// Audits the newest engine and its libraries.
///
/// # Errors
/// If a file cannot be audited or violates the rules.
pub fn audit(build: &Build, progress: &mut Progress) -> Result<()> {
    let path = result_path(build);
    let anneal = build.folder.engine()?;
    if !build.plan.target.starts_with("x86_64") {
        let arch = build.plan.target.split('-').next().unwrap_or_default();
        let reason = format!("only programs for x86-64 can be disassembled, but this program is for {arch}");
        let found = Audit { not_done: Some(reason), glibc: glibc(build, &anneal)?, ..Audit::default() };
        return fs::write_atomically(&path, &serde_json::to_vec_pretty(&found)?);
    }
    progress.message("disassembling");
    let mut files = vec![anneal];
    if build.plan.linkage == Linkage::Shared {
        files.extend(libraries(&build.folder.prefix().join("lib"))?);
    }
    let variants = variants::read(build)?;
    if !variants.is_empty() {
        files.extend(libraries(&build.folder.libraries())?);
    }
    let architectures = build.plan.cuda.as_ref().map(CudaPlan::codes).unwrap_or_default();
    let question = Question {
        rule: rule(build),
        isa: &build.plan.isa.required,
        offered: &build.host.cpu.features,
        variants: &variants,
        glibc: build.plan.zig.as_ref().map(|zig| zig.glibc),
        architectures: &architectures,
        all_symbols: false,
    };
    let mut report = auditing::audit(&files, &question, &Rules::read(&rules_path(build.workspace))?)?;
    // The audited engine is not yet at its final path.
    report.summary.files = std::iter::once(PathBuf::from("bin/anneal"))
        .chain(files.iter().skip(1).map(|file| auditing::relative(file, build.folder.path())))
        .collect();
    // The report is written even if the audit fails, so that the user finds the details in it.
    fs::write_atomically(&path, &serde_json::to_vec_pretty(&report)?)?;
    if let Some(complaint) = report.complaint() {
        bail!("{complaint}\n  full report: {}", path.display());
    }
    report.doubt().iter().for_each(|doubt| build.ui.warn(doubt));
    Ok(())
}

/// Returns the oldest glibc that can load `anneal`, for any architecture.
///
/// # Errors
/// If that glibc is newer than the glibc that the build targets.
fn glibc(build: &Build, anneal: &Path) -> Result<Option<Glibc>> {
    let bytes = std::fs::read(anneal).with_context(|| format!("cannot read {}", anneal.display()))?;
    let asked =
        Dynamic::read(&bytes).with_context(|| format!("cannot parse {} as a program", anneal.display()))?;
    let needs = asked.glibc().map(Glibc::from);
    match (needs, build.plan.zig.as_ref().map(|zig| zig.glibc)) {
        (Some(needs), Some(floor)) if needs > floor => {
            bail!("the program needs glibc {needs}, but this build targets glibc {floor} and later")
        }
        _ => Ok(needs),
    }
}

/// Returns the rule that applies to the build.
fn rule(build: &Build) -> Rule {
    let isa = &build.plan.isa.isa;
    if *isa == Isa::X86_64V3.to_string() {
        Rule::Portable
    } else if build.plan.isa.has_variants() {
        Rule::Universal
    } else if *isa == Isa::Native.to_string() {
        Rule::Native
    } else if build.plan.isa.names_cpu() {
        Rule::Cpu
    } else {
        Rule::Report
    }
}

/// Returns the stored result of the audit of this build, or `None`.
pub fn result(build: &Build) -> Option<Audit> {
    serde_json::from_slice(&std::fs::read(result_path(build)).ok()?).ok()
}

pub fn result_path(build: &Build) -> PathBuf {
    build.folder.path().join("audit.json")
}
