//! Upgrades of llama.cpp: the check of another version, its build beside the present build, the decision, and the
//! search for the version that caused a change.
//!
//! Nothing of the present build changes before the decision. The other version has another plan, and therefore its own
//! source tree and build folder. docs/src/build/upgrade.md describes the criteria.

pub mod bisect;
mod candidate;
mod decision;
mod declarations;
mod pins;
mod source_check;

pub use candidate::{Candidate, Workshop};
pub use decision::{Decision, RaceSettings, UpgradeRecord, record_path};
pub use pins::{Adopted, rollback};
pub use source_check::SourceCheck;
