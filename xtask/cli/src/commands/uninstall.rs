//! `uninstall`

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
    /// The version, by the name that `install --list` shows or by its number; without it the current one
    #[arg(conflicts_with = "all")]
    version: Option<String>,
    /// Remove all versions
    #[arg(long)]
    all: bool,
    /// Where they are installed; by default /usr/local for root, else ~/.local
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// Say what would be removed and remove nothing
    #[arg(long)]
    dry_run: bool,
}

/// Removes versions, and with the last one all that was installed.
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
        Some(current) => format!("{current} is current then"),
        None => "nothing of Anneal is left there".to_string(),
    };
    let removed = match done.removed.as_slice() {
        [] => "what a stopped installer left".to_string(),
        versions => versions.join(", "),
    };
    let told = ui.result(&done, format_args!("{verb} {removed}; {left}"));
    told.with_context(|| format!("{verb} {removed}, and nobody was told"))
}
