//! Paths of this machine that nobody else should read.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;

use crate::workspace::Workspace;

/// Paths of this machine that nobody else should read, and what stands for each in a record.
pub fn foreign(workspace: &Workspace) -> Result<BTreeMap<PathBuf, &'static str>> {
    let mut foreign = BTreeMap::from([(workspace.root().to_path_buf(), ".")]);
    foreign.insert(workspace.root().canonicalize()?, ".");
    let home = std::env::home_dir().filter(|home| home.components().count() > 1);
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    foreign.extend(cargo.map(|path| (path, "~/.cargo")));
    foreign.extend(home.map(|path| (path, "~")));
    Ok(foreign)
}
