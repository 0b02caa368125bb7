//! How likely tokens were, for whoever asks: log-probabilities of the model's own logits, before any sampler.

use llama::error::Result;
use llama::{Model, Token};
use serde_json::{Value, json};

/// Most alternatives that are told of a token.
pub const MOST: u32 = 20;

/// What stands for a probability of nothing, as at OpenAI: JSON has no infinity.
const NEVER: f32 = -9999.0;

/// A token and how likely it was.
#[derive(Clone, Debug, PartialEq)]
pub struct Likely {
    /// The token.
    pub token: Token,
    /// Its bytes, often less than a character; the name of one that is no text.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// The token that was chosen, and the most likely ones, the best first.
#[derive(Clone, Debug, PartialEq)]
pub struct Likelihood {
    /// The one that was chosen.
    pub chosen: Likely,
    /// As many as were asked for.
    pub top: Vec<Likely>,
}

impl Likelihood {
    /// How likely `chosen` was by `logits`, one for each token of `model`'s vocabulary, and the `top` most likely ones.
    pub fn new(logits: &[f32], chosen: Token, top: u32, model: &Model) -> Result<Self> {
        let (greatest, rest) = norm(logits);
        let likely = |token: Token, logit: f32| -> Result<Likely> {
            let mut bytes = Vec::new();
            model.piece_with(token, true, &mut bytes)?;
            Ok(Likely { token, bytes, logprob: (logit - greatest - rest).max(NEVER) })
        };
        let of_chosen = usize::try_from(chosen).ok().and_then(|at| logits.get(at)).copied();
        Ok(Likelihood {
            chosen: likely(chosen, of_chosen.unwrap_or(f32::NEG_INFINITY))?,
            top: best(logits, top as usize)
                .into_iter()
                .map(|(token, logit)| likely(token, logit))
                .collect::<Result<_>>()?,
        })
    }

    /// For a line of JSON.
    pub fn to_json(&self) -> Value {
        json!({ "token": self.chosen.token, "logprob": self.chosen.logprob, "top": self.top_json() })
    }

    /// The most likely ones for a line of JSON.
    pub fn top_json(&self) -> Value {
        let one = |likely: &Likely| {
            let text = String::from_utf8_lossy(&likely.bytes);
            json!({ "token": likely.token, "text": text, "logprob": likely.logprob })
        };
        self.top.iter().map(one).collect()
    }
}

/// The greatest of `logits`, and what the logarithm of the sum of what they are logarithms of is above it: in two, so that
/// nothing is too large for a number.
fn norm(logits: &[f32]) -> (f32, f32) {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !greatest.is_finite() {
        return (greatest, 0.0);
    }
    let sum: f64 = logits.iter().map(|logit| f64::from((logit - greatest).exp())).sum();
    (greatest, sum.ln() as f32)
}

/// The greatest `most` of `logits`, the best first; of equals the first.
fn best(logits: &[f32], most: usize) -> Vec<(Token, f32)> {
    let mut best: Vec<(Token, f32)> = Vec::with_capacity(most + 1);
    for (token, &logit) in logits.iter().enumerate() {
        let is_too_small = best.len() >= most && best.last().is_none_or(|(_, least)| logit <= *least);
        if is_too_small || logit.is_nan() {
            continue;
        }
        let at = best.partition_point(|(_, other)| *other >= logit);
        best.insert(at, (token as Token, logit));
        best.truncate(most);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_first_and_of_equals_the_first() {
        let logits = [1.0, 3.0, f32::NEG_INFINITY, 3.0, f32::NAN, 2.0, -5.0];
        let cases: [(usize, &[Token]); 5] =
            [(0, &[]), (1, &[1]), (2, &[1, 3]), (4, &[1, 3, 5, 0]), (20, &[1, 3, 5, 0, 6, 2])];
        for (most, expected) in cases {
            let found: Vec<Token> = best(&logits, most).into_iter().map(|(token, _)| token).collect();
            assert_eq!(found, expected, "{most}");
        }
    }

    #[test]
    fn probabilities_sum_to_one_however_large_logits_are() {
        let rows: [&[f32]; 4] =
            [&[0.0, 0.0], &[1000.0, 999.0, -1000.0], &[-3e38, -3e38], &[f32::NEG_INFINITY, 5.0]];
        for row in rows {
            let (greatest, rest) = norm(row);
            let sum: f32 = row.iter().map(|logit| (logit - greatest - rest).exp()).sum();
            assert!((sum - 1.0).abs() < 1e-4, "{row:?}: {sum}");
        }
    }
}
