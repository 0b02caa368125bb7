//! Origin `git`: one commit of a repository, without its history.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Fetched, short};
use crate::pins::{self, GitPin};
use crate::progress::FetchProgress;
use crate::staging::Staging;
use crate::tools::{Tools, run};

const INSTALL_GIT: &str = "install git (Debian: apt install git), or use another origin";

pub(crate) fn fetch(
    pin: &GitPin,
    tools: &Tools,
    store: &Path,
    staging: &Staging<'_>,
    tree: &Path,
    progress: FetchProgress<'_>,
) -> Result<Fetched> {
    ensure!(pins::is_commit(&pin.commit), "{:?} in pins.toml is not a full commit hash", pin.commit);
    let repository = kept_or_fetched(pin, tools, store, staging, progress)?;
    progress(&format!("checking out {}", pin.commit));
    check_out(pin, tools, &repository, staging, tree)?;
    Ok(Fetched {
        version: Some(pin.commit.clone()),
        build_commit: Some(short(&pin.commit)),
        from: format!("commit {} of {}", pin.commit, pin.url),
        mend: format!(
            "git found the commit intact, so either the digest in pins.toml belongs to another commit, or {} is damaged\n\
             hint: remove that folder and try again; if you changed the commit, also change its digest in pins.toml",
            repository.display()
        ),
    })
}

/// Returns a bare repository in the store's downloads that contains the commit.
fn kept_or_fetched(
    pin: &GitPin,
    tools: &Tools,
    store: &Path,
    staging: &Staging<'_>,
    progress: FetchProgress<'_>,
) -> Result<PathBuf> {
    let downloads = store.join("downloads");
    fs::create_dir_all(&downloads).with_context(|| format!("cannot create {}", downloads.display()))?;
    let kept = downloads.join(format!("{}.git", pin.commit));
    if kept.exists() {
        return Ok(kept);
    }
    progress(&format!("fetching commit {} of {}", pin.commit, pin.url));
    let fresh = staging.path().join("fetched.git");
    run(tools.git().args(["init", "--quiet", "--bare", "--"]).arg(&fresh), INSTALL_GIT)?;
    run(
        in_repository(tools, &fresh)
            // git verifies the content of each object, not only its name.
            .args(["-c", "fetch.fsckObjects=true", "fetch", "--quiet", "--depth=1", "--no-tags", "--"])
            .args([&pin.url, &pin.commit]),
        INSTALL_GIT,
    )
    .with_context(|| {
        format!(
            "cannot fetch commit {} of {}: network access is needed once\nhint: to work offline, \
             give a clone with --git-url DIR, or a folder that contains the sources with --path DIR (`upgrade`: \
             --to DIR)",
            pin.commit, pin.url
        )
    })?;
    staging.publish(&fresh, &kept)?;
    Ok(kept)
}

/// Writes the commit's files to the new folder `tree`, without a `.git`.
fn check_out(
    pin: &GitPin,
    tools: &Tools,
    repository: &Path,
    staging: &Staging<'_>,
    tree: &Path,
) -> Result<()> {
    fs::create_dir_all(tree).with_context(|| format!("cannot create {}", tree.display()))?;
    let git = || {
        let mut git = in_repository(tools, repository);
        git.arg("--work-tree").arg(tree).env("GIT_INDEX_FILE", staging.path().join("index"));
        // Symbolic links become files that contain the link's target. llama.cpp has no symbolic links, and hostile
        // links are then harmless.
        git.args(["-c", "core.symlinks=false"]);
        git
    };
    let failed = || {
        format!("cannot check out {}\nhint: if {} is damaged, remove it", pin.commit, repository.display())
    };
    run(git().args(["read-tree", &pin.commit]), INSTALL_GIT).with_context(failed)?;
    run(git().args(["checkout-index", "--all", "--quiet"]), INSTALL_GIT).with_context(failed)?;
    Ok(())
}

fn in_repository(tools: &Tools, repository: &Path) -> Command {
    let mut git = tools.git();
    git.arg("--git-dir").arg(repository);
    git
}
