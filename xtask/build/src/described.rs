//! Descriptions of machines and tools in files that the user names.

use std::path::Path;

use anyhow::{Context, Result};
use build_info::Host;
use serde::de::DeserializeOwned;

use crate::fs;

/// What `--host` takes, and how to make one.
const HOST_FILE: &str = "a description of a machine: run `cargo xtask detect > host.json` on that machine and \
                         give host.json, or take one of fixtures/hosts";

/// Reads a description of a machine, which somebody may have written by hand.
pub fn read_host(path: &Path) -> Result<Host> {
    let host: Host = read_json(path, HOST_FILE)?;
    host.checked().with_context(|| format!("{} is not {HOST_FILE}", path.display()))
}

/// Reads `path`, which should be `what`.
pub fn read_json<T: DeserializeOwned>(path: &Path, what: &str) -> Result<T> {
    let text = fs::content(path)
        .with_context(|| format!("cannot read {}, which should be {what}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not {what}", path.display()))
}
