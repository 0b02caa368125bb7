//! Drafting state of the scheduler: the draft model, and measurements of its benefit.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use engine_core::speculative::{DraftModel, Gain, Sameness};
use llama::error::{Error, Result};
use llama::{Context, SequenceId, Token};

/// Drafting state of the scheduler.
pub(super) struct Drafts {
    /// Draft model, if one is configured.
    pub(super) model: Option<Box<DraftModel>>,
    /// Measured time for the draft model to read a token.
    pub(super) seconds_per_token: Option<f64>,
    pub(super) sameness: Sameness,
    /// Measurements for each class of steps. Drafts slow down a batch for all slots, and the draft model takes time.
    pub(super) gains: HashMap<StepClass, StepTimes>,
    /// Class of the step that is being measured. `None` if the step includes prompts.
    pub(super) measured: Option<StepClass>,
    /// True if the draft model was used in this step.
    pub(super) asked: bool,
    /// True if the user has been told why drafts are not used.
    pub(super) told: bool,
    /// True if the next step must not use drafts, because the last batch with drafts did not fit.
    pub(super) rests: bool,
}

/// Class of comparable steps: the number of generating slots, and whether the draft model drafts for any of them.
pub(super) type StepClass = (usize, bool);

/// Time for which drafts are turned off after they made decoding slower. Each further loss doubles the time. The
/// cause may be temporary, for example a busy machine or an unpredictable text.
const REST: Duration = Duration::from_secs(60);

/// Maximum time for which drafts are turned off.
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// Measurements of a class of steps.
pub(super) struct StepTimes {
    pub(super) gain: Gain,
    /// Number of times that drafts made decoding slower. `again` is the time of the next attempt.
    pub(super) losses: u32,
    pub(super) again: Option<Instant>,
}

impl StepTimes {
    pub(super) fn new() -> Self {
        StepTimes { gain: Gain::new(Box::new(Instant::now)), losses: 0, again: None }
    }

    /// Starts a new measurement if the pause is over.
    pub(super) fn wake(&mut self, now: Instant) {
        if self.again.is_some_and(|again| again <= now) {
            *self = StepTimes { losses: self.losses, ..StepTimes::new() };
        }
    }

    /// Records a loss. Returns the length of the pause.
    pub(super) fn rest(&mut self, now: Instant) -> Duration {
        let rest = REST.saturating_mul(1 << self.losses.min(6)).min(LONGEST_REST);
        self.losses += 1;
        self.again = Some(now + rest);
        rest
    }
}

impl Drafts {
    pub(super) fn new(context: &Context) -> Self {
        Drafts {
            model: None,
            seconds_per_token: None,
            sameness: Sameness::new(context.model()),
            gains: HashMap::new(),
            measured: None,
            asked: false,
            told: false,
            rests: false,
        }
    }

    /// Tells the user once why drafts are not used.
    pub(super) fn tell(&mut self, why: &'static str) {
        if !std::mem::replace(&mut self.told, true) {
            llama::notice::warn(&format!("speculative decoding: {why}"));
        }
    }

    /// Truncates the draft model's tokens of `sequence` to the prefix that they share with `tokens`.
    pub(super) fn trim(&mut self, sequence: SequenceId, tokens: &[Token]) {
        if let Some(model) = &mut self.model {
            model.trim(sequence, tokens);
        }
    }

    /// Sets the thread counts of the draft model to the large model's counts. The large model waits while the draft
    /// model runs.
    pub(super) fn set_threads(&mut self, (decode, prefill): (u32, u32)) {
        if let Some(model) = &mut self.model {
            model.set_threads(decode, prefill);
        }
    }

    /// Unwraps `done`, a result of the draft model. An error turns off the draft model and has no other effect. Only an
    /// interruption is returned as an error.
    pub(super) fn taken<T>(&mut self, done: Result<T>) -> Result<Option<T>> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(why) => {
                self.model = None;
                llama::notice::warn(&format!("the draft model is turned off: {why}"));
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
