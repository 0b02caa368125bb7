//! The `upgrade` command.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base::exit;
use base::shell_quote;
use build::compare::{CandidateBuild, Provenance};
use build::fs;
use build::models::Maker;
use build::process;
use build::tools::Cache;
use build::ui::Ui;
use build::workload::Synthetic;
use build::workspace::Workspace;
use build_info::BuildInfo;
use build_info::words::count;
use gguf::GgufFile;
use llama_source::{OtherSource, Patch, PatchNeed, Store};
use measure::Objective;
use serde::Serialize;

use crate::upgrade::bisect::{BisectState, Criterion, SearchSettings, between};
use crate::upgrade::{
    Adopted, Candidate, Decision, EngineTests, RaceSettings, SourceCheck, UpgradeRecord, WithoutRecord,
    Workshop, record_path, rollback, write_record,
};

/// Options of `upgrade`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Version to upgrade to: latest, a crate version, sdist, a commit (all 40 digits), or a folder with a slash
    #[arg(long, value_name = "VERSION", default_value = "latest")]
    to: String,
    /// GGUF file for the comparison [default: a synthetic model, made once]
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Kind of work, which sets the token counts: chat, rag, batch, latency, or PROMPT:ANSWER
    #[arg(long = "for", value_name = "WORK", default_value = "chat")]
    objective: Objective,
    /// Profile to build
    #[arg(short, long, default_value = "native")]
    profile: String,
    /// Only check patches, C API and shim; build nothing
    #[arg(long)]
    dry_run: bool,
    /// Restore the pins and the build from before the last upgrade
    #[arg(long, conflicts_with_all = ["to", "model", "dry_run"])]
    rollback: bool,
    /// Build the pinned version without a patch, and compare it with the current build; replaces nothing
    #[arg(long, value_name = "PATCH", conflicts_with_all = ["to", "dry_run", "rollback", "bisect"])]
    without: Option<String>,
    /// Search the versions after GOOD, up to BAD, for the first one with a worse figure or a changed output; GOOD and
    /// BAD are crate versions, folders, or commits of the clone in --git-url
    #[arg(long, value_name = "GOOD..BAD", requires = "by", conflicts_with_all = ["to", "dry_run", "rollback"])]
    bisect: Option<String>,
    /// Criterion of the search: prefill, decode, load, output, or a shell command that gets the program in $ANNEAL and
    /// exits with 0 (good), 125 (skip) or another code (bad)
    #[arg(long, value_name = "CRITERION", requires = "bisect")]
    by: Option<Criterion>,
    /// Number of tokens in the context for the second part of the comparison
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    depth: u32,
    /// Maximum number of pairs of runs per phase, at least 6
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(6..=1000))]
    pairs: u16,
    /// Do not run the engine's tests with the other version
    #[arg(long, conflicts_with_all = ["dry_run", "rollback", "bisect"])]
    no_tests: bool,
    /// Repository of the commits, such as a mirror or a clone
    #[arg(long, value_name = "URL")]
    git_url: Option<String>,
    /// Compiler cache that shares object files between builds
    #[arg(long, value_enum, default_value_t = Cache::default())]
    cache: Cache,
    /// Install missing tools without asking
    #[arg(short, long)]
    yes: bool,
}

/// Default model, as in `validate`. It has few layers, but the widths of a real model.
const MODEL: &str = "llama-1b-4l/Q4_K_M";

/// Result without a new build.
#[derive(Serialize)]
struct UpToDate {
    version: String,
    up_to_date: bool,
}

