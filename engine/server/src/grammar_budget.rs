//! Bound on the time for which the grammars of one client may keep others waiting.
//!
//! Tokens are chosen on the scheduler's thread, and a grammar may take [half a second](sampling) for each of them:
//! a request that takes a little less every time would let all others have two tokens a second. So what a client's
//! grammars hold others up for is added up, over a window that forgets: of a client that goes beyond it the request that
//! has held the most ends. That it sends the same again at once does not help it, since the sum is the client's.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::client::Client;

/// What a step takes beyond this counts. Usual ones take far less.
const STEP: Duration = Duration::from_millis(10);

/// What a client may hold others up for at once.
const AT_ONCE: Duration = Duration::from_secs(2);

/// What it may in the long run, as a part of the time.
const SHARE: f64 = 0.2;

/// Time for which the grammars of each client have kept others waiting.
#[derive(Debug, Default)]
pub struct GrammarBudget(HashMap<Client, ClientUsage>);

/// Time for which the grammars of a client have kept others waiting.
#[derive(Clone, Copy, Debug)]
struct ClientUsage {
    /// The part of it that is not forgotten.
    sum: Duration,
    at: Instant,
}

/// What of a step that took `time` counts.
pub fn counted(time: Duration) -> Duration {
    time.saturating_sub(STEP)
}

impl GrammarBudget {
    /// Adds that `client` held others up for `time` until `now`; whether that is too much.
    pub fn add(&mut self, client: &Client, time: Duration, now: Instant) -> bool {
        self.0.retain(|_, held| !held.at(now).is_zero());
        let held = self.0.entry(client.clone()).or_insert(ClientUsage { sum: Duration::ZERO, at: now });
        *held = ClientUsage { sum: held.at(now) + time, at: now };
        held.sum > AT_ONCE
    }
}

impl ClientUsage {
    /// What is left of it at `now`.
    fn at(self, now: Instant) -> Duration {
        self.sum.saturating_sub(now.saturating_duration_since(self.at).mul_f64(SHARE))
    }
}

/// Why a request ended that held others up for `held`.
pub fn why(held: Duration) -> String {
    format!(
        "grammars and schemas of this client kept other requests waiting for longer than they may ({} s at once, a fifth of \
         the time in the long run), and this request's the most: {:.1} s. Make it less ambiguous",
        AT_ONCE.as_secs(),
        held.as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_added_up_and_forgotten() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let (one, other) = (Client::Process { id: 1, user: 0 }, Client::Process { id: 2, user: 0 });
        let mut budget = GrammarBudget::default();
        let mut step = |client: &Client, now| budget.add(client, Duration::from_millis(490), at(now));
        // Four steps of nearly the longest are let, one more is too much; whoever else asks is not concerned.
        let all: Vec<bool> = (1..=5).map(|number| step(&one, number * 500)).collect();
        assert_eq!(all, [false, false, false, false, true]);
        assert!(!step(&other, 2500));
        // At once again: too much. A second later less than a step is forgotten, after three one is.
        assert!(step(&one, 3000));
        assert!(step(&one, 4000));
        // After a pause all of it.
        assert!(!step(&one, 30_000));
        assert_eq!(budget.0.len(), 1);
    }

    #[test]
    fn usual_steps_count_for_nothing() {
        assert_eq!(counted(Duration::from_millis(8)), Duration::ZERO);
        assert_eq!(counted(Duration::from_millis(110)), Duration::from_millis(100));
        let (mut budget, start) = (GrammarBudget::default(), Instant::now());
        // A step of a twentieth of a second each half second, for an hour.
        let all = (0..7200).map(|step| start + Duration::from_millis(500 * step));
        let over = |now| budget.add(&Client::Unknown, counted(Duration::from_millis(50)), now);
        assert!(all.map(over).all(|over| !over));
    }
}
