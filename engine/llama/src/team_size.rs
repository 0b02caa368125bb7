//! Number of threads for single tokens while other programs use the cores.
//!
//! The threads of a token wait for each other after every operation. If another program takes the core of one thread, all
//! threads wait, and fewer threads can be faster. How many are best depends on the other programs, so the speed of both
//! numbers is measured, for a few tokens at a time.

use std::time::Duration;

/// Seconds between two readings of the time that threads waited for a core.
const READING: f64 = 0.1;
/// Share of the time for which threads wait for a core, from which fewer threads are tried.
const CONTENDED: f64 = 0.05;
/// Minimum seconds and tokens of a trial.
const TRIAL: (f64, u32) = (0.15, 6);
/// Minimum seconds and tokens of the second part of a trial whose first part was faster. The system favours a thread that
/// has slept, so that another number of threads is faster at first than it will be.
const PROOF: (f64, u32) = (0.5, 12);
/// Seconds from a change to the next trial. Each trial without a change doubles them, up to the second number.
const HOLD: (f64, f64) = (0.5, 16.0);
/// Ratio of the times per token from which another number of threads is used.
const BETTER: f64 = 1.03;
/// Weight of the newest token in the mean time per token.
const NEWEST: f64 = 0.15;

/// Chooses the number of threads for each single token, from 1 to a maximum.
#[derive(Debug)]
pub struct TeamSize {
    most: u32,
    now: u32,
    /// Mean seconds per token with `now` threads; 0 before the first token.
    mean: f64,
    /// Seconds since the last trial or change, and seconds that must pass before the next trial.
    steady: f64,
    hold: f64,
    trial: Option<Trial>,
    /// True if the next trial is of more threads, if both more and fewer are possible.
    upward: bool,
    /// Seconds since the last reading, and its result: the time that threads have waited for a core.
    since_reading: f64,
    waited: Option<Duration>,
}

/// Tokens with another number of threads.
#[derive(Debug)]
struct Trial {
    threads: u32,
    tokens: u32,
    seconds: f64,
    /// True in the second part.
    is_proof: bool,
}

impl TeamSize {
    /// Starts with `most` threads.
    pub fn new(most: u32) -> Self {
        let most = most.max(1);
        Self {
            most,
            now: most,
            mean: 0.0,
            steady: 0.0,
            hold: 0.0,
            trial: None,
            upward: false,
            since_reading: 0.0,
            waited: None,
        }
    }

    /// Returns the number of threads for the next token, at most `most`. If `most` has changed, starts again.
    pub fn next(&mut self, most: u32) -> u32 {
        if most != self.most {
            *self = Self::new(most);
        }
        self.trial.as_ref().map_or(self.now, |trial| trial.threads)
    }

    /// Records that the token took `time`. `waited` returns the total time that threads of this process have waited for a
    /// core, or nothing if the system does not report it.
    pub fn took(&mut self, time: Duration, waited: impl FnOnce() -> Option<Duration>) {
        if self.most == 1 {
            return;
        }
        let seconds = time.as_secs_f64();
        self.since_reading += seconds;
        match &mut self.trial {
            Some(trial) => {
                trial.tokens += 1;
                trial.seconds += seconds;
                self.judge();
            }
            None => {
                self.mean += if self.mean == 0.0 { seconds } else { NEWEST * (seconds - self.mean) };
                self.steady += seconds;
                self.consider(waited);
            }
        }
    }

    /// Ends a part of the trial if it has lasted long enough, or the trial if it is clearly slower.
    fn judge(&mut self) {
        let Some(Trial { threads, tokens, seconds, is_proof }) = self.trial else { return };
        let mean = seconds / f64::from(tokens);
        let is_slow = mean > 2.0 * self.mean || (tokens >= 3 && mean > 1.3 * self.mean);
        let least = if is_proof { PROOF } else { TRIAL };
        if !is_slow && (seconds < least.0 || tokens < least.1) {
            return;
        }
        self.trial = None;
        if mean * BETTER >= self.mean {
            (self.steady, self.hold) = (0.0, (2.0 * self.hold).clamp(HOLD.0, HOLD.1));
        } else if is_proof {
            (self.steady, self.hold) = (0.0, HOLD.0);
            (self.now, self.mean) = (threads, mean);
        } else {
            self.trial = Some(Trial { threads, tokens: 0, seconds: 0.0, is_proof: true });
        }
    }

    /// Starts a trial if it is time for one: of more threads from time to time, and of fewer threads if threads wait for a
    /// core.
    fn consider(&mut self, waited: impl FnOnce() -> Option<Duration>) {
        let is_contended = self.since_reading >= READING && self.has_waited(waited);
        if self.steady < self.hold {
            return;
        }
        let step = (self.most / 8).max(1);
        let (fewer, more) = (is_contended && self.now > 1, self.now < self.most);
        let threads = match (fewer, more) {
            (true, true) if self.upward => self.now + step,
            (true, _) => self.now.saturating_sub(step),
            (false, true) => self.now + step,
            (false, false) => return,
        };
        let threads = threads.clamp(1, self.most);
        self.upward = threads < self.now;
        self.trial = Some(Trial { threads, tokens: 0, seconds: 0.0, is_proof: false });
    }