/// Replaces llama.cpp with another version, if nothing gets worse.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    if args.rollback {
        let undone = rollback(&workspace, ui)?;
        let text = format!("{} is pinned and built again, instead of {}", undone.from, undone.to);
        return ui.result(&undone, text);
    }
    if let Some(model) = &args.model {
        fs::check_model(model)?;
        // Builds take minutes, and the model is used only after them.
        GgufFile::open(model).with_context(|| format!("cannot use the model {}", model.display()))?;
    }
    let workshop =
        || Workshop::new(&workspace, &args.profile, args.git_url.as_deref(), args.cache, args.yes, ui);
    if let (Some(range), Some(by)) = (&args.bisect, &args.by) {
        return bisect(&args, &workshop()?, range, by);
    }
    if let Some(patch) = &args.without {
        return without(&args, &workshop()?, patch);
    }
    let store = Store::of_workspace(&workspace.anneal())?;
    let other = named(&store, &args.to)?;
    if is_current(&store, &other, &workspace, &args.profile) && !args.dry_run {
        let version = store.pins.krate.version.clone();
        let text = format!("up to date: {} {version} is pinned and built", store.pins.krate.package);
        return ui.result(&UpToDate { version, up_to_date: true }, text);
    }
    let workshop = workshop()?;
    if args.dry_run {
        let check = workshop.check(&workshop.fetch(&other)?)?;
        ui.result(&check, &check)?;
        return match check.obstacles().as_slice() {
            [] => Ok(()),
            _ => bail!("the engine cannot be built with {other}\nhint: the result lists the reasons"),
        };
    }
    upgrade(&args, &workshop, &other)
}

/// Returns the version that `text` names.
fn named(store: &Store, text: &str) -> Result<OtherSource> {
    store.named(text).map_err(|error| match text {
        "latest" => error,
        _ => exit::usage(format!("{error:#}")),
    })
}

/// True if `other` is pinned, and the current build of the profile was made from it.
fn is_current(store: &Store, other: &OtherSource, workspace: &Workspace, profile: &str) -> bool {
    let pin = &store.pins.krate;
    let built = BuildInfo::read(&workspace.current(profile).join("build_info.json"));
    *other == OtherSource::Crate(pin.version.clone())
        && built.is_ok_and(|info| info.source.digest == pin.digest)
}

fn upgrade(args: &Args, workshop: &Workshop, other: &OtherSource) -> Result<()> {
    let (workspace, ui) = (workshop.workspace, workshop.ui);
    let (present, info) = workshop.present()?;
    let candidate = workshop.fetch(other)?;
    let check = workshop.check(&candidate)?;
    if check.same_files {
        let text = format!("nothing to do: {other} contains the same llama.cpp as {}", check.from.version);
        return ui.result(&UpToDate { version: check.from.version.clone(), up_to_date: true }, text);
    }
    warn_of_lost_patches(&check, ui);
    let provenance = Provenance::now(&workshop.host, command(args));
    let record = compared(args, workshop, &candidate, check, &present, provenance)?;
    let path = record_path(workspace, &other.to_string());
    write_record(&path, &record)?;
    if record.decision == Decision::Kept {
        let files = match other {
            OtherSource::Crate(_) => {
                candidate.store.pin_files(&workshop.store, &llama_source::pins_file())?
            }
            // The default origin stays `crate`, whose pin has no other version.
            _ => Vec::new(),
        };
        let versions = [format!("{} {}", info.source.origin, info.source.version), other.to_string()];
        let name = &workshop.profile.name;
        Adopted::new(workspace, name, versions, &present, files)?.write(workspace)?;
        workshop.make_current(&candidate)?;
    }
    ui.result(&record, &record)?;
    ui.say(format_args!("the record is {}", path.display()));
    match record.decision {
        Decision::Kept => {
            ui.say("`cargo xtask upgrade --rollback` restores the previous version");
            Ok(())
        }
        Decision::Left => bail!("not kept: {other}\nhint: the reasons are at the top of the result"),
        Decision::CannotTell => {
            Err(exit::try_again(format!("no decision on {other}\nhint: try again on a quieter machine")))
        }
    }
}

