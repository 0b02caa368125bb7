//! `clean`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use build_info::Bytes;

use crate::stages::{Builds, Lock};
use crate::ui::Ui;
use crate::workspace::Workspace;

/// Options of `clean`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only builds of this profile
    profile: Option<String>,
    /// The current builds too, and cargo's files; the sources stay
    #[arg(long)]
    all: bool,
    /// Say what would be removed and remove nothing
    #[arg(long)]
    dry_run: bool,
}

/// Removes old builds.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let _lock = Lock::take(&workspace)?;
    let of_profile = |path: &Path| match &args.profile {
        None => true,
        Some(profile) => path.file_name().is_some_and(|name| {
            name.to_string_lossy().rsplit_once('-').is_some_and(|(found, _)| found == profile)
        }),
    };
    let mut doomed: Vec<PathBuf> = Vec::new();
    for found in Builds::of(&workspace).all()? {
        if of_profile(&found.path) && (args.all || found.current_of.is_none()) {
            // The link first: it must not point at half a build.
            doomed.extend(found.current_of.map(|profile| workspace.current(&profile)));
            doomed.push(found.path);
        }
    }
    if args.all && args.profile.is_none() && workspace.cargo_target().exists() {
        doomed.push(workspace.cargo_target());
    }

    let mut freed = 0;
    for path in &doomed {
        freed += size(path);
        if !args.dry_run {
            remove(path)?;
        }
    }
    let verb = if args.dry_run { "would remove" } else { "removed" };
    for path in &doomed {
        ui.say(format_args!("{verb} {}", path.display()));
    }
    ui.result(
        &serde_json::json!({ "removed": doomed, "bytes": freed, "dry_run": args.dry_run }),
        format_args!("{verb} {} of {} files and folders", Bytes(freed), doomed.len()),
    )
}

fn remove(path: &Path) -> Result<()> {
    let link_or_file = path.is_symlink() || path.is_file();
    if link_or_file { std::fs::remove_file(path) } else { std::fs::remove_dir_all(path) }
        .with_context(|| format!("cannot remove {}", path.display()))
}

/// Bytes below `path`; what cannot be looked at counts nothing.
fn size(path: &Path) -> u64 {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return 0 };
    if !meta.is_dir() {
        return meta.len();
    }
    std::fs::read_dir(path).map_or(0, |entries| entries.flatten().map(|entry| size(&entry.path())).sum())
}
