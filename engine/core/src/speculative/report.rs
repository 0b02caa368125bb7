//! What drafts brought, for a user to read.

use std::fmt;
use std::time::Duration;

use llama::options::Drafts;
use serde_json::{Value, json};

use super::gain::Loss;

/// What became of the drafts of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftReport {
    /// Where they came from.
    pub drafts: Drafts,
    /// Batches with a draft.
    pub steps: usize,
    /// Tokens that were drafted.
    pub drafted: usize,
    /// Of these, those that were chosen.
    pub accepted: usize,
    /// Places where two tokens were too near to each other to decide by a batch, and one was evaluated alone.
    pub near_ties: usize,
    /// Time for looking whether batches give the same bits.
    pub looking: Duration,
    /// Time in which the smaller model evaluated the prompt.
    pub prompt: Duration,
    /// Tokens a second of the steps without a draft.
    pub without: Option<f64>,
    /// Tokens a second of all together.
    pub with: Option<f64>,
    /// Why it turned itself off, if it did.
    pub loss: Option<Loss>,
    /// Why it did not draft, or not everywhere.
    pub paused: Option<&'static str>,
}

/// Said where a batch gives other bits.
pub const DIFFERS: &str = "here a batch of tokens rounds otherwise than single tokens do, and nothing was drafted where it \
     does: for weights that are quantised -ctk bf16 -ctv bf16 mends that where it is not set, and --draft-near drafts all the same";

/// Said of a mixture of experts.
pub const MIXTURE: &str = "in a mixture of experts a batch may round otherwise than single tokens do, and nothing was drafted: \
     --draft-near drafts all the same";

/// Said by a server, which goes on without drafts.
pub const NOT_TAKEN_BACK: &str = "this model keeps a state that all tokens change (it is recurrent, or in part), a draft that \
     turns out wrong could not be taken out of it again, and nothing is drafted";

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

    /// Share of the drafted tokens that were chosen.
    pub fn acceptance(&self) -> Option<f64> {
        (self.drafted > 0).then(|| self.accepted as f64 / self.drafted as f64)
    }

    /// Speed of the whole, looking and drafting included, over that of the steps without a draft.
    pub fn gain(&self) -> Option<f64> {
        self.with.zip(self.without).map(|(with, without)| with / without)
    }

    /// For a result in JSON.
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
            write!(f, ", {} near ties decided alone", self.near_ties)?;
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
                "1 near ties decided alone; turned off after 80 tokens: 15.00 t/s with drafts, 20.00 without"
            ),
            "{text}"
        );
        assert_eq!(report.to_json()["acceptance"], 0.75);
    }
}
