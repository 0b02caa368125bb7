//! Decides which rounds of a race count.

use crate::anchor::{Anchor, Judgement};

/// Watches the anchor of a race: a round in which it was disturbed is measured again, but no more than a given number of
/// times, or a machine that never rests would never finish.
#[derive(Clone, Debug)]
pub struct Referee {
    anchor: Anchor,
    repeats: usize,
    repeated: usize,
}

/// Decision on a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// The round counts.
    Counts,
    /// The round counts, and from here on the machine is another; see [`Judgement::NewLevel`].
    NewLevel,
    /// The round does not count and is to be measured again.
    Again,
}

impl Referee {
    /// Allows for `repeats` repeated rounds.
    pub fn new(repeats: usize) -> Self {
        Self { anchor: Anchor::new(), repeats, repeated: 0 }
    }

    /// Judges a round by the value of its anchor. A round without one, whose values are no positive numbers, never counts.
    pub fn judge(&mut self, anchor: Option<f64>) -> Call {
        let judgement = anchor.map_or(Judgement::Disturbed, |value| self.anchor.judge(value));
        match judgement {
            Judgement::Disturbed if anchor.is_none() || self.repeated < self.repeats => {
                self.repeated += 1;
                Call::Again
            }
            Judgement::NewLevel => Call::NewLevel,
            Judgement::Disturbed | Judgement::Steady => Call::Counts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disturbed_rounds_are_repeated_until_the_limit() {
        let mut referee = Referee::new(1);
        for value in [100.0, 101.0, 99.0, 100.5] {
            assert_eq!(referee.judge(Some(value)), Call::Counts);
        }
        let calls = [Some(60.0), Some(100.0), Some(170.0), None].map(|value| referee.judge(value));
        assert_eq!(calls, [Call::Again, Call::Counts, Call::Counts, Call::Again]);
    }
}
