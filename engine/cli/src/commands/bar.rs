//! Progress bar: updated in place on a terminal, one line per quarter elsewhere.

use std::io::Write;
use std::time::Instant;

use base::StatusLine;
use base::status_line::seconds_left;

/// Progress of a task, with an estimate of the remaining time.
pub struct Bar {
    what: &'static str,
    unit: &'static str,
    on: bool,
    line: StatusLine,
    said: u64,
    begun: Option<Instant>,
}

impl Bar {
    /// Creates a bar for the task `what`, which counts `unit`. Prints nothing if `quiet`.
    pub fn new(what: &'static str, unit: &'static str, quiet: bool) -> Self {
        Self { what, unit, on: !quiet, line: StatusLine::new(), said: 0, begun: None }
    }

    /// Shows that `done` of `total` units are done.
    pub fn show(&mut self, done: u64, total: u64) {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        if !self.on || done == self.said || total == 0 {
            return;
        }
        let quarter = |done: u64| 4 * done / total;
        let text = format!("{} {done}/{total} {}", self.what, self.unit);
        if self.line.is_terminal() {
            self.line.show(&format!("{text}{}", time_left(seconds_left(begun.elapsed(), done, total))));
        } else if quarter(done) > quarter(self.said) {
            let _ = writeln!(std::io::stderr(), "{text}");
        }
        self.said = done;
    }

    /// Ends the bar's line on the terminal.
    pub fn end(&mut self) {
        self.line.leave();
    }
}

/// Formats the remaining time, for example `, 5 min left`. Empty if the time is unknown.
pub(super) fn time_left(seconds: Option<f64>) -> String {
    seconds.map_or(String::new(), |seconds| format!(", {} left", duration(seconds)))
}

fn duration(seconds: f64) -> String {
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
