//! Command `publish`.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};
use base::exit;
use build::scratch::Scratch;
use build::shipping::{self, Needs};
use build::stages::{self, Build, CheckoutLock};
use build::storing::{self, StoreArgs, Tree};
use build::tools;
use build::ui::Ui;
use build::workspace::Workspace;
use build_info::{BuildInfo, Bytes, Glibc};
use plan::Plan;
use serde::Serialize;
use store::order::{Publish, Tune};
use store::{Entry, Location, Parts};

use super::dist;

/// Options of `publish`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Publish the current build of this profile
    #[arg(short, long, default_value = "native")]
    profile: String,
    #[command(flatten)]
    store: StoreArgs,
    /// Publish the settings for this build from this tuning record [default: the record that the engine reads]
    #[arg(long, value_name = "FILE")]
    tuning: Option<PathBuf>,
    /// Replace the store's copy of this build even if it is complete
    #[arg(long)]
    force: bool,
    /// Print what would be published without publishing it
    #[arg(long)]
    dry_run: bool,
}

/// Result of `publish`.
#[derive(Serialize)]
struct PublishResult {
    store: Location,
    key: String,
    kind: String,
    /// True if the store already had a complete copy of this build.
    was_there: bool,
    /// True if the store had the build but did not list it, so that `install --store` could not find it.
    was_unlisted: bool,
    /// Defects of the store's copy.
    was_damaged: Vec<String>,
    /// Number of bytes sent to the store.
    sent: Bytes,
    /// Number of tuned settings that were new to the store.
    tuned: usize,
    dry_run: bool,
    /// Entry in the store; `None` in a dry run if the store does not have the build.
    entry: Option<Entry>,
}

/// Publishes the current build of a profile and its tuned settings to a store.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let store = args.store.location()?.ok_or_else(|| {
        exit::usage(format!(
            "no store was given\nhint: specify a store with --store STORE, or set {}",
            storing::VARIABLE
        ))
    })?;
    if let Location::Http(url) = &store {
        return Err(exit::usage(format!(
            "cannot publish to {url}: a store on a web server is read-only\nhint: publish to the server's \
             folder, or to s3://BUCKET/PREFIX"
        )));
    }
    let _lock = CheckoutLock::take(&workspace)?;
    let folder = stages::named(&workspace, &args.profile)?.canonicalize()?;
    let info = BuildInfo::read(&folder.join("build_info.json"))?;
    let plan = stages::planned::read(&folder, &info.plan_hash)?;
    let host = tools::host(ui);
    let build = Build::unfetched(&folder, &workspace, ui, &host, &plan)?;
    check(&build, &plan, &info)?;
    let parts = build.parts(storing::glibc())?;
    storing::explain(&parts, ui);

    // The first build creates the store.
    let begins = matches!(&store, Location::Folder(folder) if !folder.exists());
    let there = match begins || args.force {
        true => None,
        false => storing::check(&workspace, &store, &parts, !args.dry_run, ui)?,
    };
    let was_damaged = there.as_ref().map_or(Vec::new(), |checked| checked.damaged.clone());
    for what in &was_damaged {
        ui.warn(format_args!("{what} in {store}"));
    }
    let replace = args.force || !was_damaged.is_empty();
    let there = there.filter(|_| !replace);
    let mut made = PublishResult {
        key: parts.key().to_string(),
        kind: parts.kind(),
        was_there: there.is_some(),
        was_unlisted: there.as_ref().is_some_and(|checked| !checked.listed),
        was_damaged,
        sent: Bytes(0),
        tuned: 0,
        dry_run: args.dry_run,
        entry: there.map(|checked| checked.entry),
        store,
    };
    if !args.dry_run {
        if made.entry.is_none() {
            let published = put(&workspace, &made.store, &folder, &info, parts, replace, ui)?;
            (made.was_there, made.sent) = (published.was_there, published.sent);
            made.entry = Some(published.entry);
        }
        made.tuned = tune(&workspace, &made, &info, args.tuning.as_deref(), ui)?;
    }
    let said = summary(&made, &info);
    ui.result(&made, said)
}

/// Checks that others may use the build: that it passed the gate and the audit, and that a build of the current
/// sources would find it in the store.
fn check(build: &Build, plan: &Plan, info: &BuildInfo) -> Result<()> {
    let again = format!("hint: `cargo xtask build --profile {}` repeats the build", info.profile);
    ensure!(
        info.gate.as_ref().is_some_and(|gate| gate.passed),
        "the build of {} has not passed the correctness gate and must not be shared\n{again}",
        info.profile
    );
    ensure!(info.audit.is_some(), "the build of {} was not audited\n{again}", info.profile);
    if plan.source.patches != build::tools::patches()? || build.there().is_none() {
        bail!(
            "the build of {} was made from other sources or in another folder, so `build` would not find \
             it in the store\n{again}",
            info.profile
        );
    }
    Ok(())
}

