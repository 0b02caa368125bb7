//! Progress display: a line that is rewritten in place on a terminal. Without a terminal, nothing is displayed.

use std::time::{Duration, Instant};

use base::StatusLine;
use build_info::Bytes;

/// Minimum interval between updates of the line.
const EVERY: Duration = Duration::from_millis(100);

/// Progress of one job.
pub struct Progress {
    what: &'static str,
    total: Option<u64>,
    done: u64,
    shown: Instant,
    line: StatusLine,
}

impl Progress {
    /// Creates the display of the job `what`, with `total` bytes of work if known.
    pub fn new(what: &'static str, total: Option<u64>) -> Self {
        let can_rewrite = std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        Self { what, total, done: 0, shown: Instant::now(), line: StatusLine::new().if_wanted(can_rewrite) }
    }

    /// Adds `bytes` of finished work.
    pub fn add(&mut self, bytes: u64) {
        self.done += bytes;
        if !self.line.is_terminal() || self.shown.elapsed() < EVERY {
            return;
        }
        self.shown = Instant::now();
        let done = Bytes(self.done);
        let text = match self.total.filter(|total| *total > 0) {
            Some(total) => {
                let percent = self.done.saturating_mul(100) / total;
                format!("{:>11} {done} of {} ({percent} %)", self.what, Bytes(total))
            }
            None => format!("{:>11} {done}", self.what),
        };
        self.line.show(&text);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.line.clear();
    }
}
