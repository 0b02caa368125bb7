//! Report on the drafts of a text, for the user.

use std::fmt;
use std::time::Duration;

use llama::options::Drafts;
use serde_json::{Value, json};

use super::gain::Loss;

/// Statistics of the drafts of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftReport {
    /// Source of the drafts.
    pub drafts: Drafts,
    /// Number of batches with a draft.
    pub steps: usize,
    /// Number of drafted tokens.
    pub drafted: usize,
    /// Number of drafted tokens that were accepted.
    pub accepted: usize,
    /// Number of positions at which the two best tokens were too close to decide from a batch, so that the token was
    /// evaluated as a single token.
    pub near_ties: usize,
    /// Time for comparing batches with single tokens.
    pub looking: Duration,
    /// Time in which the smaller model evaluated the prompt.
    pub prompt: Duration,
    /// Tokens per second of the steps without a draft.
    pub without: Option<f64>,
    /// Tokens per second of all steps.
    pub with: Option<f64>,
    /// Loss that turned drafts off; `None` if they stayed on.
    pub loss: Option<Loss>,
    /// Reason why drafts were not used at all, or not at every position.
    pub paused: Option<&'static str>,
}

/// Message if, for this model and CPU, batches and single tokens give different logits.
pub const DIFFERS: &str = "on this machine, batches of some sizes round differently from single tokens, so drafts of \
                           these sizes are not used; use -ctk bf16 -ctv bf16, which removes the difference for quantised \
                           weights, or draft anyway with --draft-near";

/// Message for a mixture-of-experts model.
pub const MIXTURE: &str = "in a mixture-of-experts model, a batch can round differently from single tokens, so \
                           no tokens were drafted; draft anyway with --draft-near";

/// Message for a model with a recurrent state. The server continues without drafts.
pub const NOT_TAKEN_BACK: &str = "rejected draft tokens cannot be removed from this model's recurrent state, \
                                  so no tokens are drafted";

impl DraftReport {
    pub(super) fn new(drafts: Drafts) -> Self {
        DraftReport {
            drafts,
            steps: 0,
            drafted: 0,
            accepted: 0,
            near_ties: 0,
            looking: Duration::ZERO,
            prompt: Duration::ZERO,
            without: None,
            with: None,
            loss: None,
            paused: None,
        }
    }

    /// Returns the fraction of the drafted tokens that were accepted.
    pub fn acceptance(&self) -> Option<f64> {
        (self.drafted > 0).then(|| self.accepted as f64 / self.drafted as f64)
    }

    /// Returns the speed of all steps, including the time for comparing and drafting, divided by the speed of the
    /// steps without a draft.
    pub fn gain(&self) -> Option<f64> {
        self.with.zip(self.without).map(|(with, without)| with / without)
    }

    /// Returns the report as JSON.
    pub fn to_json(&self) -> Value {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        json!({
            "drafts": self.drafts.name(),
            "steps": self.steps,
            "drafted_tokens": self.drafted,
            "accepted_tokens": self.accepted,
            "acceptance": self.acceptance(),
            "near_ties": self.near_ties,
            "looking_ms": milliseconds(self.looking),
            "draft_prompt_ms": milliseconds(self.prompt),
            "tokens_per_second_without": self.without,
            "tokens_per_second_with": self.with,
            "gain": self.gain(),
            "turned_off": self.loss.map(|loss| loss.to_string()),
            "paused": self.paused,
        })
    }
}

impl fmt::Display for DraftReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} drafts ({})", self.steps, self.drafts)?;
        if let Some(acceptance) = self.acceptance() {
            let percent = acceptance * 100.0;
            write!(f, ", {} of {} tokens accepted ({percent:.0} %)", self.accepted, self.drafted)?;
        }
        if let (Some(gain), Some(with), Some(without)) = (self.gain(), self.with, self.without) {
            write!(f, ", {with:.2} t/s, {without:.2} without: x{gain:.2}")?;
        }
        if self.near_ties > 0 {
            write!(f, ", {} near ties evaluated as single tokens", self.near_ties)?;
        }
        if let Some(loss) = &self.loss {
            write!(f, "; {loss}")?;
        }
        if let Some(paused) = self.paused {
            write!(f, "; {paused}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_there_is() {
        let mut report = DraftReport::new(Drafts::Lookup);
        assert_eq!(report.to_string(), "0 drafts (lookup)");
        assert_eq!(report.to_json()["gain"], Value::Null);
        report.steps = 4;
        (report.drafted, report.accepted) = (12, 9);
        (report.with, report.without) = (Some(30.0), Some(20.0));
        assert_eq!(
            report.to_string(),
            "4 drafts (lookup), 9 of 12 tokens accepted (75 %), 30.00 t/s, 20.00 without: x1.50"
        );
        report.loss = Some(Loss { after: 80, with: 15.0, without: 20.0 });
        report.near_ties = 1;
        let text = report.to_string();
        assert!(
            text.ends_with(
                "1 near ties evaluated as single tokens; turned off after 80 tokens: 15.00 t/s with drafts, 20.00 \
                 without"
            ),
            "{text}"
        );
        assert_eq!(report.to_json()["acceptance"], 0.75);
    }
}
