//! How far it is: one line on a terminal, rewritten; nothing elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use build_info::Bytes;

/// A line is rewritten at most this often.
const EVERY: Duration = Duration::from_millis(100);

/// Progress of one job.
pub struct Progress {
    what: &'static str,
    total: Option<u64>,
    done: u64,
    shown: Instant,
    terminal: bool,
}

impl Progress {
    /// Of `what`, which takes `total` bytes where that is known.
    pub fn new(what: &'static str, total: Option<u64>) -> Self {
        let terminal =
            std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        Self { what, total, done: 0, shown: Instant::now(), terminal }
    }

    /// `bytes` more are done.
    pub fn add(&mut self, bytes: u64) {
        self.done += bytes;
        if !self.terminal || self.shown.elapsed() < EVERY {
            return;
        }
        self.shown = Instant::now();
        let done = Bytes(self.done);
        let _ = match self.total.filter(|total| *total > 0) {
            Some(total) => {
                let percent = self.done.saturating_mul(100) / total;
                write!(
                    std::io::stderr(),
                    "\r\x1b[K{:>11} {done} of {} ({percent} %)",
                    self.what,
                    Bytes(total)
                )
            }
            None => write!(std::io::stderr(), "\r\x1b[K{:>11} {done}", self.what),
        };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