    /// Reads the time that threads waited for a core. True if it is a considerable share of the time since the last reading.
    fn has_waited(&mut self, waited: impl FnOnce() -> Option<Duration>) -> bool {
        let now = waited();
        let new = now.zip(self.waited).map(|(now, before)| now.saturating_sub(before).as_secs_f64());
        let share = new.unwrap_or(0.0) / self.since_reading;
        (self.waited, self.since_reading) = (now, 0.0);
        share > CONTENDED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Machine on which a token takes a time that depends on the number of threads.
    struct Machine {
        /// Seconds per token with 1, 2, … threads.
        seconds: Vec<f64>,
        /// Number of threads from which threads wait for a core.
        contended_from: u32,
        waited: Duration,
        /// Seconds for which another number of threads is as fast as if the machine were idle.
        favoured: f64,
    }

    impl Machine {
        fn new(seconds: &[f64], contended_from: u32) -> Self {
            Self { seconds: seconds.to_vec(), contended_from, waited: Duration::ZERO, favoured: 0.0 }
        }

        /// Generates tokens for `time` seconds. Returns the time relative to that with the best number of threads, and the
        /// share of tokens with each number.
        fn run(&mut self, team: &mut TeamSize, time: f64) -> (f64, Vec<f64>) {
            let (mut all, mut tokens) = (0.0, 0.0);
            let mut used = vec![0.0; self.seconds.len()];
            let (mut last, mut since) = (0, 0.0);
            while all < time {
                let threads = team.next(self.seconds.len() as u32);
                if threads != last {
                    (last, since) = (threads, 0.0);
                }
                let is_favoured = since < self.favoured;
                let slow = self.seconds[threads as usize - 1];
                let seconds = if is_favoured { slow.min(self.seconds[0] / f64::from(threads)) } else { slow };
                since += seconds;
                if threads >= self.contended_from {
                    self.waited += Duration::from_secs_f64(seconds / 2.0);
                }
                team.took(Duration::from_secs_f64(seconds), || Some(self.waited));
                all += seconds;
                tokens += 1.0;
                used[threads as usize - 1] += 1.0;
            }
            let best = self.seconds.iter().copied().fold(f64::INFINITY, f64::min);
            (all / tokens / best, used.iter().map(|used| used / tokens).collect())
        }
    }

    #[test]
    fn an_idle_machine_uses_all_threads_and_tries_nothing() {
        let mut team = TeamSize::new(4);
        let (_, used) = Machine::new(&[0.4, 0.2, 0.15, 0.1], u32::MAX).run(&mut team, 60.0);
        assert_eq!(used, [0.0, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn fewer_threads_are_used_if_they_are_faster_beside_other_programs() {
        for (seconds, name) in [([0.030, 0.041], "a busy core"), ([0.030, 0.110], "a lower priority")] {
            let mut team = TeamSize::new(2);
            let (regret, used) = Machine::new(&seconds, 2).run(&mut team, 60.0);
            assert!(regret < 1.05, "{name}: {regret:.3} {used:?}");
        }
    }

    #[test]
    fn a_number_that_is_fast_only_at_first_is_not_kept() {
        let mut team = TeamSize::new(2);
        let mut machine = Machine::new(&[0.026, 0.038], 2);
        machine.favoured = 0.2;
        let (regret, used) = machine.run(&mut team, 60.0);
        assert!(regret < 1.05, "{regret:.3} {used:?}");
    }

    #[test]
    fn all_threads_stay_if_they_are_faster_beside_other_programs() {
        let mut team = TeamSize::new(2);
        let (regret, used) = Machine::new(&[0.050, 0.035], 1).run(&mut team, 60.0);
        assert!(regret < 1.03, "{regret:.3} {used:?}");
    }

    #[test]
    fn one_of_many_threads_makes_room_and_comes_back() {
        let mut team = TeamSize::new(8);
        // With all eight threads, one shares its core.
        let crowded = [0.08, 0.04, 0.03, 0.022, 0.018, 0.015, 0.013, 0.020];
        let (regret, used) = Machine::new(&crowded, 8).run(&mut team, 60.0);
        assert!(regret < 1.05 && used[6] > 0.9, "{regret:.3} {used:?}");
        let free = [0.08, 0.04, 0.03, 0.022, 0.018, 0.015, 0.013, 0.011];
        let (regret, used) = Machine::new(&free, u32::MAX).run(&mut team, 60.0);
        assert!(regret < 1.05 && used[7] > 0.8, "{regret:.3} {used:?}");
    }

    #[test]
    fn without_a_reading_or_with_another_maximum_all_threads_are_used() {
        let mut team = TeamSize::new(2);
        for _ in 0..100 {
            assert_eq!(team.next(2), 2);
            team.took(Duration::from_millis(50), || None);
        }
        assert_eq!(team.next(4), 4);
        let mut alone = TeamSize::new(1);
        alone.took(Duration::from_secs(1), || panic!("one thread needs no reading"));
        assert_eq!(alone.next(1), 1);
    }
}
