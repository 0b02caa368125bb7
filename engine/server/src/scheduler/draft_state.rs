//! State of the scheduler's drafts: the smaller model, and what was measured with it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use engine_core::speculative::{self, DraftModel, Gain, Sameness};
use llama::error::{Error, Result};
use llama::{Context, SequenceId, Token};

use super::rules::Rules;

/// What the scheduler knows of drafts.
pub(super) struct Drafts {
    /// The smaller model, if there is one.
    pub(super) model: Option<Box<DraftModel>>,
    /// What it takes to read a token.
    pub(super) seconds_per_token: Option<f64>,
    pub(super) sameness: Sameness,
    /// For each number of slots that generate, and whether the smaller model drafts for any: batches of more are slower for
    /// all, and its drafts take time.
    pub(super) gains: HashMap<StepClass, StepTimes>,
    /// The step that is being measured; nothing where prompts are in it too.
    pub(super) measured: Option<StepClass>,
    /// Whether the smaller model was asked in it.
    pub(super) asked: bool,
    /// Why nothing can be drafted at all, if that is so.
    pub(super) impossible: Option<&'static str>,
    /// Whether it was said why there are no drafts.
    pub(super) told: bool,
    /// Whether the next step goes without: there was no room.
    pub(super) rests: bool,
}

/// What is alike of steps that are compared: how many slots generate, and whether the smaller model drafts for any.
pub(super) type StepClass = (usize, bool);

/// How long drafts that lost are left out, at first; twice as long after each further loss. A busy minute of the machine, or one
/// text that nobody could guess, is no reason to do without for ever.
const REST: Duration = Duration::from_secs(60);

/// The longest.
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// What is measured of steps that are alike.
pub(super) struct StepTimes {
    pub(super) gain: Gain,
    /// Losses so far, and when it is tried again.
    pub(super) losses: u32,
    pub(super) again: Option<Instant>,
}

impl StepTimes {
    pub(super) fn new() -> Self {
        StepTimes { gain: Gain::new(Box::new(Instant::now)), losses: 0, again: None }
    }

    /// Begins anew where it has rested for long enough.
    pub(super) fn wake(&mut self, now: Instant) {
        if self.again.is_some_and(|again| again <= now) {
            *self = StepTimes { losses: self.losses, ..StepTimes::new() };
        }
    }

    /// Notes that it lost; says how long it rests.
    pub(super) fn rest(&mut self, now: Instant) -> Duration {
        let rest = REST.saturating_mul(1 << self.losses.min(6)).min(LONGEST_REST);
        self.losses += 1;
        self.again = Some(now + rest);
        rest
    }
}

impl Drafts {
    pub(super) fn new(context: &Context, rules: &Rules) -> Self {
        Drafts {
            model: None,
            seconds_per_token: None,
            sameness: Sameness::default(),
            gains: HashMap::new(),
            measured: None,
            asked: false,
            impossible: speculative::impossible(context.model(), rules.drafts.near),
            told: false,
            rests: false,
        }
    }

    /// Says once why there are no drafts.
    pub(super) fn tell(&mut self, why: &'static str) {
        if !std::mem::replace(&mut self.told, true) {
            llama::notice::warn(&format!("speculative decoding: {why}"));
        }
    }

    /// Forgets what the smaller model holds of `sequence` beyond what it has in common with `tokens`.
    pub(super) fn trim(&mut self, sequence: SequenceId, tokens: &[Token]) {
        if let Some(model) = &mut self.model {
            model.trim(sequence, tokens);
        }
    }

    /// Threads of the smaller model, those of the large one, which waits meanwhile.
    pub(super) fn set_threads(&mut self, (decode, prefill): (u32, u32)) {
        if let Some(model) = &mut self.model {
            model.set_threads(decode, prefill);
        }
    }

    /// What the smaller model has `done`. An error of it ends its drafts, and nothing else.
    pub(super) fn taken<T>(&mut self, done: Result<T>) -> Result<Option<T>> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(why) => {
                self.model = None;
                llama::notice::warn(&format!("the smaller model drafts no more: {why}"));
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lost_is_tried_again_after_a_rest_that_grows() {
        let (mut measured, begin) = (StepTimes::new(), Instant::now());
        let mut rests = Vec::new();
        for _ in 0..9 {
            let rest = measured.rest(begin);
            rests.push(rest.as_secs());
            measured.wake(begin + rest - Duration::from_millis(1));
            assert!(measured.again.is_some(), "too early");
            measured.wake(begin + rest);
            assert!(measured.again.is_none(), "not tried again");
        }
        assert_eq!(rests, [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]);
    }
}
