//! Descriptions of machines and tools in files that the user specifies.

use std::path::Path;

use anyhow::{Context, Result};
use build_info::Host;
use serde::de::DeserializeOwned;

use crate::fs;

/// Description of the file that `--host` accepts, including the command that creates it.
const HOST_FILE: &str = "a description of a machine\nhint: run `cargo xtask detect > host.json` on that machine \
                         and pass host.json, or use a file in fixtures/hosts";

/// Reads a description of a machine, which the user may have written or edited.
///
/// # Errors
/// If the file cannot be read or is not a description of a machine.
pub fn read_host(path: &Path) -> Result<Host> {
    let host: Host = read_json(path, HOST_FILE)?;
    host.checked().with_context(|| format!("{} is not {HOST_FILE}", path.display()))
}

/// Reads the JSON file `path`. In errors, `what` describes the expected content.
///
/// # Errors
/// If the file cannot be read or does not have the expected content.
pub fn read_json<T: DeserializeOwned>(path: &Path, what: &str) -> Result<T> {
    let text = fs::content(path).with_context(|| format!("cannot read {} as {what}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not {what}", path.display()))
}
