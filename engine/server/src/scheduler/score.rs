//! Log-probabilities of prompt tokens, for requests that ask for them.
//!
//! The logits of all prompt tokens would take gigabytes. Therefore each batch has only as many prompt tokens as the
//! context has rows of logits. The scheduler reduces the rows to a few numbers before the next batch.

use std::sync::Arc;

use engine_core::generate::has_nan;
use llama::Token;
use llama::error::{Error, Result};

use super::super::plan::BatchPart;
use super::state::Scheduler;
use crate::logprobs::{Likelihood, ScoredToken};

/// Row of logits that determines the probability of a prompt token.
#[derive(Clone, Copy)]
pub(super) struct ScoreRow {
    /// Index of the slot.
    pub slot: usize,
    /// Token whose probability the row determines.
    pub next: Token,
    /// Index of the row.
    pub row: i32,
}

impl Scheduler {
    /// True if the request in slot `at` still needs log-probabilities of its prompt.
    pub(super) fn is_scoring(&self, at: usize) -> bool {
        self.slots[at].run.as_ref().is_some_and(|run| run.next.is_none() && run.is_scoring())
    }

    /// Shortens the parts of requests that need a row of logits for each token, so that the rows suffice. Each part
    /// keeps at least one token.
    pub(super) fn limit_rows(&self, parts: &mut [BatchPart]) {
        // Every part may need one row to sample a token.
        let mut left = self.context.rows().saturating_sub(parts.len() as u32);
        for part in parts.iter_mut().filter(|part| self.is_scoring(part.slot)) {
            let more = part.tokens.saturating_sub(1).min(left);
            part.tokens = 1 + more;
            left -= more;
        }
    }

    /// Computes the log-probabilities that `rows` determine, and sends them. Rows of the same slot are adjacent.
    pub(super) fn score(&mut self, rows: &[ScoreRow]) {
        for rows in rows.chunk_by(|one, other| one.slot == other.slot) {
            let at = rows[0].slot;
            match self.scores(at, rows) {
                Ok(scores) => {
                    if let Some(run) = &mut self.slots[at].run {
                        run.send_scores(scores);
                    }
                }
                Err(error) => self.fail(at, &error),
            }
        }
    }

    fn scores(&mut self, at: usize, rows: &[ScoreRow]) -> Result<Vec<ScoredToken>> {
        let top = self.slots[at].run.as_ref().and_then(|run| run.job.logprobs).unwrap_or(0);
        let model = Arc::clone(self.context.model());
        let score = |row: &ScoreRow| {
            let logits = self.context.logits_at(row.row)?;
            if has_nan(logits) {
                return Err(Error::NotANumber);
            }
            Ok(ScoredToken::Next(Likelihood::new(logits, row.next, top, &model)?))
        };
        rows.iter().map(score).collect()
    }
}
