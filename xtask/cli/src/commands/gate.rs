//! Command `gate`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base::exit;
use build::fs;
use build::process::{Executable, Log};
use build::scratch::Scratch;
use build::stages::gate::{Engine, REFERENCE_PROFILE, Reference, failure, table};
use build::stages::{executable, named};
use build::ui::Ui;
use build::workspace::Workspace;
use build_info::{BuildInfo, Gate, gate};

/// Options of `gate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Build folder or `anneal` program to check
    #[arg(conflicts_with = "profile")]
    path: Option<PathBuf>,
    /// Check the current build of this profile
    #[arg(short, long, default_value = "native")]
    profile: String,
    /// Compute the reference with the build of the profile `reference`, and write it to xtask's sources
    #[arg(long, conflicts_with_all = ["path", "profile"])]
    write_reference: bool,
}

/// Compares a build's logits with the reference.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    if args.write_reference {
        return write_reference(&workspace, ui);
    }
    let anneal = anneal(&args, &workspace)?;
    let scratch = Scratch::make(&workspace, "gate")?;
    let log = Log::new(log(&workspace), ui.verbose());
    let mut progress = ui.progress("gate");
    let engine = Engine { anneal: &anneal, folder: scratch.path(), log: &log, manner: Default::default() };
    let found = engine.compare(&Reference::kept()?, |done, total, what| {
        progress.step(done as u64, total as u64, what);
    });
    progress.finish();
    tell(&found?, scratch, &workspace.anneal().join("gate-failed"), ui)
}

/// Returns the path of the log with the executed commands. Error messages mention this path.
fn log(workspace: &Workspace) -> PathBuf {
    workspace.anneal().join("gate.log")
}

/// Prints the result `found`, whose files are in `scratch`.
///
/// # Errors
/// If the build does not pass. The report, the models and the logits then replace those of the previous failure in
/// the folder `failed`.
fn tell(found: &Gate, scratch: Scratch, failed: &Path, ui: &Ui) -> Result<()> {
    let repeated = if found.repeatable { "identical" } else { "DIFFERENT" };
    ui.result(
        found,
        format_args!("{}\nsame input twice: {repeated} logits; {:.1} s", table(found), found.seconds),
    )?;
    if !found.passed {
        scratch.keep(failed)?;
        let report = failed.join("gate-report.json");
        fs::write_atomically(&report, &serde_json::to_vec_pretty(found)?)?;
        bail!("{}", failure(found, &report));
    }
    Ok(())
}

/// Returns the engine to check.
fn anneal(args: &Args, workspace: &Workspace) -> Result<Executable> {
    let place = match &args.path {
        Some(path) => path.clone(),
        None => named(workspace, &args.profile)?,
    };
    let folder = place.is_dir().then(|| place.clone());
    let place = if place.is_dir() { place.join("bin/anneal") } else { place };
    if !place.is_file() {
        return Err(exit::usage(format!(
            "{} is not an engine\nhint: give the path of a build folder or of an `anneal` program, or use --profile",
            place.display()
        )));
    }
    match folder {
        // A program outside a build folder has no record.
        Some(folder) if folder.join("build_info.json").is_file() => executable(&std::path::absolute(folder)?),
        _ => Ok(Executable::new(std::path::absolute(place)?)),
    }
}

fn write_reference(workspace: &Workspace, ui: &Ui) -> Result<()> {
    let folder = workspace.current(REFERENCE_PROFILE);
    let info = BuildInfo::read(&folder.join("build_info.json")).context(
        "cannot make the reference: the profile `reference` has no build\nhint: run `cargo xtask build --profile \
         reference`",
    )?;
    let build = gate::Reference {
        llama_version: info.llama_version.clone(),
        source_version: format!("{} {}", info.source.origin, info.source.version),
        build: format!("{} with {}", info.profile, info.compiler),
    };
    let scratch = Scratch::make(workspace, "gate")?;
    let log = Log::new(log(workspace), ui.verbose());
    let anneal = executable(&folder)?;
    let engine = Engine { anneal: &anneal, folder: scratch.path(), log: &log, manner: Default::default() };
    let bytes = engine.reference(build.clone())?.to_bytes()?;
    let path = Reference::path(workspace.root());
    fs::write_atomically(&path, &bytes)?;
    ui.result(&build, path.display())
}
