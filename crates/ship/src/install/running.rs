//! Versions that are installed, and whether they run.

use anyhow::{Context, Result, bail};

use super::lock::PrefixLock;
use super::prefix::Prefix;
use crate::{program, sums};

/// Refuses a version that does not run any more, before it is made current.
pub(crate) fn check_still_runs(prefix: &Prefix, name: &str) -> Result<()> {
    let folder = prefix.version(name);
    sums::check(&folder).with_context(|| format!("{name} is damaged: install it again"))?;
    program::version(&[], &folder.join("bin/anneal"), &folder)?;
    Ok(())
}

/// Takes the lock of a prefix in which something is installed; where `all` shall go, whatever a killed installer left is
/// something.
pub(crate) fn lock_installed(prefix: &Prefix, what: &str, all: bool) -> Result<PrefixLock> {
    if !prefix.home().is_dir() || (!all && prefix.all()?.is_empty()) {
        bail!("nothing is installed in {}: name the prefix with --prefix DIR", prefix.root().display());
    }
    PrefixLock::take(prefix, what)
}
