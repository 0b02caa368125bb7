//! Selection of the rounds of a race that are counted.

use crate::anchor::{Anchor, Judgement};

/// Judge of a race's rounds by its anchor. A round with a disturbed anchor is measured again. The number of repeated
/// rounds is limited, so that a race also ends on a machine that never settles.
#[derive(Clone, Debug)]
pub struct Referee {
    anchor: Anchor,
    repeats: usize,
    repeated: usize,
}

/// Decision on a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// The round is used.
    Counts,
    /// The round is used, and the machine now has a new level; see [`Judgement::NewLevel`].
    NewLevel,
    /// The round is discarded and must be measured again.
    Again,
}

impl Referee {
    /// Creates a referee that allows `repeats` repeated rounds.
    pub fn new(repeats: usize) -> Self {
        Self { anchor: Anchor::new(), repeats, repeated: 0 }
    }

    /// Judges a round by its anchor value. A round without an anchor value never counts, because a value of the round
    /// was not a positive number.
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
