//! Signatures of what comes from a store.

use std::path::{Path, PathBuf};

use anyhow::Result;
use store::Location;

/// Refuses the builds of `store` if a key of minisign is configured: a store keeps no signatures. `key` and `prefix` are
/// those of `install`; a build looks for the key where an installation for this user would.
///
/// # Errors
/// If there is a key, or it cannot be told whether there is one.
pub fn check(store: &Location, key: Option<&str>, asked_prefix: Option<&Path>) -> Result<()> {
    ship::key::refuse_unsigned(&format!("a build in the store {store}"), key, prefix(asked_prefix).as_deref())
}

/// Prefix that the installer takes; `None` where it would not know one.
fn prefix(asked: Option<&Path>) -> Option<PathBuf> {
    match asked {
        Some(asked) => Some(asked.to_path_buf()),
        None if nix::unistd::geteuid().is_root() => Some(PathBuf::from("/usr/local")),
        None => Some(PathBuf::from(std::env::var_os("HOME")?).join(".local")),
    }
}
