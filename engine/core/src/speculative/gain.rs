//! Decision whether drafts pay off: compares the time per token of steps with drafts and of steps without drafts, in
//! the same text.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

/// Number of steps without a draft that are measured before the first draft.
pub(super) const FIRST: usize = 8;

/// Number of recent steps without a draft that are compared. Older steps had a shorter context, so they were faster.
const RECENT: usize = 16;

/// Number of tokens after which one step runs without a draft, to update the comparison.
const AGAIN: usize = 32;

/// Number of tokens from steps with drafts that are judged together.
const WINDOW: usize = 32;

/// Number of consecutive losing windows that turn drafts off: a single loss may be due to a disturbance of the
/// machine.
const LOSSES: u32 = 2;

/// Source of the current time.
pub type Clock = Box<dyn Fn() -> Instant + Send>;

/// Measured loss, because of which drafts were turned off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// Number of tokens generated before drafts were turned off.
    pub after: usize,
    /// Tokens per second with drafts, in the last window.
    pub with: f64,
    /// Tokens per second without drafts.
    pub without: f64,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Loss { after, with, without } = self;
        write!(f, "turned off after {after} tokens: {with:.2} t/s with drafts, {without:.2} without")
    }
}

/// Measured times of steps with and without drafts.
pub struct Gain {
    clock: Clock,
    began: Option<Instant>,
    recent: VecDeque<Duration>,
    plain_steps: u32,
    plain_time: Duration,
    /// Number of tokens since the last step without a draft.
    since: usize,
    tokens: usize,
    window: (usize, Duration),
    /// Time that was spent on drafts outside of steps and is not counted yet.
    debt: Duration,
    lost: u32,
    loss: Option<Loss>,
}

impl Gain {
    /// Returns a new comparison that uses `clock`.
    pub fn new(clock: Clock) -> Self {
        Gain {
            clock,
            began: None,
            recent: VecDeque::with_capacity(RECENT),
            plain_steps: 0,
            plain_time: Duration::ZERO,
            since: 0,
            tokens: 0,
            window: (0, Duration::ZERO),
            debt: Duration::ZERO,
            lost: 0,
            loss: None,
        }
    }

    /// True if the next step may have a draft.
    pub fn lets_draft(&self) -> bool {
        self.loss.is_none() && self.recent.len() >= FIRST && self.since < AGAIN
    }

    /// Returns the loss that turned drafts off; `None` while they are on.
    pub fn loss(&self) -> Option<Loss> {
        self.loss
    }

    /// Returns the tokens per second over all steps without a draft.
    pub fn without(&self) -> Option<f64> {
        (self.plain_steps > 0 && !self.plain_time.is_zero())
            .then(|| f64::from(self.plain_steps) / self.plain_time.as_secs_f64())
    }

    /// Starts the time of a step.
    pub fn begin(&mut self) {
        self.began = Some((self.clock)());
    }

    /// Counts `time` that was spent on drafts outside of steps, such as evaluating a prompt with the draft model.
    pub fn charge(&mut self, time: Duration) {
        self.debt += time;
    }

    /// Ends a step without a draft, if no time was spent on looking for a draft.
    pub fn end_plain(&mut self) {
        self.end_plain_of(1);
    }

    /// Ends a step without a draft that generated `tokens` tokens, one for each of several texts.
    pub fn end_plain_of(&mut self, tokens: usize) {
        let Some(time) = self.took() else { return };
        let time = time / u32::try_from(tokens.max(1)).unwrap_or(u32::MAX);
        self.tokens += tokens;
        self.since = 0;
        self.plain_steps += 1;
        self.plain_time += time;
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(time);
    }

    /// Ends a step that had a draft, or spent time on looking for a draft, and generated `tokens` tokens.
    pub fn end_drafted(&mut self, tokens: usize) {
        let Some(time) = self.took() else { return };
        self.tokens += tokens;
        self.since += tokens;
        self.window = (self.window.0 + tokens, self.window.1 + time);
        let (tokens, time) = self.window;
        if tokens < WINDOW {
            return;
        }
        self.window = (0, Duration::ZERO);
        // A one-time cost is spread over many steps: the time of a window at most doubles.
        let paid = self.debt.min(time);
        self.debt -= paid;
        let time = time + paid;
        let without = self.median().as_secs_f64();
        let with = time.as_secs_f64() / tokens as f64;
        self.lost = if with > without { self.lost + 1 } else { 0 };
        if self.lost == LOSSES {
            self.loss = Some(Loss { after: self.tokens, with: 1.0 / with, without: 1.0 / without });
        }
    }

