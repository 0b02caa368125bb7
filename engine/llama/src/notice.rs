//! Notices for the user: lines of the log if the program keeps one, otherwise plain words on standard error.

use std::io::Write as _;

use build_info::words::printable;
use tracing::level_filters::LevelFilter;

/// True if the program keeps a log, at any level.
pub fn is_logged() -> bool {
    LevelFilter::current() != LevelFilter::OFF
}

/// Reports something that the user should know.
pub fn warn(words: &str) {
    match is_logged() {
        true => tracing::warn!("{}", printable(words)),
        // A closed stderr is not an error.
        false => drop(writeln!(std::io::stderr(), "warning: {}", printable(words))),
    }
}

/// Reports a success.
pub fn note(words: &str) {
    match is_logged() {
        true => tracing::info!("{}", printable(words)),
        false => drop(writeln!(std::io::stderr(), "{}", printable(words))),
    }
}
