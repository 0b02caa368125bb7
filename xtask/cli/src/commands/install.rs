//! Command `install`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use base::exit;
use build::scratch::Scratch;
use build::ui::{self, Ui};
use build::workspace::Workspace;
use build::{shipping, storing, tools};
use build_info::tuning::CpuKey;
use ship::order::{self, Installed, InstalledVersion, List, Rollback};
use ship::{Answer, Order};
use store::order::{Choose, ChosenBuild};
use store::{CpuKind, Location};

/// Options of `install`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Archive to install: a path (of an archive, an unpacked archive or a folder of archives) or a URL (of an archive,
    /// or of a folder if it ends in /) [default: the archive that `dist` made in this checkout]
    #[arg(long, value_name = "FILE|DIR|URL", conflicts_with_all = ["rollback", "list"])]
    from: Option<String>,
    /// Install the newest build for this machine's CPU from this store: a folder, https://HOST/DIR or
    /// s3://BUCKET/PREFIX [default with --profile: the store in $ANNEAL_STORE]
    #[arg(long, value_name = "STORE", conflicts_with_all = ["from", "rollback", "list", "sha256", "no_check"])]
    store: Option<String>,
    /// Profile of the build to install from the store [default: native]
    #[arg(short, long, conflicts_with_all = ["from", "rollback", "list", "sha256", "no_check"])]
    profile: Option<String>,
    /// Folder to install into [default: /usr/local for root, else ~/.local]
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// Go back to the previous version
    #[arg(long, conflicts_with = "list")]
    rollback: bool,
    /// List the installed versions, and check that their files are unchanged
    #[arg(long)]
    list: bool,
    /// Expected SHA-256 of the archive, instead of the checksum in the file next to it
    #[arg(long, value_name = "HEX", conflicts_with_all = ["no_check", "rollback", "list"])]
    sha256: Option<String>,
    /// Install an archive even if it has no checksum; corruption and tampering are then not detected
    #[arg(long, conflicts_with_all = ["rollback", "list"])]
    no_check: bool,
    /// Minisign public key to verify the archive's signature with [default: $ANNEAL_MINISIGN_KEY, else
    /// PREFIX/etc/anneal/minisign.pub if it exists]
    #[arg(long, value_name = "FILE|KEY", conflicts_with_all = ["rollback", "list"])]
    key: Option<String>,
    /// Replace an installed version that has the same name but different content; the replaced version cannot be
    /// restored
    #[arg(long, conflicts_with_all = ["rollback", "list"])]
    force: bool,
    /// Print what would be done without doing it
    #[arg(long, conflicts_with = "list")]
    dry_run: bool,
}

/// Installs a version, rolls back to the previous version, or lists the installed versions.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    shipping::check_prefix(args.prefix.as_deref())?;
    let workspace = Workspace::find()?;
    if args.list {
        return list(&workspace, args.prefix, ui);
    }
    if args.rollback {
        return rollback(&workspace, &args, ui);
    }
    // Without `--store` and `--profile`, install the archive that `dist` made in this checkout, even if
    // `ANNEAL_STORE` is set.
    if args.store.is_some() || args.profile.is_some() {
        let store = storing::location(args.store.as_deref())?.ok_or_else(|| {
            exit::usage(format!(
                "--profile requires a store\nhint: specify a store with --store STORE, or set {}",
                storing::VARIABLE
            ))
        })?;
        return from_store(&workspace, &args, store, ui);
    }
    let from = args.from.unwrap_or_else(|| workspace.dist().to_string_lossy().into_owned());
    let order = order::Install {
        // Make the path absolute, because `ship` may run in another working folder.
        from: if from.contains("://") {
            from
        } else {
            std::path::absolute(from)?.to_string_lossy().into_owned()
        },
        prefix: args.prefix,
        sha256: args.sha256,
        no_check: args.no_check,
        key: args.key,
        force: args.force,
        dry_run: args.dry_run,
    };
    tell(&install(&workspace, order, ui)?, ui)
}

