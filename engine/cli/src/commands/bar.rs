//! How far something is: in place on a terminal, a line each quarter elsewhere.

use std::io::{IsTerminal, Write};
use std::time::Instant;

/// Counts what is done, and guesses how long the rest takes.
pub struct Bar {
    what: &'static str,
    unit: &'static str,
    on: bool,
    terminal: bool,
    said: u64,
    begun: Option<Instant>,
}

impl Bar {
    /// Counts `unit` of `what`.
    pub fn new(what: &'static str, unit: &'static str, quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { what, unit, on: !quiet, terminal, said: 0, begun: None }
    }

    /// `done` of `total` are done.
    pub fn show(&mut self, done: u64, total: u64) {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        if !self.on || done == self.said || total == 0 {
            return;
        }
        let quarter = |done: u64| 4 * done / total;
        let text = format!("{} {done}/{total} {}", self.what, self.unit);
        let mut stderr = std::io::stderr().lock();
        if self.terminal {
            let left = begun.elapsed().as_secs_f64() / done as f64 * total.saturating_sub(done) as f64;
            let left = if left >= 1.0 { format!(", {} left", duration(left)) } else { String::new() };
            // The end of a longer line before it is wiped out.
            let _ = write!(stderr, "\r{text}{left}\x1b[K").and_then(|()| stderr.flush());
        } else if quarter(done) > quarter(self.said) {
            let _ = writeln!(stderr, "{text}");
        }
        self.said = done;
    }

    /// Leaves its line.
    pub fn end(&self) {
        if self.on && self.terminal && self.said > 0 {
            let _ = writeln!(std::io::stderr());
        }
    }
}

pub(super) fn duration(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match seconds {
        0..90 => format!("{seconds} s"),
        90..5400 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn durations_read_like_a_person_would_say_them() {
        let cases = [(1.4, "1 s"), (89.0, "89 s"), (91.0, "2 min"), (7260.0, "2 h 1 min")];
        for (seconds, expected) in cases {
            assert_eq!(super::duration(seconds), expected);
        }
    }
}
