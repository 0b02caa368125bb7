//! Details of the tokens in an answer: token numbers and probabilities.

use std::sync::Arc;

use llama::Token;
use serde_json::{Value, json};

use super::logprobs::Logprobs;
use super::shape::AnswerShape;
use crate::api_error::ApiError;
use crate::fields::Fields;
use crate::job::Piece;
use crate::logprobs::ScoredToken;

/// Takes the field `return_tokens`, which asks for token numbers. The name comes from llama-server.
pub fn return_tokens(fields: &mut Fields) -> Result<bool, ApiError> {
    Ok(fields.bool("return_tokens")?.unwrap_or(false))
}

/// Details of a choice's tokens that have not been sent yet.
#[derive(Debug)]
pub struct Gathered {
    logprobs: Logprobs,
    /// Token numbers. `None` if they were not requested.
    tokens: Option<Vec<Token>>,
}

/// Details of the tokens in a part of a choice, or in the whole choice.
#[derive(Debug, Default)]
pub struct TokenDetails {
    logprobs: Value,
    tokens: Option<Vec<Token>>,
}

impl Gathered {
    /// Creates an empty collection. `echo` is the prompt with which the text of the choice begins, if any.
    pub fn new(shape: AnswerShape, return_tokens: bool, echo: Arc<str>) -> Self {
        Gathered { logprobs: Logprobs::new(shape, echo), tokens: return_tokens.then(Vec::new) }
    }

    /// Takes the probabilities of the next prompt tokens.
    pub fn add_prompt(&mut self, scores: Vec<ScoredToken>) {
        self.logprobs.add_prompt(scores);
    }

    /// Takes the details of `piece`.
    pub fn add(&mut self, piece: &mut Piece) {
        self.logprobs.add(piece);
        if let Some(tokens) = &mut self.tokens {
            tokens.push(piece.token);
        }
    }

    /// True if serialising the details takes a long time.
    pub fn is_long(&self) -> bool {
        self.logprobs.has_some()
    }

    /// Takes all details collected since the last call.
    pub fn take(&mut self) -> TokenDetails {
        TokenDetails { logprobs: self.logprobs.take(), tokens: self.tokens.as_mut().map(std::mem::take) }
    }
}

impl TokenDetails {
    /// True if there are no details.
    pub fn is_empty(&self) -> bool {
        self.logprobs.is_null() && self.tokens.as_ref().is_none_or(Vec::is_empty)
    }

    /// Returns `choice` with the details added.
    pub fn add_to(self, mut choice: Value) -> Value {
        choice["logprobs"] = self.logprobs;
        if let Some(tokens) = self.tokens {
            choice["tokens"] = json!(tokens);
        }
        choice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_once_and_only_where_asked_for() {
        let piece = |token| Piece { token, text: String::new(), likelihood: None };
        for (wanted, expected) in [
            (true, json!({ "index": 0, "logprobs": null, "tokens": [3, 1] })),
            (false, json!({ "index": 0, "logprobs": null })),
        ] {
            let mut gathered = Gathered::new(AnswerShape::Text, wanted, Arc::default());
            gathered.add(&mut piece(3));
            gathered.add(&mut piece(1));
            let details = gathered.take();
            assert_eq!(details.is_empty(), !wanted);
            assert_eq!(details.add_to(json!({ "index": 0 })), expected);
            assert!(gathered.take().is_empty());
        }
    }
}