/// Compares the present build with a build of the same version without a patch. Replaces nothing.
fn without(args: &Args, workshop: &Workshop, text: &str) -> Result<()> {
    let patch = patch(text)?;
    let (present, info) = workshop.present()?;
    let pin = &workshop.store.pins.krate;
    if info.source.digest != pin.digest
        || !info.source.patches.iter().any(|other| other.sha256 == patch.digest)
    {
        return Err(exit::usage(format!(
            "the current build of {0} is not the pinned version with {1}\nhint: run `cargo xtask build --profile {0}` \
             first",
            args.profile, patch.name
        )));
    }
    let candidate = workshop.fetch_without(&patch.name)?;
    let mut check = workshop.check(&candidate)?;
    check.same_files = false;
    warn_of_lost_patches(&check, workshop.ui);
    let provenance = Provenance::now(&workshop.host, command(args));
    let comparison = compared(args, workshop, &candidate, check, &present, provenance)?;
    let record = WithoutRecord::of(&patch, &pin.digest, comparison);
    let path = PatchNeed::path(&workshop.workspace.anneal(), &patch.name);
    write_record(&path, &record)?;
    workshop.ui.result(&record, &record)?;
    workshop.ui.say(format_args!(
        "the record is {}; `cargo xtask vendor status` prints the verdict",
        path.display()
    ));
    Ok(())
}

/// Returns the patch whose name begins with `text`.
fn patch(text: &str) -> Result<Patch> {
    let mut patches = llama_source::patches()?;
    patches.retain(|patch| !text.is_empty() && patch.name.starts_with(text));
    match <[Patch; 1]>::try_from(patches) {
        Ok([patch]) => Ok(patch),
        Err(patches) => Err(exit::usage(format!(
            "{text:?} is the beginning of {}\nhint: `cargo xtask vendor status` lists the patches",
            count(patches.len(), "patch name")
        ))),
    }
}

fn warn_of_lost_patches(check: &SourceCheck, ui: &Ui) {
    for lost in check.lost() {
        ui.warn(format_args!("the patch {} {lost}, and is left out", lost.name));
    }
}

/// Reason why there was no race.
enum Stopped {
    /// The user stopped the command, or the present build does not work.
    ByUser(anyhow::Error),
    /// The other version cannot be built, or does not pass the gate or the engine's tests.
    Because(Vec<String>, Option<EngineTests>),
}

impl Stopped {
    /// Returns the reason for the failure of a step with the other version.
    fn failed(error: &anyhow::Error) -> Self {
        Self::Because(vec![format!("{error:#}")], None)
    }
}

/// Builds `candidate` and compares it with the build in `present`.
fn compared(
    args: &Args,
    workshop: &Workshop,
    candidate: &Candidate,
    check: SourceCheck,
    present: &Path,
    provenance: Provenance,
) -> Result<UpgradeRecord> {
    match raced(args, workshop, candidate, &check, present, &provenance) {
        Ok(record) => Ok(record),
        Err(Stopped::ByUser(error)) => Err(error),
        Err(Stopped::Because(reasons, tests)) => Ok(UpgradeRecord::left(provenance, check, tests, reasons)),
    }
}

/// Builds `candidate` and races it against the present build.
fn raced(
    args: &Args,
    workshop: &Workshop,
    candidate: &Candidate,
    check: &SourceCheck,
    present: &Path,
    provenance: &Provenance,
) -> Result<UpgradeRecord, Stopped> {
    let obstacles = check.obstacles();
    if !obstacles.is_empty() {
        return Err(Stopped::Because(obstacles, None));
    }
    let built = match workshop.build(candidate) {
        Ok(built) => built,
        Err(error) if process::interrupted() => return Err(Stopped::ByUser(error)),
        Err(error) => return Err(Stopped::failed(&error)),
    };
    let tests = (!args.no_tests).then(|| tested(workshop, &built.folder, present)).transpose()?;
    let race = || {
        let present = CandidateBuild::at("present", present)?;
        let settings = race_settings(args, model(args, workshop, &present)?);
        let builds = [present, CandidateBuild::at(&candidate.name, &built.folder)?];
        let (host, workspace, ui) = (&workshop.host, workshop.workspace, workshop.ui);
        UpgradeRecord::race(provenance.clone(), check.clone(), &builds, &settings, host, workspace, ui)
    };
    let record = race().map_err(Stopped::ByUser)?;
    Ok(UpgradeRecord { engine_tests: tests, ..record })
}

