//! Sum of the results that test programs report.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;
use skipped::Skipped;

/// Counts of one run of cargo.
#[derive(Debug, Default)]
pub struct Counts {
    /// Number of tests that libtest counts as passed, including those that report themselves as skipped.
    passed: u64,
    failed: u64,
    /// Names of the tests that failed.
    failures: BTreeSet<String>,
    /// Number of tests with `#[ignore]`, which libtest does not run.
    ignored: u64,
    /// Tests that did not run, each with its reason.
    skipped: BTreeSet<Skipped>,
    /// True if the documentation examples of the engine ran.
    documentation: bool,
}

/// Sum of the counts of all runs of cargo.
#[derive(Debug, Default)]
pub struct Sum {
    /// Number of tests that ran and passed. A test that runs with two kinds of kernels counts twice.
    pub passed: u64,
    /// Number of tests that failed. A test that fails with two kinds of kernels counts twice.
    pub failed: u64,
    /// Names of the tests that failed.
    failures: BTreeSet<String>,
    /// Tests that did not run, each with its reason.
    skipped: BTreeSet<Skipped>,
    /// True if the documentation examples of the engine ran.
    pub documentation: bool,
}

/// Counts as `--json` prints them.
#[derive(Serialize)]
pub struct SumJson<'a> {
    passed: u64,
    failed: u64,
    failures: &'a BTreeSet<String>,
    skipped: Vec<SkippedTest<'a>>,
}

/// Skipped test as `--json` prints it.
#[derive(Serialize)]
struct SkippedTest<'a> {
    test: &'a str,
    why: &'a str,
}

impl Counts {
    /// Reads a line of a test program: the closing line of libtest (`test result: ok. 3 passed; 0 failed; 1 ignored;
    /// …`), or a line about a test that did not run.
    pub fn add(&mut self, line: &str) {
        self.documentation |= line.trim() == "Doc-tests engine";
        self.skipped.extend(skipped::parse(line).or_else(|| ignored(line)));
        self.failures.extend(failed(line));
        let Some(rest) = line.trim().strip_prefix("test result: ") else { return };
        for part in rest.split(['.', ';']) {
            let mut words = part.split_whitespace();
            if let (Some(Ok(count)), Some(what)) = (words.next().map(str::parse::<u64>), words.next()) {
                match what {
                    "passed" => self.passed += count,
                    "failed" => self.failed += count,
                    "ignored" => self.ignored += count,
                    _ => {}
                }
            }
        }
    }
}

impl Sum {
    /// Adds the counts of a run of cargo.
    pub fn add(&mut self, run: Counts) {
        // If a test reports itself as skipped, libtest counts the test as passed.
        let reported = tests(&run.skipped).saturating_sub(run.ignored);
        self.passed += run.passed.saturating_sub(reported);
        self.failed += run.failed;
        self.failures.extend(run.failures);
        self.skipped.extend(run.skipped);
        self.documentation |= run.documentation;
    }

    /// Returns the counts for programs.
    pub fn report(&self) -> SumJson<'_> {
        let skipped = self.skipped.iter().map(|Skipped { test, why }| SkippedTest { test, why });
        SumJson {
            passed: self.passed,
            failed: self.failed,
            failures: &self.failures,
            skipped: skipped.collect(),
        }
    }
}

/// Number of different tests in `skipped`, which has several entries for a test with several missing tools.
fn tests(skipped: &BTreeSet<Skipped>) -> u64 {
    skipped.iter().map(|Skipped { test, .. }| test).collect::<BTreeSet<_>>().len() as u64
}

/// Parses libtest's line about a test with `#[ignore]`: `test a::b ... ignored, why`.
fn ignored(line: &str) -> Option<Skipped> {
    let (test, rest) = line.trim().strip_prefix("test ")?.split_once(" ... ignored")?;
    let why = rest.strip_prefix(", ").unwrap_or("marked as ignored");
    Some(Skipped { test: test.to_string(), why: why.to_string() })
}

/// Parses libtest's line about a test that failed: `test a::b ... FAILED`. Returns the name of the test.
fn failed(line: &str) -> Option<String> {
    let name = line.trim().strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    Some(name.strip_suffix(" - should panic").unwrap_or(name).to_string())
}

impl fmt::Display for Sum {
    /// Writes the names of skipped and failed tests, then the closing line. Programs read the closing line, so it contains
    /// nothing else.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Skipped { test, why } in &self.skipped {
            writeln!(f, "skipped {test}: {why}")?;
        }
        for test in &self.failures {
            writeln!(f, "failed {test}")?;
        }
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, tests(&self.skipped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(runs: &[&[&str]]) -> Sum {
        let mut sum = Sum::default();
        for lines in runs {
            let mut counts = Counts::default();
            lines.iter().for_each(|line| counts.add(line));
            sum.add(counts);
        }
        sum
    }

    #[test]
    fn closing_lines_are_added_up_and_other_lines_are_not() {
        let sum = sum(&[&[
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1.25s",
            "3 passed",
            "   Doc-tests engine",
            "test a ... ignored, takes an hour",
            "test b::c - should panic ... FAILED",
            "test b::d ... FAILED",
            "test result: FAILED",
        ]]);
        assert!(sum.documentation);
        assert_eq!(
            sum.to_string(),
            "skipped a: takes an hour\nfailed b::c\nfailed b::d\n4 passed, 2 failed, 1 skipped"
        );
        assert_eq!(
            serde_json::to_value(sum.report()).unwrap()["failures"],
            serde_json::json!(["b::c", "b::d"])
        );
    }

    #[test]
    fn a_test_that_reports_that_it_did_not_run_is_named_and_does_not_count_as_passed() {
        let run = [
            // A test that needs several programs reports each missing one.
            "NOT RUN: shell::signed: minisign is missing (install minisign)",
            "NOT RUN: shell::signed: minisign is missing (install minisign)",
            "NOT RUN: shell::signed: wget is missing (install wget)",
            "test shell::signed ... ok",
            "test whole ... ok",
            "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        ];
        // The second run represents a run with other kernels.
        let sum = sum(&[&run, &run]);
        let expected = "skipped shell::signed: minisign is missing (install minisign)\n\
                        skipped shell::signed: wget is missing (install wget)\n2 passed, 0 failed, 1 skipped";
        assert_eq!(sum.to_string(), expected);
        let report = serde_json::to_value(sum.report()).unwrap();
        assert_eq!(report["skipped"][0]["test"], "shell::signed", "{report}");
    }
}
