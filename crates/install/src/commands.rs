//! Commands of `anneal self`.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use base::exit;
use build_info::words;
use serde::Serialize;

use crate::order::{Install, Installed, InstalledVersion, List, Rollback, Uninstall};
use crate::prefix::Prefix;
use crate::running::NothingInstalled;
use crate::{install, interrupt, list, origin, rollback, signals, uninstall};

/// Install, switch and remove versions of Anneal
///
/// Several versions can be installed side by side. One of them is current, and `bin/anneal` in the prefix starts it.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Install(InstallArgs),
    Rollback(RollbackArgs),
    Uninstall(UninstallArgs),
    List(ListArgs),
}

/// Options of all commands.
#[derive(clap::Args, Debug)]
struct Common {
    /// Folder of the installation [default: the folder in which this program is installed, else /usr/local for root,
    /// else ~/.local]
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Install an archive, and make it the current version
///
/// Checks the archive's digest, and its signature if a minisign key is configured. The previous version stays
/// installed.
#[derive(clap::Args, Debug)]
struct InstallArgs {
    /// Archive to install: a path (of an archive, an unpacked archive or a folder of archives) or a URL (of an archive,
    /// or of a folder if it ends in /)
    #[arg(long, value_name = "FILE|FOLDER|URL")]
    from: String,
    /// Expected SHA-256 of the archive, instead of the checksum in the file next to it
    #[arg(long, value_name = "HEX", conflicts_with = "no_check")]
    sha256: Option<String>,
    /// Install an archive even if it has no checksum; corruption and tampering are then not detected
    #[arg(long)]
    no_check: bool,
    /// Minisign public key to verify the archive's signature with [default: $ANNEAL_MINISIGN_KEY, else
    /// PREFIX/etc/anneal/minisign.pub if it exists]
    #[arg(long, value_name = "FILE|KEY")]
    key: Option<String>,
    /// Replace an installed version that has the same name but different content; the replaced version cannot be
    /// restored
    #[arg(long)]
    force: bool,
    /// Print what would be done without doing it
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    common: Common,
}

/// Make the previous version the current version
#[derive(clap::Args, Debug)]
struct RollbackArgs {
    /// Print what would be done without doing it
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    common: Common,
}

/// Remove versions; with the last version, remove everything that was installed
#[derive(clap::Args, Debug)]
struct UninstallArgs {
    /// Version to remove: a name from `anneal self list`, or a version number [default: the current version]
    #[arg(conflicts_with = "all")]
    version: Option<String>,
    /// Remove all versions
    #[arg(long)]
    all: bool,
    /// Print what would be done without doing it
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    common: Common,
}

/// List the installed versions, and check that their files are unchanged
#[derive(clap::Args, Debug)]
struct ListArgs {
    #[command(flatten)]
    common: Common,
}

/// Runs the command, and prints its result.
///
/// # Errors
/// If the command fails, or its result cannot be printed.
pub fn run(args: Args) -> Result<()> {
    signals::catch()?;
    match args.command {
        Command::Install(args) => run_install(args),
        Command::Rollback(args) => run_rollback(args),
        Command::Uninstall(args) => run_uninstall(args),
        Command::List(args) => run_list(args),
    }
}

fn run_install(args: InstallArgs) -> Result<()> {
    let InstallArgs { from, sha256, no_check, key, force, dry_run, common } = args;
    let prefix = common.prefix()?;
    let installed = install(&Install { from, prefix, sha256, no_check, key, force, dry_run })?;
    installed.notes.iter().for_each(|note| tell("", note));
    installed.warnings.iter().for_each(|warning| tell("warning: ", warning));
    common.print(&installed, &installation(&installed), &installed.name, dry_run)
}

/// Describes an installation in one line.
fn installation(installed: &Installed) -> String {
    let Installed { name, .. } = installed;
    let program = installed.program.display();
    match (installed.dry_run, installed.was_there) {
        (true, _) => format!("would install {name} as {program}"),
        (false, true) => format!("{name} is already installed and is current"),
        (false, false) => format!("installed {name} as {program}"),
    }
}

fn run_rollback(args: RollbackArgs) -> Result<()> {
    let RollbackArgs { dry_run, common } = args;
    let switched = common.explain(rollback(&Rollback { prefix: common.prefix()?, dry_run }))?;
    let verb = if dry_run { "would be" } else { "is" };
    let line =
        format!("{} {verb} current, {} {verb} the previous version", switched.current, switched.previous);
    common.print(&switched, &line, &switched.current, dry_run)
}

fn run_uninstall(args: UninstallArgs) -> Result<()> {
    let UninstallArgs { version, all, dry_run, common } = args;
    let prefix = common.prefix()?;
    let done = common.explain(uninstall(&Uninstall { version, all, prefix, dry_run }))?;
    let removed = done.names();
    let verb = if dry_run { "would remove" } else { "removed" };
    let (left, current) = match &done.current {
        Some(current) => (format!("{current} is current"), current.clone()),
        None => ("no version is left".to_string(), "no version".to_string()),
    };
    common.print(&done, &format!("{verb} {removed}; {left}"), &current, dry_run)
}

fn run_list(args: ListArgs) -> Result<()> {
    let ListArgs { common } = args;
    let prefix = common.prefix()?;
    let versions = list(&List { prefix: prefix.clone() })?;
    if versions.is_empty() && !common.json {
        let nothing = NothingInstalled(Prefix::of(prefix.as_deref())?.root().to_path_buf());
        tell("", &common.explanation(&nothing));
        return Ok(());
    }
    common.write(&versions, &table(&versions)).context("cannot write the list to stdout")
}

/// Returns the versions as a table.
fn table(versions: &[InstalledVersion]) -> String {
    let width = versions.iter().map(|version| version.name.len()).max().unwrap_or(0);
    let line = |version: &InstalledVersion| {
        let mark = match (version.current, version.previous) {
            (true, _) => "*",
            (_, true) => "-",
            _ => " ",
        };
        let state = version.problem.as_deref().map_or("as installed".into(), words::printable);
        format!("{mark} {:width$}  {:>10}  {state}\n", version.name, version.size.to_string())
    };
    let lines: String = versions.iter().map(line).collect();
    format!("{lines}* marks the current version; - marks the version that a rollback restores")
}

impl Common {
    /// Returns the prefix that the user chose, else the prefix of this program if the installer installed it.
    fn prefix(&self) -> Result<Option<PathBuf>> {
        let prefix = self.prefix.clone().or_else(|| origin::prefix(&program()?));
        match &prefix {
            Some(prefix) if self.json && prefix.to_str().is_none() => Err(exit::usage(format!(
                "cannot print the path {prefix:?} as JSON: it is not valid UTF-8\nhint: run the command without --json"
            ))),
            _ => Ok(prefix),
        }
    }

