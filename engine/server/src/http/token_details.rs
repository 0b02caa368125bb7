//! What an answer tells of its tokens besides their text: their numbers, how likely they were.

use llama::Token;
use serde_json::{Value, json};

use super::logprobs::Logprobs;
use super::shape::Shape;
use crate::api_error::Refusal;
use crate::fields::Fields;
use crate::job::Piece;

/// Whether the numbers of the tokens are wanted. The name is llama-server's.
pub fn return_tokens(fields: &mut Fields) -> Result<bool, Refusal> {
    Ok(fields.bool("return_tokens")?.unwrap_or(false))
}

/// That of a choice's tokens of which nothing was told yet.
#[derive(Debug)]
pub struct Gathered {
    logprobs: Logprobs,
    /// Their numbers, where asked for.
    tokens: Option<Vec<Token>>,
}

/// That of a part of a choice, or of all of it.
#[derive(Debug, Default)]
pub struct Beside {
    logprobs: Value,
    tokens: Option<Vec<Token>>,
}

impl Gathered {
    /// None yet.
    pub fn new(shape: Shape, return_tokens: bool) -> Self {
        Gathered { logprobs: Logprobs::new(shape), tokens: return_tokens.then(Vec::new) }
    }

    /// Takes that of `piece`.
    pub fn add(&mut self, piece: &mut Piece) {
        self.logprobs.add(piece);
        if let Some(tokens) = &mut self.tokens {
            tokens.push(piece.token);
        }
    }

    /// Whether it takes long to write down.
    pub fn is_long(&self) -> bool {
        self.logprobs.has_some()
    }

    /// All that was taken since the last time.
    pub fn take(&mut self) -> Beside {
        Beside { logprobs: self.logprobs.take(), tokens: self.tokens.as_mut().map(std::mem::take) }
    }
}

impl Beside {
    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.logprobs.is_null() && self.tokens.as_ref().is_none_or(Vec::is_empty)
    }

    /// `choice` with it.
    pub fn beside(self, mut choice: Value) -> Value {
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
            let mut gathered = Gathered::new(Shape::Text, wanted);
            gathered.add(&mut piece(3));
            gathered.add(&mut piece(1));
            let beside = gathered.take();
            assert_eq!(beside.is_empty(), !wanted);
            assert_eq!(beside.beside(json!({ "index": 0 })), expected);
            assert!(gathered.take().is_empty());
        }
    }
}
