//! Checks of installed versions.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::lock::PrefixLock;
use crate::prefix::Prefix;
use crate::{program, sums};

/// Checks that a version still runs, before the version becomes current.
///
/// # Errors
/// If the version does not run.
pub(crate) fn check_still_runs(prefix: &Prefix, name: &str) -> Result<()> {
    let folder = prefix.version(name);
    sums::check(&folder).with_context(|| format!("{name} is damaged\nhint: install it again"))?;
    program::version(&[], &folder.join("bin/anneal"), &folder)?;
    Ok(())
}

/// Takes the lock of a prefix that contains an installation. If `all` is true, leftovers of a killed installer count
/// as an installation.
///
/// # Errors
/// If nothing is installed, or another installer holds the lock.
pub(crate) fn lock_installed(prefix: &Prefix, what: &str, all: bool) -> Result<PrefixLock> {
    if !prefix.home().is_dir() || (!all && prefix.all()?.is_empty()) {
        return Err(NothingInstalled(prefix.root().to_path_buf()).into());
    }
    PrefixLock::take(prefix, what)
}

/// Error for a prefix without an installation.
#[derive(Debug)]
pub struct NothingInstalled(pub PathBuf);

impl fmt::Display for NothingInstalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nothing is installed in {}\nhint: specify the prefix with --prefix DIR", self.0.display())
    }
}

impl std::error::Error for NothingInstalled {}