    /// Explains the error for a prefix without an installation.
    fn explain<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| match error.downcast_ref() {
            Some(nothing) => anyhow!(self.explanation(nothing)),
            None => error,
        })
    }

    /// Returns the message for a prefix without an installation, with the program that manages this program as the hint.
    fn explanation(&self, nothing: &NothingInstalled) -> String {
        let program = if self.prefix.is_none() { program() } else { None };
        match program.and_then(|program| origin::hint(&program)) {
            Some(hint) => format!("nothing is installed in {}\nhint: {hint}", nothing.0.display()),
            None => nothing.to_string(),
        }
    }

    /// Prints the result of finished work, which makes or keeps `current` current.
    fn print(&self, result: &impl Serialize, line: &str, current: &str, dry_run: bool) -> Result<()> {
        if interrupt::is_requested() && !dry_run {
            tell("warning: ", &format!("the request to stop came too late: {current} is current"));
        }
        self.write(result, line)
            .with_context(|| format!("cannot write to stdout, but this is done: {}", words::printable(line)))
    }

    fn write(&self, result: &impl Serialize, text: &str) -> Result<()> {
        let mut stdout = std::io::stdout().lock();
        match self.json {
            true => writeln!(stdout, "{}", serde_json::to_string_pretty(result)?)?,
            false => writeln!(stdout, "{}", words::printable_lines(text))?,
        }
        Ok(())
    }
}

/// Returns the path of this program without links.
fn program() -> Option<PathBuf> {
    std::env::current_exe().ok().and_then(|program| Path::new(&program).canonicalize().ok())
}

/// Prints a note or a warning to stderr, where nobody may be reading.
fn tell(begin: &str, text: &str) {
    let (text, hint) = words::split_hint(text);
    let hint = hint.map(|hint| format!("hint: {}\n", words::printable(hint))).unwrap_or_default();
    let _ = write!(std::io::stderr(), "{begin}{}\n{hint}", words::printable(text));
}
