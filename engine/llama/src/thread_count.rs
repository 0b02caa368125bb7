//! Number of decode threads while other programs use the cores.
//!
//! The threads that evaluate a token wait for each other at barriers. If another program takes the core of one thread,
//! all threads wait, and fewer threads can be faster. The best number of threads depends on the other programs, so
//! Anneal measures the speed of a few tokens with each number.

use std::time::{Duration, Instant};

/// Minimum interval between two readings of the time that threads spent waiting for a core.
const READING: Duration = Duration::from_millis(100);
/// Share of the threads' time spent waiting for a core. Above this share, fewer threads are tried.
const CONTENDED: f64 = 0.05;
/// Minimum length of a trial.
const TRIAL: Length = Length { seconds: 0.15, tokens: 6 };
/// Minimum length of the second part of a trial, which follows a faster first part. Linux favours threads that have
/// slept, so a new thread count runs faster at first.
const PROOF: Length = Length { seconds: 0.5, tokens: 12 };
/// Seconds from a change to the next trial.
const FIRST_WAIT: f64 = 0.5;
/// Maximum seconds between two trials. Each trial without a change doubles the wait up to this length.
const LONGEST_WAIT: f64 = 16.0;
/// Minimum speed-up for switching to another number of threads.
const BETTER: f64 = 1.03;
/// Weight of the newest token in the mean time per token.
const NEWEST: f64 = 0.15;

/// Length of a part of a trial.
#[derive(Clone, Copy, Debug)]
struct Length {
    seconds: f64,
    tokens: u32,
}

/// Number of decode threads, which follows the load of the machine.
#[derive(Debug)]
pub struct ThreadCount {
    max: u32,
    current: u32,
    /// Mean seconds per token with the current number; 0 before the first token.
    mean: f64,
    /// Seconds of tokens since the last trial or change.
    since_change: f64,
    /// Seconds that must pass before the next trial.
    wait: f64,
    trial: Option<Trial>,
    /// True if the next trial uses more threads when both more and fewer are possible.
    upward: bool,
    /// Time of the last reading, and the time that threads had spent waiting for a core by then.
    reading: Option<(Instant, Option<Duration>)>,
}

/// Evaluation of a few tokens with another number of threads.
#[derive(Clone, Copy, Debug)]
struct Trial {
    threads: u32,
    tokens: u32,
    seconds: f64,
    /// True in the second part.
    is_proof: bool,
}

impl ThreadCount {
    /// Starts with `max` threads.
    pub fn new(max: u32) -> Self {
        let max = max.max(1);
        Self {
            max,
            current: max,
            mean: 0.0,
            since_change: 0.0,
            wait: 0.0,
            trial: None,
            upward: false,
            reading: None,
        }
    }

    /// Returns the number of threads for the next token.
    pub fn for_next_token(&self) -> u32 {
        self.trial.map_or(self.current, |trial| trial.threads)
    }

    /// Records that a token was evaluated from `start` to `end`. `waited` returns the total time that threads of
    /// this process have spent waiting for a core; `None` if the system does not report it.
    pub fn record_token(&mut self, start: Instant, end: Instant, waited: impl FnOnce() -> Option<Duration>) {
        if self.max == 1 {
            return;
        }
        let seconds = end.duration_since(start).as_secs_f64();
        match &mut self.trial {
            Some(trial) => {
                trial.tokens += 1;
                trial.seconds += seconds;
                let trial = *trial;
                self.end_trial(trial);
            }
            None => {
                self.mean += if self.mean == 0.0 { seconds } else { NEWEST * (seconds - self.mean) };
                self.since_change += seconds;
                self.start_trial(end, waited);
            }
        }
    }

    /// Ends the trial, or its first part, if it has lasted long enough or is clearly slower.
    fn end_trial(&mut self, Trial { threads, tokens, seconds, is_proof }: Trial) {
        let mean = seconds / f64::from(tokens);
        let is_slow = mean > 2.0 * self.mean || (tokens >= 3 && mean > 1.3 * self.mean);
        let length = if is_proof { PROOF } else { TRIAL };
        if !is_slow && (seconds < length.seconds || tokens < length.tokens) {
            return;
        }
        self.trial = None;
        if mean * BETTER >= self.mean {
            (self.since_change, self.wait) = (0.0, (2.0 * self.wait).clamp(FIRST_WAIT, LONGEST_WAIT));
        } else if is_proof {
            (self.since_change, self.wait) = (0.0, FIRST_WAIT);
            (self.current, self.mean) = (threads, mean);
        } else {
            self.trial = Some(Trial { threads, tokens: 0, seconds: 0.0, is_proof: true });
        }
    }

    /// Starts a trial if the wait is over: with more threads if fewer than the maximum are in use, or with fewer
    /// threads if threads wait for a core.
    fn start_trial(&mut self, now: Instant, waited: impl FnOnce() -> Option<Duration>) {
        if self.since_change < self.wait {
            return;
        }
        let is_due = self.reading.is_none_or(|(last, _)| now.duration_since(last) >= READING);
        let is_contended = is_due && self.has_waited(now, waited);
        let step = (self.max / 8).max(1);
        let (fewer, more) = (is_contended && self.current > 1, self.current < self.max);
        let threads = match (fewer, more) {
            (true, true) if self.upward => self.current + step,
            (true, _) => self.current.saturating_sub(step),
            (false, true) => self.current + step,
            (false, false) => return,
        };
        let threads = threads.clamp(1, self.max);
        self.upward = threads < self.current;
        self.trial = Some(Trial { threads, tokens: 0, seconds: 0.0, is_proof: false });
    }

