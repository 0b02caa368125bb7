//! Programs and libraries from the Python package index that only some commands need.

use std::path::PathBuf;

use anyhow::Result;

use crate::process::{Log, Run};
use crate::scratch::Scratch;
use crate::workspace::Workspace;

/// Returns the folder `target/anneal/tools/NAME` with the packages that `requirements`, a file of the checkout, pins
/// by hash. Installs the packages if the folder is missing.
///
/// # Errors
/// If pip fails or the folder cannot be written.
pub fn pip_tool(workspace: &Workspace, name: &str, requirements: &str, log: &Log) -> Result<PathBuf> {
    let tools = workspace.anneal().join("tools");
    let folder = tools.join(name);
    if folder.is_dir() {
        return Ok(folder);
    }
    // The packages are installed into a scratch folder first, because a partial installation would look complete.
    let scratch = Scratch::make(workspace, name)?;
    let beside = scratch.path().join(name);
    Run::new("python3", log)
        .args(["-m", "pip", "install", "--disable-pip-version-check", "--only-binary=:all:"])
        .args(["--require-hashes", "-r"])
        .args([&workspace.root().join(requirements)])
        .args(["--target"])
        .args([&beside])
        .watch(|_, _| {})?;
    std::fs::create_dir_all(&tools)?;
    std::fs::rename(&beside, &folder)?;
    Ok(folder)
}
