//! Whether drafts pay: the time of steps with them against that of steps without, in the same text.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

/// Steps without a draft that are measured before the first draft.
pub(super) const FIRST: usize = 8;

/// The last of them that count: a longer context is slower.
const RECENT: usize = 16;

/// Tokens after which one step goes without a draft, so that there is something to compare with.
const AGAIN: usize = 32;

/// Tokens of steps with drafts that are judged together.
const WINDOW: usize = 32;

/// Windows in a row that must be lost: one may be the machine's fault.
const LOSSES: u32 = 2;

/// Tells the time.
pub type Clock = Box<dyn Fn() -> Instant + Send>;

/// Why there are no more drafts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// Tokens generated until then.
    pub after: usize,
    /// Tokens a second with drafts, in the last window.
    pub with: f64,
    /// Without.
    pub without: f64,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Loss { after, with, without } = self;
        write!(f, "turned off after {after} tokens: {with:.2} t/s with drafts, {without:.2} without")
    }
}

/// What was measured.
pub struct Gain {
    clock: Clock,
    began: Option<Instant>,
    recent: VecDeque<Duration>,
    plain_steps: u32,
    plain_time: Duration,
    /// Tokens since the last step without a draft.
    since: usize,
    tokens: usize,
    window: (usize, Duration),
    /// What was spent for drafts outside of steps, and has yet to be counted.
    debt: Duration,
    lost: u32,
    loss: Option<Loss>,
}

impl Gain {
    /// Returns a judge of drafts that measures by `clock`.
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

    /// Whether the next step may have a draft.
    pub fn lets_draft(&self) -> bool {
        self.loss.is_none() && self.recent.len() >= FIRST && self.since < AGAIN
    }

    /// Why there are no more drafts, if there are none.
    pub fn loss(&self) -> Option<Loss> {
        self.loss
    }

    /// Tokens a second of all steps without a draft.
    pub fn without(&self) -> Option<f64> {
        (self.plain_steps > 0 && !self.plain_time.is_zero())
            .then(|| f64::from(self.plain_steps) / self.plain_time.as_secs_f64())
    }

    /// A step begins.
    pub fn begin(&mut self) {
        self.began = Some((self.clock)());
    }

    /// Counts `time` that was spent for drafts outside of steps: in reading a text that is drafted for.
    pub fn charge(&mut self, time: Duration) {
        self.debt += time;
    }

    /// It has no draft, and looking for one took no time.
    pub fn end_plain(&mut self) {
        self.end_plain_of(1);
    }

    /// The same of a step that gave `tokens` tokens, one for each of several texts.
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

    /// It had one, or looking for one took time, and gave `tokens` tokens.
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
        // As much again at most: what was spent once is to be earned by many steps.
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

    /// Of the recent steps without a draft: one that was disturbed does not count.
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

    /// A clock that stands still until it is told to go on.
    fn gain() -> (Gain, impl Fn(u64)) {
        let (now, begin) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let hands = Arc::clone(&now);
        let clock = move || begin + Duration::from_micros(hands.load(Ordering::Relaxed));
        (Gain::new(Box::new(clock)), move |microseconds| {
            now.fetch_add(microseconds, Ordering::Relaxed);
        })
    }

    /// Steps until `tokens` tokens are there: one without a draft takes 100 µs, one with a draft gives `each` tokens in
    /// `cost` µs.
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
        // Three tokens in 200 µs, where 300 are taken without: a window of 33 tokens takes 2,200 and earns 1,100.
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
