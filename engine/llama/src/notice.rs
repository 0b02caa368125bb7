//! Notices for the user: log entries if the program keeps a log, otherwise plain text on standard error.

use std::io::Write as _;

use build_info::words::printable;
use tracing::level_filters::LevelFilter;

/// True if the program keeps a log, at any level.
pub fn is_logged() -> bool {
    LevelFilter::current() != LevelFilter::OFF
}

/// Prints or logs a warning.
pub fn warn(words: &str) {
    match is_logged() {
        true => tracing::warn!("{}", printable(words)),
        // A closed stderr is not an error.
        false => drop(writeln!(std::io::stderr(), "warning: {}", printable(words))),
    }
}

/// Prints or logs a note.
pub fn note(words: &str) {
    match is_logged() {
        true => tracing::info!("{}", printable(words)),
        false => drop(writeln!(std::io::stderr(), "{}", printable(words))),
    }
}
