//! Log-probabilities of tokens, from the model's own logits before any sampler.

use llama::error::Result;
use llama::{Model, Token};
use serde_json::{Value, json};

/// Maximum number of alternatives per token.
pub const MOST: u32 = 20;

/// Maximum number of values in the log-probabilities of all prompts of a request: for each token, its own value and
/// the values of its alternatives. They stay in memory until the request is answered, and take about 200 bytes each.
pub const PROMPT_VALUES: usize = 1 << 18;

/// Log-probability that represents probability zero, as in OpenAI's API. JSON has no infinity.
const NEVER: f32 = -9999.0;

/// Token with its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct Likely {
    /// Token number.
    pub token: Token,
    /// Bytes of the token, which may be an incomplete character. For a control token, its name.
    pub bytes: Vec<u8>,
    /// Natural logarithm of the token's probability.
    pub logprob: f32,
}

/// Sampled token, and the most likely tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Likelihood {
    /// Token that was sampled.
    pub chosen: Likely,
    /// Most likely tokens, in descending order of probability. The request sets the number of tokens.
    pub top: Vec<Likely>,
}

/// Token of a prompt, with its probability after the tokens before it.
#[derive(Clone, Debug, PartialEq)]
pub enum ScoredToken {
    /// First token of a prompt, which has no probability. Contains the bytes of the token.
    First(Vec<u8>),
    /// Token after other tokens.
    Next(Likelihood),
}

impl ScoredToken {
    /// Returns the first token of a prompt.
    ///
    /// # Errors
    /// If the token cannot be converted to text.
    pub fn first(token: Token, model: &Model) -> Result<Self> {
        let mut bytes = Vec::new();
        model.piece_with(token, true, &mut bytes)?;
        Ok(ScoredToken::First(bytes))
    }

    /// Returns the bytes of the token, as in [`Likely::bytes`].
    pub fn bytes(&self) -> &[u8] {
        match self {
            ScoredToken::First(bytes) => bytes,
            ScoredToken::Next(likelihood) => &likelihood.chosen.bytes,
        }
    }

    /// Returns the probability of the token. `None` for the first token of a prompt.
    pub fn likelihood(&self) -> Option<&Likelihood> {
        match self {
            ScoredToken::First(_) => None,
            ScoredToken::Next(likelihood) => Some(likelihood),
        }
    }
}

impl Likelihood {
    /// Computes the log-probability of `chosen` and of the `top` most likely tokens. `logits` has one value for each
    /// token of the vocabulary of `model`.
    ///
    /// # Errors
    /// If a token cannot be converted to text.
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

    /// Returns the JSON object for the line protocol.
    pub fn to_json(&self) -> Value {
        json!({ "token": self.chosen.token, "logprob": self.chosen.logprob, "top": self.top_json() })
    }

    /// Returns the most likely tokens as JSON for the line protocol.
    pub fn top_json(&self) -> Value {
        let one = |likely: &Likely| {
            let text = String::from_utf8_lossy(&likely.bytes);
            json!({ "token": likely.token, "text": text, "logprob": likely.logprob })
        };
        self.top.iter().map(one).collect()
    }
}

/// Returns the maximum `m` of `logits`, and `ln(Σ exp(logit − m))`. Their sum is the logarithm of the softmax
/// denominator; subtracting the maximum first avoids an overflow.
fn norm(logits: &[f32]) -> (f32, f32) {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !greatest.is_finite() {
        return (greatest, 0.0);
    }
    let sum: f64 = logits.iter().map(|logit| f64::from((logit - greatest).exp())).sum();
    (greatest, sum.ln() as f32)
}

/// Returns the `most` highest `logits` with their tokens, in descending order. Equal logits keep the order of their
/// tokens.
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
