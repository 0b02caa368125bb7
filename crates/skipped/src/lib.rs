//! Reports of tests that cannot run on a machine. libtest counts a skipped test as passed and hides its output.
//! Therefore, the report bypasses libtest's capture, and `cargo xtask test` reads the report.

use std::fmt::Display;
use std::io::Write;

/// Prefix of the line about a skipped test. The test's name, a colon and the reason follow the prefix.
const MARK: &str = "NOT RUN: ";

/// Skipped test, parsed from its line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Skipped {
    /// Name of the test.
    pub test: String,
    /// Reason why the test was skipped.
    pub why: String,
}

/// Reports that the running test is skipped because of `why`, which installing software would not fix.
pub fn because(why: impl Display) {
    // libtest names the thread of a test after the test.
    let thread = std::thread::current();
    let line = format!("{MARK}{}: {why}\n", thread.name().unwrap_or("a test"));
    // A single write keeps lines of parallel tests apart. A closed stderr cannot be reported anywhere.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Reports that the running test is skipped because `what` is missing on this machine. `how` says how to install it.
///
/// # Panics
/// In continuous integration (`CI=true`), where everything that can be installed must be installed.
pub fn for_want_of(what: impl Display, how: impl Display) {
    let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(!ci, "continuous integration needs {what}: {how}");
    because(format_args!("{what} is missing ({how})"));
}

/// Parses a line of a test program's output. Returns `None` if the line does not report a skipped test.
pub fn parse(line: &str) -> Option<Skipped> {
    // An unfinished line of another test may precede the mark.
    let (_, rest) = line.split_once(MARK)?;
    // A test's name may contain double colons, but no space follows them.
    let (test, why) = rest.split_once(": ")?;
    Some(Skipped { test: test.to_string(), why: why.trim_end().to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_and_the_reason_are_read_from_the_line() {
        let skipped = |test: &str, why: &str| Some(Skipped { test: test.to_string(), why: why.to_string() });
        for (line, expected) in [
            ("NOT RUN: a::b: no x: install y\n", skipped("a::b", "no x: install y")),
            ("test c ... NOT RUN: b: no x", skipped("b", "no x")),
            ("NOT RUN: b", None),
            ("test b ... ok", None),
        ] {
            assert_eq!(parse(line), expected, "{line:?}");
        }
    }
}
