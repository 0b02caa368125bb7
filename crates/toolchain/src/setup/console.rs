//! The interface by which an installation asks and reports.

use super::plan::{InstallStep, SetupPlan};

/// Where questions are asked and progress is shown.
pub trait Console {
    /// Something the user should know.
    fn note(&mut self, text: &str);
    /// A command is about to run.
    fn command(&mut self, step: &InstallStep);
    /// A line that a command printed.
    fn output(&mut self, line: &str);
    /// Asks whether to run the steps of `plan`.
    fn confirm(&mut self, plan: &SetupPlan) -> bool;
    /// Whether the user asked to stop (ctrl-C): no further command is run then.
    fn stopped(&self) -> bool;
}
