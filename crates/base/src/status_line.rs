//! Progress line on a terminal, rewritten in place.

use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Progress line: the last line of a terminal on standard error. If standard error is not a terminal, nothing is
/// written, and the caller prints plain lines instead. The line has no colour, so `NO_COLOR` changes nothing.
///
/// Write errors are ignored, because a closed standard error must not stop the work.
#[derive(Debug)]
pub struct StatusLine {
    terminal: bool,
    open: bool,
}

impl StatusLine {
    /// Creates an empty line on standard error.
    pub fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), open: false }
    }

    /// Disables the line unless `wanted` is true.
    #[must_use]
    pub fn if_wanted(mut self, wanted: bool) -> Self {
        self.terminal &= wanted;
        self
    }

    /// True if the line is written.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Replaces the line with `text`.
    pub fn show(&mut self, text: &str) {
        if self.terminal {
            self.open = true;
            let mut stderr = std::io::stderr().lock();
            // The escape sequence erases the rest of a previous, longer line.
            let _ = write!(stderr, "\r{text}\x1b[K").and_then(|()| stderr.flush());
        }
    }

    /// Erases the line, so that other text can follow in its place.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.open) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    /// Keeps the line and starts a new line.
    pub fn leave(&mut self) {
        if std::mem::take(&mut self.open) {
            let _ = writeln!(std::io::stderr());
        }
    }
}

impl Default for StatusLine {
    fn default() -> Self {
        Self::new()
    }
}

/// Estimates the remaining time in seconds, if `done` of `total` units took `elapsed`. Returns `None` if nothing is
/// done, or if less than a second is left.
pub fn seconds_left(elapsed: Duration, done: u64, total: u64) -> Option<f64> {
    let rest = total.saturating_sub(done) as f64;
    let left = (done > 0).then(|| elapsed.as_secs_f64() / done as f64 * rest)?;
    (left >= 1.0).then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_as_what_is_done() {
        let cases = [(0, 4, None), (1, 4, Some(30.0)), (3, 4, Some(10.0 / 3.0)), (4, 4, None), (5, 4, None)];
        for (done, total, expected) in cases {
            let left = seconds_left(Duration::from_secs(10), done, total);
            assert_eq!(left.map(|left| (left * 1e6).round()), expected.map(|left: f64| (left * 1e6).round()));
        }
    }
}
