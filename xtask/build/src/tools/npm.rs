//! Packages from the npm registry that only some commands need.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::pinned::pinned;
use crate::process::{Log, Run};
use crate::workspace::Workspace;

/// File that pins the packages.
const LOCK: &str = "package-lock.json";

/// Returns the folder `target/anneal/tools/NAME` with the packages that the lock file in `source`, a folder of the
/// checkout, pins by hash. Installs the packages if the folder is missing or was made from a different lock file.
///
/// # Errors
/// If npm fails or the folder cannot be written.
pub fn npm_tool(workspace: &Workspace, name: &str, source: &str, log: &Log) -> Result<PathBuf> {
    let source = Path::new(source);
    pinned(workspace, name, &source.join(LOCK), |folder| {
        for file in ["package.json", LOCK] {
            std::fs::copy(workspace.root().join(source).join(file), folder.join(file))?;
        }
        // Scripts of packages would run code that no test needs.
        let flags = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"];
        Run::new("npm", log).args(flags).dir(folder).watch(|_, _| {}).map(drop)
    })
}