/// Packs the build and publishes it to the store.
fn put(
    workspace: &Workspace,
    store: &Location,
    folder: &Path,
    info: &BuildInfo,
    parts: Parts,
    force: bool,
    ui: &Ui,
) -> Result<store::order::Published> {
    let tree = match &info.base_plan {
        None => Tree::gather(workspace, folder, info)?,
        // Only `install` finds builds made by `pgo` or `bolt`, because `build` looks for the plain build.
        Some(_) => None,
    };
    if tree.is_none() {
        ui.warn(format_args!(
            "{} is published only for `install --store`, because other checkouts cannot use its build folder",
            info.profile
        ));
    }
    let out = Scratch::make(workspace, "dist")?;
    let archive = dist::archive(workspace, folder, info, out.path(), ui)?;
    let scratch = Scratch::make(workspace, "publish")?;
    let order = Publish {
        store: store.clone(),
        build: store::Build {
            parts,
            profile: info.profile.clone(),
            version: info.anneal_version.clone(),
            target: info.target.clone(),
            glibc: oldest_glibc(folder)?,
            plan_hash: info.plan_hash.clone(),
            variant: variant(info),
            published: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            gate: gate(info),
            audit: audit(info),
            name: shipping::name(info),
        },
        archive: archive.path,
        tree: tree.as_ref().map_or(Vec::new(), |tree| tree.items.clone()),
        mtime: dist::time(workspace)?,
        force,
        work: scratch.path().to_path_buf(),
    };
    storing::publish(workspace, order, ui)
}

/// Returns the oldest glibc that can load the program in `folder` and its libraries.
fn oldest_glibc(folder: &Path) -> Result<Option<Glibc>> {
    let mut files = vec![folder.join("bin/anneal")];
    files.extend(build::audit::libraries(&folder.join("lib"))?);
    Ok(Needs::of(&files.iter().map(PathBuf::as_path).collect::<Vec<_>>())?.glibc)
}

/// Returns the optimisation that was applied to the plain build, or `None`.
fn variant(info: &BuildInfo) -> Option<String> {
    let made: Vec<&str> = [info.pgo.as_ref().map(|_| "pgo"), info.bolt.as_ref().map(|_| "bolt")]
        .into_iter()
        .flatten()
        .collect();
    info.base_plan.as_ref().map(|_| made.join("-"))
}

fn gate(info: &BuildInfo) -> String {
    let Some(gate) = &info.gate else { return "not run".to_string() };
    let worst = gate.cases.iter().map(|case| case.mean_kld).fold(0.0, f64::max);
    format!("passed in {} cases, mean KL divergence at most {worst:.1e} nats", gate.cases.len())
}

fn audit(info: &BuildInfo) -> String {
    match &info.audit {
        None => "not done".to_string(),
        Some(audit) => match &audit.not_done {
            Some(why) => format!("not done: {why}"),
            None => {
                format!("passed up to x86-64-v{}, {} instructions checked", audit.level, audit.instructions)
            }
        },
    }
}

/// Publishes the tuned settings of this build, and returns the number of settings that are new in the store.
fn tune(
    workspace: &Workspace,
    made: &PublishResult,
    info: &BuildInfo,
    given: Option<&Path>,
    ui: &Ui,
) -> Result<usize> {
    let Some(path) = storing::tuning(given) else { return Ok(0) };
    let record = match storing::read_tuning(&path) {
        Ok(Some(record)) => record,
        Ok(None) if given.is_some() => bail!("cannot find the tuning record {}", path.display()),
        Ok(None) => return Ok(0),
        Err(error) if given.is_some() => return Err(error),
        Err(error) => {
            ui.warn(format_args!("the tuned settings were not published: {error:#}"));
            return Ok(0);
        }
    };
    if !record.entries.iter().any(|entry| entry.key.build == info.plan_hash.as_str()) {
        return Ok(0);
    }
    let Some(entry) = &made.entry else { return Ok(0) };
    let order =
        Tune { store: made.store.clone(), key: entry.key.clone(), record, build: info.plan_hash.clone() };
    storing::tune(workspace, order, ui)
        .map(|tuned| tuned.entries)
        .context("the build is published, but its tuned settings are not")
}

fn summary(made: &PublishResult, info: &BuildInfo) -> String {
    let what = format!("{} for {} as {}", info.profile, made.kind, made.key);
    let tuned = match made.tuned {
        0 => String::new(),
        count => format!("; {count} new tuned settings"),
    };
    match (made.was_there, made.dry_run) {
        (true, _) if made.was_unlisted => {
            let verb = if made.dry_run { "would list" } else { "listed" };
            format!("{} already has {what}, but did not list it: {verb} it again{tuned}", made.store)
        }
        (true, _) => format!("{} already has a complete copy of {what}{tuned}", made.store),
        (false, true) => format!("would publish {what} to {}", made.store),
        (false, false) => format!("published {what} to {}, {} sent{tuned}", made.store, made.sent),
    }
}
