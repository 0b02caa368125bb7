//! Signature rule for builds from a store.

use std::path::{Path, PathBuf};

use anyhow::Result;
use store::Location;

/// Rejects builds from `store` if a minisign key is configured, because a store keeps no signatures. `key` and
/// `asked_prefix` are options of `install`. A build looks for the key in this user's default prefix.
///
/// # Errors
/// If a key is configured, or if the configuration cannot be read.
pub fn check(store: &Location, key: Option<&str>, asked_prefix: Option<&Path>) -> Result<()> {
    install::key::refuse_unsigned(
        &format!("a build in the store {store}"),
        key,
        prefix(asked_prefix).as_deref(),
    )
}

/// Returns the prefix of an installation, or `None` if there is no home folder.
fn prefix(asked: Option<&Path>) -> Option<PathBuf> {
    match asked {
        Some(asked) => Some(asked.to_path_buf()),
        None if nix::unistd::geteuid().is_root() => Some(PathBuf::from("/usr/local")),
        None => Some(PathBuf::from(std::env::var_os("HOME")?).join(".local")),
    }
}
