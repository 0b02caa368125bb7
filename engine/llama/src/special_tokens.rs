//! Tokens that join several texts into one prompt.

use llama_sys as sys;

use crate::model::Model;
use crate::token::Token;

/// Tokens around the two texts of a pair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairTokens {
    /// Tokens before the first text.
    pub begin: Vec<Token>,
    /// Tokens between the texts.
    pub between: Vec<Token>,
    /// Tokens after the second text.
    pub end: Vec<Token>,
}

/// Fill-in-the-middle tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfillTokens {
    /// Token before the text that precedes the gap.
    pub prefix: Token,
    /// Token before the text that follows the gap.
    pub suffix: Token,
    /// Token after which the model generates the text in the gap.
    pub middle: Token,
    /// Token before the name of a repository.
    pub repository: Option<Token>,
    /// Token before the name of a file.
    pub file: Option<Token>,
}

impl Model {
    /// Returns the tokens that the tokenizer puts around the two texts of a pair.
    pub fn pair_tokens(&self) -> PairTokens {
        // SAFETY: reads fields.
        let (adds_end, adds_separator, end, separator) = unsafe {
            (
                sys::llama_vocab_get_add_eos(self.vocab),
                sys::llama_vocab_get_add_sep(self.vocab),
                sys::llama_vocab_eos(self.vocab),
                sys::llama_vocab_sep(self.vocab),
            )
        };
        let (end, separator) = (self.known(end), self.known(separator));
        // Tokenizers of BERT models end a text with a separator.
        let end = end.or(separator).filter(|_| adds_end);
        PairTokens {
            begin: self.begin_token().into_iter().collect(),
            between: end.into_iter().chain(separator.filter(|_| adds_separator)).collect(),
            end: end.into_iter().collect(),
        }
    }

    /// Returns the fill-in-the-middle tokens. `None` if the vocabulary has none.
    pub fn infill_tokens(&self) -> Option<InfillTokens> {
        // SAFETY: reads fields.
        let [prefix, suffix, middle, repository, file] = unsafe {
            [
                sys::llama_vocab_fim_pre(self.vocab),
                sys::llama_vocab_fim_suf(self.vocab),
                sys::llama_vocab_fim_mid(self.vocab),
                sys::llama_vocab_fim_rep(self.vocab),
                sys::llama_vocab_fim_sep(self.vocab),
            ]
        }
        .map(|token| self.known(token));
        Some(InfillTokens { prefix: prefix?, suffix: suffix?, middle: middle?, repository, file })
    }

    /// Returns `token` if the vocabulary contains it. llama.cpp reports a missing token as -1, and does not check the
    /// numbers in a file.
    fn known(&self, token: Token) -> Option<Token> {
        Some(token).filter(|token| self.has_token(*token))
    }
}
