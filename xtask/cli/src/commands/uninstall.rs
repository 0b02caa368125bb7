//! Command `uninstall`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use build::shipping;
use build::ui::Ui;
use build::workspace::Workspace;
use ship::order::{self};
use ship::{Answer, Order};

/// Options of `uninstall`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Version to remove: a name from `install --list`, or a version number [default: the current version]
    #[arg(conflicts_with = "all")]
    version: Option<String>,
    /// Remove all versions
    #[arg(long)]
    all: bool,
    /// Folder that Anneal is installed in [default: /usr/local for root, else ~/.local]
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// List what would be removed without removing it
    #[arg(long)]
    dry_run: bool,
}

/// Removes versions. With the last version, removes everything that was installed.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    shipping::check_prefix(args.prefix.as_deref())?;
    let workspace = Workspace::find()?;
    let order =
        order::Uninstall { version: args.version, all: args.all, prefix: args.prefix, dry_run: args.dry_run };
    let done = match shipping::give(&workspace, &Order::Uninstall(order), ui)? {
        Answer::Uninstalled(done) => done,
        other => return Err(shipping::unexpected(&other)),
    };
    let verb = if done.dry_run { "would remove" } else { "removed" };
    let left = match &done.current {
        Some(current) => format!("the current version is {current}"),
        None => "no Anneal files are left".to_string(),
    };
    let removed = done.names();
    let told = ui.result(&done, format_args!("{verb} {removed}; {left}"));
    told.with_context(|| format!("{verb} {removed}, but the result cannot be printed"))
}
