//! What is asked of BOLT: which programs, by which profile.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use build_info::optimized::{BoltMethod, Training};
use plan::bolt::BoltTools;

/// A program or a shared library that BOLT rewrites.
#[derive(Clone, Debug)]
pub struct BoltTarget {
    /// Name of the files that are made of it.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
}

/// Runs the engine at the path it is given, so that what is hot is counted.
pub type Train<'t> = dyn FnMut(&Path) -> Result<Training> + 't;

/// How the profile is gathered, and by what.
pub struct BoltRequest<'r> {
    /// `llvm-bolt` and its companions.
    pub tools: &'r BoltTools,
    /// Counters or branch records.
    pub method: BoltMethod,
    /// What the training depends on; with another key it is run again.
    pub training: String,
    /// Whether this machine's name is left in the record.
    pub hostname: bool,
}

/// Makes an empty folder.
pub fn fresh(folder: &Path) -> Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| format!("cannot clear {}", folder.display()))?;
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}