    fn took(&mut self) -> Option<Duration> {
        Some((self.clock)().saturating_duration_since(self.began.take()?))
    }

    /// Returns the median time of the recent steps without a draft, so that a single disturbed step does not count.
    fn median(&self) -> Duration {
        let mut times: Vec<Duration> = self.recent.iter().copied().collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Returns a comparison with a clock that advances only on request.
    fn gain() -> (Gain, impl Fn(u64)) {
        let (now, begin) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let hands = Arc::clone(&now);
        let clock = move || begin + Duration::from_micros(hands.load(Ordering::Relaxed));
        (Gain::new(Box::new(clock)), move |microseconds| {
            now.fetch_add(microseconds, Ordering::Relaxed);
        })
    }

    /// Runs steps until `tokens` tokens are generated. A step without a draft takes 100 µs; one with a draft
    /// generates `each` tokens in `cost` µs.
    fn run(gain: &mut Gain, wait: &impl Fn(u64), tokens: usize, each: usize, cost: u64) -> usize {
        let mut drafted = 0;
        let end = gain.tokens + tokens;
        while gain.tokens < end {
            let drafts = gain.lets_draft();
            gain.begin();
            wait(if drafts { cost } else { 100 });
            match drafts {
                true => gain.end_drafted(each),
                false => gain.end_plain(),
            }
            drafted += usize::from(drafts);
        }
        drafted
    }

    #[test]
    fn it_goes_on_while_it_wins_and_still_looks_at_steps_without() {
        let (mut gain, wait) = gain();
        run(&mut gain, &wait, 1000, 3, 200);
        assert_eq!(gain.loss(), None);
        assert!((9999.0..10_001.0).contains(&gain.without().expect("measured")), "{:?}", gain.without());
        assert!(gain.plain_steps as usize > FIRST + 20, "{} steps to compare with", gain.plain_steps);
    }

    #[test]
    fn what_is_spent_outside_of_steps_counts() {
        // A step gives three tokens in 200 µs, which would take 300 µs without drafts: a window of 33 tokens takes
        // 2,200 µs and gains 1,100 µs.
        for (cost, lost) in [(0, false), (3_000, false), (10_000, true)] {
            let (mut gain, wait) = gain();
            run(&mut gain, &wait, 500, 3, 200);
            gain.charge(Duration::from_micros(cost));
            run(&mut gain, &wait, 500, 3, 200);
            assert_eq!(gain.loss().is_some(), lost, "{cost} µs");
        }
    }

    #[test]
    fn it_ends_when_two_windows_are_lost() {
        let (mut gain, wait) = gain();
        assert_eq!(run(&mut gain, &wait, FIRST, 1, 0), 0, "nothing is drafted before anything is measured");
        run(&mut gain, &wait, 1000, 1, 250);
        let loss = gain.loss().expect("it lost");
        assert!(loss.after <= FIRST + 2 * WINDOW + 4, "{loss:?}");
        assert_eq!(
            loss.to_string(),
            format!("turned off after {} tokens: 4000.00 t/s with drafts, 10000.00 without", loss.after)
        );
        assert_eq!(run(&mut gain, &wait, 500, 1, 0), 0, "it drafts on");
    }

    #[test]
    fn one_bad_window_is_forgiven() {
        let (mut gain, wait) = gain();
        run(&mut gain, &wait, 100, 4, 200);
        for _ in 0..5 {
            run(&mut gain, &wait, 10, 1, 300);
            run(&mut gain, &wait, 3 * WINDOW, 4, 200);
        }
        assert_eq!(gain.loss(), None);
    }

    #[test]
    fn as_fast_is_no_loss() {
        let (mut gain, wait) = gain();
        run(&mut gain, &wait, 2000, 2, 200);
        assert_eq!(gain.loss(), None);
    }
}
