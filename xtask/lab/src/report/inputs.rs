//! Inputs of a report.

use std::path::PathBuf;

use build::compare::Comparison;
use build_info::{BuildInfo, Host, OperationRow, Roofline};
use serde_json::Value;

use super::rows::TestRow;
use crate::serving::Served;

/// Measurements of a report. Measurements that readers must be able to tell apart are stored with the name of their
/// file, without extension.
#[derive(Debug, Default)]
pub struct Inputs {
    /// Results of `cargo xtask detect`.
    pub(super) hosts: Vec<Host>,
    /// Records of builds.
    pub(super) builds: Vec<BuildInfo>,
    /// Results of `bench compare`.
    pub(super) comparisons: Vec<(String, Comparison)>,
    /// Results of `bench serve`.
    pub(super) servers: Vec<(String, Served)>,
    /// Rows of `anneal bench`.
    pub(super) rows: Vec<TestRow>,
    /// Rows of `anneal bench --ops`.
    pub(super) operations: Vec<OperationRow>,
    /// Results of `anneal bench --roofline`.
    pub(super) rooflines: Vec<Roofline>,
    /// Entries of tuning records. The entries are not parsed, so unknown fields are ignored.
    pub(super) tunings: Vec<Value>,
    /// Results of `bench build`, `bench overhead`, `bench first-minutes`, `optimize` and `validate`: tables without
    /// plots.
    pub(super) others: Vec<(String, Other)>,
    /// Files that were read.
    pub(super) files: Vec<PathBuf>,
}

/// Result that is shown as a table.
#[derive(Debug)]
pub(super) enum Other {
    /// Result of `bench build`.
    BuildTimes(Value),
    /// Result of `bench overhead`.
    Overhead(Value),
    /// Result of `bench first-minutes`.
    FirstMinutes(Value),
    /// Result of `optimize`.
    Optimisation(Value),
    /// Result of `validate`.
    Validation(Value),
    /// Result of `validate --steps`.
    Steps(Value),
}

impl Inputs {
    /// True if there are no inputs.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.builds.is_empty() && self.measured_nothing()
    }

    /// True if the inputs contain no measurements, only builds and machines.
    pub fn measured_nothing(&self) -> bool {
        self.comparisons.is_empty()
            && self.servers.is_empty()
            && self.rows.is_empty()
            && self.operations.is_empty()
            && self.rooflines.is_empty()
            && self.tunings.is_empty()
            && self.others.is_empty()
    }
}
