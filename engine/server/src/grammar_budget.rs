//! Limits how long the grammars of one client may delay other clients.
//!
//! Tokens are sampled on the scheduler's thread, and a grammar may take [half a second](sampling) per token. A request
//! that takes just under half a second for every token would limit all other requests to two tokens per second.
//! Therefore the delays that a client's grammars cause are summed, and the sum decays over time. If a client exceeds
//! the limit, its request with the largest delay is ended. A retry does not help, because the sum belongs to the
//! client.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::client::Client;

/// Time of each sampling step that does not count as a delay. Normal steps are far shorter.
const STEP: Duration = Duration::from_millis(10);

/// Maximum sum of delays.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Rate at which the sum decays. In the long run, a client may delay others for this share of the time.
const SHARE: f64 = 0.2;

/// Time by which each client's grammars have delayed other clients.
#[derive(Debug, Default)]
pub struct GrammarBudget(HashMap<Client, ClientUsage>);

/// Decaying sum of the delays that one client caused.
#[derive(Clone, Copy, Debug)]
struct ClientUsage {
    /// Sum at the time `at`.
    sum: Duration,
    at: Instant,
}

/// Returns the part of a step of length `time` that counts as a delay.
pub fn counted(time: Duration) -> Duration {
    time.saturating_sub(STEP)
}

impl GrammarBudget {
    /// Adds a delay of length `time` that `client` caused and that ended at `now`. Returns true if the client exceeds
    /// its limit.
    pub fn add(&mut self, client: &Client, time: Duration, now: Instant) -> bool {
        self.0.retain(|_, held| !held.at(now).is_zero());
        let held = self.0.entry(client.clone()).or_insert(ClientUsage { sum: Duration::ZERO, at: now });
        *held = ClientUsage { sum: held.at(now) + time, at: now };
        held.sum > AT_ONCE
    }
}

impl ClientUsage {
    /// Returns the decayed sum at `now`.
    fn at(self, now: Instant) -> Duration {
        self.sum.saturating_sub(now.saturating_duration_since(self.at).mul_f64(SHARE))
    }
}

/// Returns the reason for ending a request that delayed others by `held`.
pub fn why(held: Duration) -> String {
    format!(
        "the grammars and schemas of this client delayed other requests for too long (limit: {} s at once, or a \
        fifth of the time in the long run); this request caused the longest delay ({:.1} s): make its grammar or \
        schema less ambiguous",
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
        // Four steps stay just below the limit, and a fifth step exceeds the limit. Other clients are not affected.
        let all: Vec<bool> = (1..=5).map(|number| step(&one, number * 500)).collect();
        assert_eq!(all, [false, false, false, false, true]);
        assert!(!step(&other, 2500));
        // An immediate retry exceeds the limit. One second is too short for the delay of one step to decay, and three
        // seconds are long enough.
        assert!(step(&one, 3000));
        assert!(step(&one, 4000));
        // After a long pause, the whole sum has decayed.
        assert!(!step(&one, 30_000));
        assert_eq!(budget.0.len(), 1);
    }

    #[test]
    fn usual_steps_count_for_nothing() {
        assert_eq!(counted(Duration::from_millis(8)), Duration::ZERO);
        assert_eq!(counted(Duration::from_millis(110)), Duration::from_millis(100));
        let (mut budget, start) = (GrammarBudget::default(), Instant::now());
        // A step of 50 ms is added every 500 ms, for an hour.
        let all = (0..7200).map(|step| start + Duration::from_millis(500 * step));
        let over = |now| budget.add(&Client::Unknown, counted(Duration::from_millis(50)), now);
        assert!(all.map(over).all(|over| !over));
    }
}
