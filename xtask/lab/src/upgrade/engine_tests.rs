//! Tests of the engine, linked with the libraries of the other version.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};
use build::process::{self, Log, Run, Stream};
use build::program::xtask;
use build::ui::Ui;
use build::workspace::Workspace;
use build_info::words::count;
use serde::{Deserialize, Serialize};

/// Result of `cargo xtask test --build`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineTests {
    /// Number of tests that passed.
    pub passed: u64,
    /// Names of the tests that failed.
    pub failures: BTreeSet<String>,
}

impl EngineTests {
    /// Runs the tests whose results depend on llama.cpp, linked with the libraries of the build in `folder`. Tests that
    /// also fail with the build in `present` are not counted as failures.
    ///
    /// # Errors
    /// If the tests cannot be compiled or run, or the user stops them.
    pub fn compare(folder: &Path, present: &Path, workspace: &Workspace, ui: &Ui) -> Result<Self> {
        let mut tests = Self::run(folder, workspace, ui)?;
        if !tests.failures.is_empty() {
            let present = Self::run(present, workspace, ui)?;
            tests.failures.retain(|test| !present.failures.contains(test));
        }
        Ok(tests)
    }

    fn run(folder: &Path, workspace: &Workspace, ui: &Ui) -> Result<Self> {
        let log = Log::new(workspace.anneal().join("test.log"), ui.verbose());
        let progress = ui.progress("engine tests");
        let (mut printed, mut finished) = (String::new(), 0);
        let ran = Run::new(xtask()?, &log)
            .dir(workspace.root())
            .args(["--json", "test", "--yes", "--build"])
            .args([folder])
            // xtask writes the output of the tests to this log itself.
            .quietly()
            .watch(|stream, line| match stream {
                Stream::Out => printed.extend([line, "\n"]),
                Stream::Err if line.starts_with("test ") && line.contains(" ... ") => {
                    finished += 1;
                    progress.message(&format!("{} finished", count(finished, "test")));
                }
                Stream::Err if line.trim_start().starts_with("Compiling") => progress.message(line.trim()),
                Stream::Err => {}
            });
        progress.finish();
        process::check_interrupted()?;
        // xtask fails if a test failed, but prints the counts first.
        match (ran, serde_json::from_str(&printed)) {
            (_, Ok(tests)) => Ok(tests),
            (Err(error), Err(_)) => Err(error),
            (Ok(()), Err(error)) => Err(error).context("cannot read the counts of cargo xtask test --json"),
        }
    }

    /// Returns a reason against the other version for each failure.
    pub fn reasons(&self) -> Vec<String> {
        let reason = |test| format!("the engine's test {test} fails with this version only");
        self.failures.iter().map(reason).collect()
    }
}

impl fmt::Display for EngineTests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "engine tests: {} passed, {} failed", self.passed, self.failures.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_is_a_reason() {
        // As `cargo xtask test --json` prints it.
        let json = r#"{"passed": 2, "failed": 1, "failures": ["logits::one"], "skipped": []}"#;
        let tests: EngineTests = serde_json::from_str(json).unwrap();
        assert_eq!(tests.to_string(), "engine tests: 2 passed, 1 failed");
        assert_eq!(tests.reasons(), ["the engine's test logits::one fails with this version only"]);
        assert_eq!(EngineTests::default().reasons(), [""; 0]);
    }
}