/// Runs the engine's tests with the build in `folder`.
fn tested(workshop: &Workshop, folder: &Path, present: &Path) -> Result<EngineTests, Stopped> {
    match EngineTests::compare(folder, present, workshop.workspace, workshop.ui) {
        Ok(tests) if tests.failures.is_empty() => Ok(tests),
        Ok(tests) => Err(Stopped::Because(tests.reasons(), Some(tests))),
        Err(error) if process::interrupted() => Err(Stopped::ByUser(error)),
        Err(error) => {
            let error = error.context("the engine's tests cannot run (`--no-tests` leaves them out)");
            Err(Stopped::failed(&error))
        }
    }
}

/// Searches for the version that changed a figure or the output.
fn bisect(args: &Args, workshop: &Workshop, range: &str, by: &Criterion) -> Result<()> {
    let (workspace, ui) = (workshop.workspace, workshop.ui);
    let (folder, info) = workshop.present()?;
    let versions = between(range, &workshop.store, args.git_url.as_deref())?;
    let present = CandidateBuild::at("present", &folder)?;
    let model = std::path::absolute(model(args, workshop, &present)?)?;
    let race = race_settings(args, model);
    let settings = SearchSettings {
        profile: args.profile.clone(),
        versions,
        by: by.clone(),
        shape: race.shape(0),
        model: race.model,
        pairs: race.pairs,
    };
    let path = workspace.anneal().join("upgrade/bisect.json");
    let mut state = BisectState::resume(settings, &path);
    ui.say(format_args!(
        "{} versions, at most {} builds, at most {} without the races",
        state.settings.versions.len(),
        state.builds(),
        humantime::format_duration(std::time::Duration::from_secs(state.estimate(&info).as_secs()))
    ));
    state.run(workshop, &path).with_context(|| {
        let verb = if process::interrupted() { "stopped" } else { "not finished" };
        format!("{verb}; the same command resumes the search, whose state is in {}", path.display())
    })?;
    ui.result(&state, &state)
}

fn race_settings(args: &Args, model: PathBuf) -> RaceSettings {
    RaceSettings {
        model,
        objective: args.objective.clone(),
        depth: args.depth,
        pairs: usize::from(args.pairs),
    }
}

fn model(args: &Args, workshop: &Workshop, engine: &CandidateBuild) -> Result<PathBuf> {
    match &args.model {
        Some(model) => Ok(model.clone()),
        None => {
            let what: Synthetic = MODEL.parse().map_err(|why: String| exit::usage(why))?;
            let maker = Maker { workspace: workshop.workspace, engine: Some(&engine.path), ui: workshop.ui };
            maker.find_or_make(&what)
        }
    }
}

/// Returns the command that repeats this upgrade, with file names instead of full paths.
fn command(args: &Args) -> String {
    let what = match &args.without {
        Some(patch) => format!("--without {}", shell_quote(patch)),
        None => format!("--to {}", shell_quote(&args.to)),
    };
    let mut words = vec![format!("cargo xtask upgrade {what}")];
    if let Some(model) = &args.model {
        words.push(format!("-m {}", shell_quote(&model.file_name().unwrap_or_default().to_string_lossy())));
    }
    words.push(format!("--for {} --profile {}", args.objective, args.profile));
    words.push(format!("--depth {} --pairs {}", args.depth, args.pairs));
    if args.no_tests {
        words.push("--no-tests".to_string());
    }
    words.join(" ")
}
