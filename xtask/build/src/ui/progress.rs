//! Progress of one stage: on a terminal, a bar with counts and an estimate of the remaining time; otherwise,
//! occasional plain lines.

use std::io::Write;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::forecast::Status;

/// Minimum interval between plain lines.
const PLAIN_EVERY: Duration = Duration::from_secs(30);

/// Minimum interval between updates of a bar that follows a forecast.
const FOLLOW_EVERY: Duration = Duration::from_millis(200);

/// Length of a bar that shows a fraction.
const WHOLE: u64 = 10_000;

/// Progress display of one stage.
pub struct Progress {
    stage: String,
    bar: ProgressBar,
    plain: bool,
    started: Instant,
    last_plain: Instant,
    last_followed: Option<Instant>,
}

impl Progress {
    pub(super) fn new(stage: &str, terminal: bool, quiet: bool, color: bool) -> Self {
        let bar = ProgressBar::no_length();
        bar.set_draw_target(if terminal && !quiet {
            ProgressDrawTarget::stderr_with_hz(10)
        } else {
            ProgressDrawTarget::hidden()
        });
        bar.set_style(spinner(color));
        bar.set_prefix(stage.to_string());
        bar.enable_steady_tick(Duration::from_millis(120));
        let plain = !terminal && !quiet;
        if plain {
            say(format_args!("{stage:>11} ..."));
        }
        let now = Instant::now();
        Self { stage: stage.to_string(), bar, plain, started: now, last_plain: now, last_followed: None }
    }

    /// Shows that `done` of `total` steps are finished; `what` is the latest step.
    pub fn step(&mut self, done: u64, total: u64, what: &str) {
        if self.bar.length() != Some(total) {
            self.bar.set_length(total);
            self.bar.set_style(bar());
        }
        self.bar.set_position(done);
        self.message(what);
        if self.plain && (self.last_plain.elapsed() >= PLAIN_EVERY || (done == total && total > 0)) {
            self.last_plain = Instant::now();
            let elapsed = self.started.elapsed();
            let eta = elapsed.mul_f64(total.saturating_sub(done) as f64 / done.max(1) as f64);
            say(format_args!("{:>11} {done}/{total}, {}, ETA {}", self.stage, whole(elapsed), whole(eta)));
        }
    }

    /// Shows a forecast, at most a few times per second. Calls `status` only when it updates the display.
    pub fn follow(&mut self, status: impl FnOnce() -> Status) {
        if self.last_followed.is_some_and(|last| last.elapsed() < FOLLOW_EVERY) {
            return;
        }
        if self.last_followed.is_none() {
            self.bar.set_length(WHOLE);
            self.bar.set_style(share());
        }
        self.last_followed = Some(Instant::now());
        let plain = self.plain && self.last_plain.elapsed() >= PLAIN_EVERY;
        if self.bar.is_hidden() && !plain {
            return;
        }
        let status = status();
        let (done, total) = (status.done, status.total);
        let elapsed = whole(self.started.elapsed());
        let left = whole(Duration::try_from_secs_f64(status.left.ceil()).unwrap_or_default());
        self.bar.set_position((status.share * WHOLE as f64) as u64);
        self.message(&format!("{done}/{total} {elapsed} ETA {left}  {}", status.what));
        if plain {
            self.last_plain = Instant::now();
            say(format_args!("{:>11} {done}/{total}, {elapsed}, ETA {left}: {}", self.stage, status.what));
        }
    }

    /// Shows the current activity of work whose steps cannot be counted.
    pub fn message(&self, what: &str) {
        // Removes control characters, which a compiler's message may contain.
        let what: String = what.chars().filter(|c| !c.is_control()).take(80).collect();
        self.bar.set_message(what);
    }

    /// Removes the bar and returns the elapsed time.
    pub fn finish(self) -> Duration {
        self.bar.finish_and_clear();
        self.started.elapsed()
    }
}

/// Truncates `duration` to whole seconds.
fn whole(duration: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_secs(duration.as_secs()))
}

/// Prints a plain line. A closed standard error is ignored.
fn say(line: std::fmt::Arguments) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn spinner(color: bool) -> ProgressStyle {
    let template = if color {
        "{prefix:>11.cyan.bold} {spinner} {wide_msg} {elapsed}"
    } else {
        "{prefix:>11} {spinner} {wide_msg} {elapsed}"
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn share() -> ProgressStyle {
    ProgressStyle::with_template("{prefix:>11} [{bar:24}] {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

fn bar() -> ProgressStyle {
    ProgressStyle::with_template("{prefix:>11} [{bar:24}] {pos}/{len} {elapsed} ETA {eta}  {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}
