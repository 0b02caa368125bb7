//! Packages from the npm registry that only some commands need.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::process::{Log, Run};
use crate::scratch::Scratch;
use crate::workspace::Workspace;

/// File that pins the packages.
const LOCK: &str = "package-lock.json";

/// Returns the folder `target/anneal/tools/NAME` with the packages that the lock file in `source`, a folder of the
/// checkout, pins by hash. Installs the packages if the folder is missing or was made from another lock file.
///
/// # Errors
/// If npm fails or the folder cannot be written.
pub fn npm_tool(workspace: &Workspace, name: &str, source: &str, log: &Log) -> Result<PathBuf> {
    let source = workspace.root().join(source);
    let tools = workspace.anneal().join("tools");
    let folder = tools.join(name);
    let lock = source.join(LOCK);
    let lock = std::fs::read(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
    if std::fs::read(folder.join(LOCK)).is_ok_and(|installed| installed == lock) {
        return Ok(folder);
    }
    if folder.is_dir() {
        std::fs::remove_dir_all(&folder)?;
    }
    // The packages are installed into a scratch folder first, because a partial installation would look complete.
    let scratch = Scratch::make(workspace, name)?;
    let beside = scratch.path().join(name);
    std::fs::create_dir(&beside)?;
    for file in ["package.json", LOCK] {
        std::fs::copy(source.join(file), beside.join(file))?;
    }
    // Scripts of packages would run code that no test needs.
    let flags = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"];
    Run::new("npm", log).args(flags).dir(&beside).watch(|_, _| {})?;
    std::fs::create_dir_all(&tools)?;
    std::fs::rename(&beside, &folder)?;
    Ok(folder)
}
