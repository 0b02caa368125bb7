//! Command `clean`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use build::scratch;
use build::stages::{Builds, CheckoutLock};
use build::ui::Ui;
use build::workspace::Workspace;
use build_info::{BuildInfo, Bytes};

/// Options of `clean`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Remove only builds of this profile
    profile: Option<String>,
    /// Also remove the current builds, cargo's files, models and PGO profiles, but not the sources
    #[arg(long)]
    all: bool,
    /// List what would be removed without removing it
    #[arg(long)]
    dry_run: bool,
}

/// Removes old builds and the leftovers of killed commands. Keeps current builds and the builds they were derived
/// from.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let _lock = CheckoutLock::take(&workspace)?;
    let of_profile = |path: &Path| args.profile.as_ref().is_none_or(|profile| profile_of(path) == *profile);
    let builds = Builds::of(&workspace).all()?;
    let needed: Vec<BuildInfo> = builds
        .iter()
        .filter(|found| found.current_of.is_some())
        .filter_map(|found| BuildInfo::read(&found.path.join("build_info.json")).ok())
        .collect();
    let mut doomed: Vec<PathBuf> = Vec::new();
    for found in builds {
        let unused = found.current_of.is_none() && !is_base(&found.path, &needed);
        if of_profile(&found.path) && (args.all || unused) {
            // The link is removed first, because it must never point at a partial build.
            doomed.extend(found.current_of.map(|profile| workspace.current(&profile)));
            doomed.push(found.path);
        }
    }
    if args.profile.is_none() {
        doomed.extend(scratch::left(&workspace));
    }
    if args.all && args.profile.is_none() {
        let others = [workspace.cargo_target(), workspace.models(), workspace.pgo_profiles()];
        doomed.extend(others.into_iter().filter(|path| path.exists()));
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
        format_args!(
            "{verb} {} ({})",
            match doomed.len() {
                1 => "1 file or folder".to_string(),
                several => format!("{several} files and folders"),
            },
            Bytes(freed)
        ),
    )
}

/// Returns the profile of the build in the folder `path`, with its overrides. Reads it from the build's plan, or else
/// from the folder's name.
fn profile_of(path: &Path) -> String {
    #[derive(serde::Deserialize)]
    struct PlannedRemoval {
        profile: String,
    }
    let planned = std::fs::read(path.join("plan.json")).ok();
    if let Some(plan) = planned.and_then(|text| serde_json::from_slice::<PlannedRemoval>(&text).ok()) {
        return plan.profile;
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.rsplit_once('-').map_or(name.as_ref(), |(profile, _)| profile).to_string()
}

/// True if `bolt` or `build --plain` reuses the build in the folder `path`, because a `current` build was made from
/// it.
fn is_base(path: &Path, current: &[BuildInfo]) -> bool {
    let Ok(info) = BuildInfo::read(&path.join("build_info.json")) else { return false };
    let profile = |info: &BuildInfo| info.pgo.as_ref().map(|pgo| pgo.profile.clone());
    current.iter().any(|current| {
        let from = current.base_plan.as_ref();
        let plain = from == Some(&info.plan_hash);
        let profiled = from.is_some() && from == info.base_plan.as_ref() && info.bolt.is_none();
        plain || profiled && profile(&info).is_some() && profile(current) == profile(&info)
    })
}

fn remove(path: &Path) -> Result<()> {
    let link_or_file = path.is_symlink() || path.is_file();
    if link_or_file { std::fs::remove_file(path) } else { std::fs::remove_dir_all(path) }
        .with_context(|| format!("cannot remove {}", path.display()))
}

/// Returns the number of bytes below `path`, without entries that cannot be read.
fn size(path: &Path) -> u64 {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return 0 };
    if !meta.is_dir() {
        return meta.len();
    }
    std::fs::read_dir(path).map_or(0, |entries| entries.flatten().map(|entry| size(&entry.path())).sum())
}
