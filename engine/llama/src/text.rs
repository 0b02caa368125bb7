//! Maximum length of a text, which is checked before the text is tokenised.

use llama_sys as sys;

use crate::error::{Error, Result};
use crate::model::Model;
use crate::token::Token;

/// Maximum number of bytes per token, used if a token can represent any number of bytes. Natural texts have fewer
/// than 100 bytes per token.
const UNBOUNDED: usize = 1024;

impl Model {
    /// Checks that a text of `bytes` bytes can fit into a context of `n_ctx` tokens. The check assumes that every
    /// token represents as many bytes as the longest token, so a text that passes can still have too many tokens.
    ///
    /// # Errors
    /// [`Error::TextTooLong`] for a longer text.
    pub fn check_length(&self, bytes: usize, n_ctx: u32) -> Result<()> {
        // Each token has at least one byte, so a short text fits in any case, and the vocabulary need not be read.
        if bytes <= n_ctx as usize {
            return Ok(());
        }
        let longest = self.longest_token();
        match longest.saturating_mul(n_ctx as usize) {
            most if bytes > most => Err(Error::TextTooLong { bytes, context: n_ctx, longest, most }),
            _ => Ok(()),
        }
    }

    /// Returns the length of the longest token in bytes, or [`UNBOUNDED`] if a token can represent any number of
    /// bytes. WordPiece and unigram tokenizers drop spaces and convert a whole word to one unknown token; the
    /// `whitespace` tokenizer drops spaces.
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
                    // A token without text does not occur in any text.
                    self.piece_with(token, true, &mut bytes).map_or(0, |()| bytes.len())
                };
                tokens.map(length).max().unwrap_or(0).max(1)
            });
            longest.unwrap_or(UNBOUNDED)
        })
    }
}
