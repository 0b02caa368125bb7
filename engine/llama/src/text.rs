//! The longest text that a context can hold, which is checked before the tokenizer sees a text.

use llama_sys as sys;

use crate::error::{Error, Result};
use crate::model::Model;
use crate::token::Token;

/// Bytes that a text may have for each token of the context if a token can stand for any number of them. Texts that people
/// write have less than 100.
const UNBOUNDED: usize = 1024;

impl Model {
    /// Checks that a text of `bytes` bytes can fit a context of `n_ctx` tokens: every token stands for as many bytes as
    /// the longest one at most. A text that passes can still have too many tokens.
    ///
    /// # Errors
    /// [`Error::TextTooLong`] for a longer text.
    pub fn check_length(&self, bytes: usize, n_ctx: u32) -> Result<()> {
        // Each token has a byte at least, so that the vocabulary need not be read for a short text.
        if bytes <= n_ctx as usize {
            return Ok(());
        }
        let longest = self.longest_token();
        match longest.saturating_mul(n_ctx as usize) {
            most if bytes > most => Err(Error::TextTooLong { bytes, context: n_ctx, longest, most }),
            _ => Ok(()),
        }
    }

    /// Bytes of the longest token, or [`UNBOUNDED`] if a token can stand for any number of them: WordPiece and unigram
    /// tokenizers drop spaces and make a single unknown token of a whole word, and the `whitespace` tokenizer drops spaces.
    fn longest_token(&self) -> usize {
        *self.longest_token.get_or_init(|| {
            // SAFETY: reads a field.
            let kind = unsafe { sys::llama_vocab_type(self.vocab) };
            let is_bounded = match kind {
                sys::LLAMA_VOCAB_TYPE_SPM | sys::LLAMA_VOCAB_TYPE_RWKV | sys::LLAMA_VOCAB_TYPE_PLAMO2 => true,
                sys::LLAMA_VOCAB_TYPE_BPE => {
                    self.metadata("tokenizer.ggml.model").as_deref() != Some("whitespace")
                }
                _ => false,
            };
            let longest = is_bounded.then(|| {
                let mut bytes = Vec::new();
                let tokens = (0..self.n_vocab()).filter_map(|token| Token::try_from(token).ok());
                let length = |token| {
                    bytes.clear();
                    // The text of a token that has none is written in no text either.
                    self.piece_with(token, true, &mut bytes).map_or(0, |()| bytes.len())
                };
                tokens.map(length).max().unwrap_or(0).max(1)
            });
            longest.unwrap_or(UNBOUNDED)
        })
    }
}
