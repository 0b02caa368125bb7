//! The audit of the finished program: its instruction sets, read from its code.

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

/// What the audit depends on beyond the program: the rules.
pub fn input(build: &Build) -> Result<String> {
    Ok(format!("{} {}", build.engine_source, rules(build)?))
}

/// Digest of the rules.
pub fn rules(build: &Build) -> Result<Sha256> {
    let path = rules_path(build.workspace);
    let rules = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Sha256::of(&rules))
}

/// Audits the newest engine and its libraries.
pub fn audit(build: &Build, progress: &mut Progress) -> Result<()> {
    let path = result_path(build);
    let anneal = build.folder.newest_engine().context("the build folder holds no anneal")?;
    if !build.plan.target.starts_with("x86_64") {
        let arch = build.plan.target.split('-').next().unwrap_or_default();
        let reason = format!("only programs for x86-64 can be disassembled, and this one is for {arch}");
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
    // The engine has not been put into its place yet.
    report.summary.files = std::iter::once(PathBuf::from("bin/anneal"))
        .chain(files.iter().skip(1).map(|file| auditing::relative(file, build.folder.path())))
        .collect();
    // Also when it fails: whoever looks for the reason finds all of it here.
    fs::write_atomically(&path, &serde_json::to_vec_pretty(&report)?)?;
    if let Some(complaint) = report.complaint() {
        bail!("{complaint}\n  all of it: {}", path.display());
    }
    report.doubt().iter().for_each(|doubt| build.ui.warn(doubt));
    Ok(())
}

/// The oldest glibc that `anneal` starts with, of whatever architecture it is.
///
/// # Errors
/// When that is newer than the one that the build is for.
fn glibc(build: &Build, anneal: &Path) -> Result<Option<Glibc>> {
    let bytes = std::fs::read(anneal).with_context(|| format!("cannot read {}", anneal.display()))?;
    let asked = Dynamic::read(&bytes).with_context(|| format!("{} is no program", anneal.display()))?;
    let needs = asked.glibc().map(Glibc::from);
    match (needs, build.plan.zig.as_ref().map(|zig| zig.glibc)) {
        (Some(needs), Some(floor)) if needs > floor => {
            bail!("the program needs glibc {needs}, and this build is for {floor} and later")
        }
        _ => Ok(needs),
    }
}

/// What the build is held against.
fn rule(build: &Build) -> Rule {
    let isa = &build.plan.isa.isa;
    if *isa == Isa::X86_64V3.to_string() {
        Rule::Portable
    } else if build.plan.isa.has_variants() {
        Rule::Universal
    } else if *isa == Isa::Native.to_string() {
        Rule::Native
    } else {
        Rule::Report
    }
}

/// What the audit of this build found.
pub fn result(build: &Build) -> Option<Audit> {
    serde_json::from_slice(&std::fs::read(result_path(build)).ok()?).ok()
}

pub fn result_path(build: &Build) -> PathBuf {
    build.folder.path().join("audit.json")
}