    /// Reads the time that threads spent waiting for a core. Returns true if the threads have spent a considerable
    /// share of their time waiting since the last reading.
    fn has_waited(&mut self, now: Instant, waited: impl FnOnce() -> Option<Duration>) -> bool {
        let waited = waited();
        let last = self.reading.replace((now, waited));
        let (Some((then, Some(before))), Some(waited)) = (last, waited) else { return false };
        let time = now.duration_since(then).as_secs_f64() * f64::from(self.current);
        waited.saturating_sub(before).as_secs_f64() > CONTENDED * time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Machine on which the time of a token depends on the number of threads.
    struct Machine {
        now: Instant,
        /// Seconds per token with 1, 2, … threads.
        seconds: Vec<f64>,
        /// Minimum number of threads with which threads wait for a core.
        contended_from: u32,
        waited: Duration,
        /// Seconds during which a new number of threads runs as fast as on an idle machine.
        favoured: f64,
    }

    impl Machine {
        fn new(seconds: &[f64], contended_from: u32) -> Self {
            Self {
                now: Instant::now(),
                seconds: seconds.to_vec(),
                contended_from,
                waited: Duration::ZERO,
                favoured: 0.0,
            }
        }

        /// Generates tokens for `time` seconds. Returns the mean time per token, relative to the best number of
        /// threads, and the share of tokens that each number evaluated.
        fn run(&mut self, count: &mut ThreadCount, time: f64) -> (f64, Vec<f64>) {
            let (mut all, mut tokens) = (0.0, 0.0);
            let mut used = vec![0.0; self.seconds.len()];
            let (mut last, mut since) = (0, 0.0);
            while all < time {
                let threads = count.for_next_token();
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
                let start = self.now;
                self.now += Duration::from_secs_f64(seconds);
                count.record_token(start, self.now, || Some(self.waited));
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
        let mut count = ThreadCount::new(4);
        let (_, used) = Machine::new(&[0.4, 0.2, 0.15, 0.1], u32::MAX).run(&mut count, 60.0);
        assert_eq!(used, [0.0, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn fewer_threads_are_used_if_they_are_faster_beside_other_programs() {
        for (seconds, name) in [([0.030, 0.041], "a busy core"), ([0.030, 0.110], "a lower priority")] {
            let mut count = ThreadCount::new(2);
            let (regret, used) = Machine::new(&seconds, 2).run(&mut count, 60.0);
            assert!(regret < 1.05, "{name}: {regret:.3} {used:?}");
        }
    }

    #[test]
    fn a_number_that_is_fast_only_at_first_is_not_kept() {
        let mut count = ThreadCount::new(2);
        let mut machine = Machine::new(&[0.026, 0.038], 2);
        machine.favoured = 0.2;
        let (regret, used) = machine.run(&mut count, 60.0);
        assert!(regret < 1.05, "{regret:.3} {used:?}");
    }

    #[test]
    fn all_threads_stay_if_they_are_faster_beside_other_programs() {
        let mut count = ThreadCount::new(2);
        let (regret, used) = Machine::new(&[0.050, 0.035], 1).run(&mut count, 60.0);
        assert!(regret < 1.03, "{regret:.3} {used:?}");
    }

    #[test]
    fn one_of_many_threads_makes_room_and_comes_back() {
        let mut count = ThreadCount::new(8);
        // With all eight threads, one of them shares its core with another program.
        let crowded = [0.08, 0.04, 0.03, 0.022, 0.018, 0.015, 0.013, 0.020];
        let (regret, used) = Machine::new(&crowded, 8).run(&mut count, 60.0);
        assert!(regret < 1.05 && used[6] > 0.9, "{regret:.3} {used:?}");
        let free = [0.08, 0.04, 0.03, 0.022, 0.018, 0.015, 0.013, 0.011];
        let (regret, used) = Machine::new(&free, u32::MAX).run(&mut count, 60.0);
        assert!(regret < 1.05 && used[7] > 0.8, "{regret:.3} {used:?}");
    }

    #[test]
    fn waiting_of_other_threads_between_tokens_starts_no_trial() {
        let mut count = ThreadCount::new(4);
        let mut machine = Machine::new(&[0.4, 0.2, 0.15, 0.1], u32::MAX);
        for _ in 0..50 {
            // A prompt in another context: its threads wait for 3 % of their time.
            machine.now += Duration::from_secs(2);
            machine.waited += Duration::from_millis(2000 * 4 * 3 / 100);
            let (_, used) = machine.run(&mut count, 0.1);
            assert_eq!(used, [0.0, 0.0, 0.0, 1.0]);
        }
    }

    #[test]
    fn without_a_reading_all_threads_are_used() {
        let mut count = ThreadCount::new(2);
        let mut now = Instant::now();
        for _ in 0..100 {
            assert_eq!(count.for_next_token(), 2);
            let start = now;
            now += Duration::from_millis(50);
            count.record_token(start, now, || None);
        }
        let mut alone = ThreadCount::new(1);
        alone.record_token(now, now + Duration::from_secs(1), || panic!("one thread needs no reading"));
        assert_eq!(alone.for_next_token(), 1);
    }
}
