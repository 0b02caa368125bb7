//! Paths of this machine that must not appear in published files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;

use crate::workspace::Workspace;

/// Returns the paths of this machine that must not appear in published files, each with its replacement in a record.
///
/// # Errors
/// If a path cannot be determined.
pub fn foreign(workspace: &Workspace) -> Result<BTreeMap<PathBuf, &'static str>> {
    let mut foreign = BTreeMap::from([(workspace.root().to_path_buf(), ".")]);
    foreign.insert(workspace.root().canonicalize()?, ".");
    let home = std::env::home_dir().filter(|home| home.components().count() > 1);
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    foreign.extend(cargo.map(|path| (path, "~/.cargo")));
    foreign.extend(home.map(|path| (path, "~")));
    Ok(foreign)
}