/// Installs the newest build in a store that runs on this machine.
fn from_store(workspace: &Workspace, args: &Args, store: Location, ui: &Ui) -> Result<()> {
    storing::signed::check(&store, args.key.as_deref(), args.prefix.as_deref()).map_err(|error| {
        exit::usage(format!(
            "{error:#}\nhint: install a signed archive with --from, or install to a prefix without a key"
        ))
    })?;
    let host = tools::host(ui);
    let scratch = Scratch::make(workspace, "install")?;
    let order = Choose {
        store,
        kinds: vec![CpuKind::of(&host).id(), store::key::any(&host.arch)],
        profile: args.profile.clone().unwrap_or_else(|| "native".to_string()),
        glibc: storing::glibc(),
        into: (!args.dry_run).then(|| scratch.path().to_path_buf()),
        cpu: Some(CpuKey::of(&host)),
    };
    let ChosenBuild { entry, archive, tuning, notes } = storing::choose(workspace, order, ui)?;
    notes.iter().for_each(|note| ui.warn(note));
    ui.say(format_args!(
        "{} for {}, published {}, gate {}, audit {}",
        entry.build.name,
        entry.build.parts.kind(),
        entry.build.published,
        entry.build.gate,
        entry.build.audit
    ));
    let Some(archive) = archive else {
        return ui.result(&entry, format_args!("would install {}, {}", entry.build.name, entry.archive.size));
    };
    let order = order::Install {
        from: archive.to_string_lossy().into_owned(),
        prefix: args.prefix.clone(),
        sha256: Some(entry.archive.sha256.to_string()),
        force: args.force,
        ..order::Install::default()
    };
    let installed = install(workspace, order, ui)?;
    if let Some(tuning) = tuning {
        storing::merge(tuning, &entry.build.plan_hash, ui);
    }
    tell(&installed, ui)
}

/// Installs an archive and prints a message to standard error. The caller prints the result once all work is done.
fn install(workspace: &Workspace, order: order::Install, ui: &Ui) -> Result<Installed> {
    let installed = match shipping::give(workspace, &Order::Install(order), ui)? {
        Answer::Installed(installed) => installed,
        other => return Err(shipping::unexpected(&other)),
    };
    installed.notes.iter().for_each(|note| ui.say(note));
    installed.warnings.iter().for_each(|warning| ui.warn(warning));
    let said = summary(&installed);
    ui.done(if installed.dry_run { "would install" } else { "installed" }, said);
    Ok(installed)
}

/// Prints the result. If printing fails, the installation is kept.
fn tell(installed: &Installed, ui: &Ui) -> Result<()> {
    let verb = if installed.dry_run { "would be" } else { "is" };
    let told = ui.result(installed, installed.program.display());
    told.with_context(|| format!("{} {verb} installed, but the result cannot be printed", installed.name))
}

/// Returns a one-line summary of the installation.
fn summary(installed: &Installed) -> String {
    let mut said = installed.name.clone();
    if installed.was_there {
        said += ", which was already installed";
    }
    if let Some(previous) = &installed.previous {
        said += &format!("; --rollback restores {previous}");
    }
    said
}

fn rollback(workspace: &Workspace, args: &Args, ui: &Ui) -> Result<()> {
    let order = Rollback { prefix: args.prefix.clone(), dry_run: args.dry_run };
    let switched = match shipping::give(workspace, &Order::Rollback(order), ui)? {
        Answer::Switched(switched) => switched,
        other => return Err(shipping::unexpected(&other)),
    };
    let verb = if switched.dry_run { "would be" } else { "is" };
    let told = ui.result(
        &switched,
        format_args!(
            "{} {verb} current, and {} {verb} the previous version",
            switched.current, switched.previous
        ),
    );
    told.with_context(|| format!("{} {verb} current, but the result cannot be printed", switched.current))
}

fn list(workspace: &Workspace, prefix: Option<PathBuf>, ui: &Ui) -> Result<()> {
    let versions = match shipping::give(workspace, &Order::List(List { prefix }), ui)? {
        Answer::Listed(versions) => versions,
        other => return Err(shipping::unexpected(&other)),
    };
    if versions.is_empty() {
        return ui.result(
            &versions,
            "nothing is installed\nhint: `cargo xtask install --from ARCHIVE` installs an archive",
        );
    }
    let row = |version: &InstalledVersion| {
        let mark = match (version.current, version.previous) {
            (true, _) => "*",
            (_, true) => "-",
            _ => "",
        };
        let state = version.problem.clone().unwrap_or_else(|| "as installed".to_string());
        vec![mark.to_string(), version.name.clone(), version.size.to_string(), state]
    };
    let table = ui::columns(&["", "version", "size", "state"], versions.iter().map(row));
    ui.result(
        &versions,
        format_args!("{table}\n* marks the current version; - marks the version that --rollback restores"),
    )
}
