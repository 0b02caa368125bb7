//! What a page is made from.

use std::path::PathBuf;

use build::compare::Comparison;
use build_info::{BuildInfo, Host, Roofline};
use serde_json::Value;

use super::rows::TestRow;
use crate::serving::Served;

/// What was found, each with the stem of its file's name where people have to tell one from the other.
#[derive(Debug, Default)]
pub struct Inputs {
    /// `cargo xtask detect`.
    pub(super) hosts: Vec<Host>,
    /// Records of builds.
    pub(super) builds: Vec<BuildInfo>,
    /// `bench compare`.
    pub(super) comparisons: Vec<(String, Comparison)>,
    /// `bench serve`.
    pub(super) servers: Vec<(String, Served)>,
    /// `anneal bench`.
    pub(super) rows: Vec<TestRow>,
    /// `anneal bench --roofline`.
    pub(super) rooflines: Vec<Roofline>,
    /// Entries of tuning records, as they are: fields that are not known here are left aside.
    pub(super) tunings: Vec<Value>,
    /// `bench build`, `bench overhead`, `bench first-minutes`, `optimize`, `validate`: tables without plots.
    pub(super) others: Vec<(String, Other)>,
    /// The files that were read.
    pub(super) files: Vec<PathBuf>,
}

/// Results that are shown as a table.
#[derive(Debug)]
pub(super) enum Other {
    /// `bench build`.
    BuildTimes(Value),
    /// `bench overhead`.
    Overhead(Value),
    /// `bench first-minutes`.
    FirstMinutes(Value),
    /// `optimize`.
    Optimisation(Value),
    /// `validate`.
    Validation(Value),
    /// `validate --steps`.
    Steps(Value),
}

impl Inputs {
    /// Whether there is nothing at all.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.builds.is_empty() && self.measured_nothing()
    }

    /// Whether there are builds and machines at most.
    pub fn measured_nothing(&self) -> bool {
        self.comparisons.is_empty()
            && self.servers.is_empty()
            && self.rows.is_empty()
            && self.rooflines.is_empty()
            && self.tunings.is_empty()
            && self.others.is_empty()
    }
}
