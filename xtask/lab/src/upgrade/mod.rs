//! Upgrades of llama.cpp: the check of another version, its build alongside the present build, the decision, and the
//! search for the version that caused a change.
//!
//! The present build does not change before the decision. The other version has another plan, and therefore its own
//! source tree and build folder. docs/src/build/upgrade.md describes the criteria.

pub mod bisect;
mod candidate;
mod decision;
mod declarations;
mod engine_tests;
mod pins;
mod source_check;
mod without;

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

pub use candidate::{Candidate, Workshop};
pub use decision::{Decision, RaceSettings, UpgradeRecord, record_path};
pub use engine_tests::EngineTests;
pub use pins::{Adopted, rollback};
pub use source_check::SourceCheck;
pub use without::WithoutRecord;

/// Writes `record` as JSON to `path`, in a folder that is created if it does not exist.
///
/// # Errors
/// If the folder or the file cannot be written.
pub fn write_record(path: &Path, record: &impl Serialize) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    build::fs::write_atomically(path, &serde_json::to_vec_pretty(record)?)
}
