//! Interface through which an installation asks questions and reports progress.

use super::plan::{InstallStep, SetupPlan};

/// Receiver of questions and progress.
pub trait Console {
    /// Shows a message to the user.
    fn note(&mut self, text: &str);
    /// Shows a command that is about to run.
    fn command(&mut self, step: &InstallStep);
    /// Shows a line that a command printed.
    fn output(&mut self, line: &str);
    /// Asks if the steps of `plan` should run, and returns the answer.
    fn confirm(&mut self, plan: &SetupPlan) -> bool;
    /// True if the user asked to stop with ctrl-C. No further command runs after that.
    fn stopped(&self) -> bool;
}
