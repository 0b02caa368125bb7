//! Programs and libraries from the Python package index that only some commands need.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::pinned::pinned;
use crate::process::{Log, Run};
use crate::workspace::Workspace;

/// Returns the folder `target/anneal/tools/NAME` with the packages that `requirements`, a file of the checkout, pins
/// by hash. Installs the packages if the folder is missing or was made from other requirements.
///
/// # Errors
/// If pip fails or the folder cannot be written.
pub fn pip_tool(workspace: &Workspace, name: &str, requirements: &str, log: &Log) -> Result<PathBuf> {
    pinned(workspace, name, Path::new(requirements), |folder| {
        Run::new("python3", log)
            .args(["-m", "pip", "install", "--disable-pip-version-check", "--only-binary=:all:"])
            // The file lists all packages. Without `--no-deps`, pip 23 rejects a dependency with an extra as not
            // pinned.
            .args(["--no-deps", "--require-hashes", "-r"])
            .args([&workspace.root().join(requirements)])
            .args(["--target"])
            .args([folder])
            .watch(|_, _| {})
            .map(drop)
    })
}
