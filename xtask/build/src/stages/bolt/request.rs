//! Request to BOLT: the programs to rewrite, and the method of gathering the profile.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use build_info::optimized::{BoltMethod, Training};
use plan::bolt::BoltTools;

/// Program or shared library that BOLT rewrites.
#[derive(Clone, Debug)]
pub struct BoltTarget {
    /// Base name of the files that BOLT makes from the program.
    pub name: String,
    /// Path of the program.
    pub path: PathBuf,
}

/// Function that runs the engine at the given path on the training workloads, so that hot code is counted.
pub type Train<'t> = dyn FnMut(&Path) -> Result<Training> + 't;

/// Settings for gathering the profile.
pub struct BoltRequest<'r> {
    /// `llvm-bolt` and its companion programs.
    pub tools: &'r BoltTools,
    /// Method of profiling: counters or branch records.
    pub method: BoltMethod,
    /// Key of the training's inputs; a different key causes a new training.
    pub training: String,
    /// True to store the machine's name in the record.
    pub hostname: bool,
}

/// Empties `folder`, creating it if necessary.
///
/// # Errors
/// If the folder cannot be emptied or created.
pub fn fresh(folder: &Path) -> Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| format!("cannot clear {}", folder.display()))?;
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}
