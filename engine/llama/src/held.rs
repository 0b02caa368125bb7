//! Content of a context, and the special tokens of a vocabulary. Conversations use both.

use std::ffi::CString;

use llama_sys as sys;

use crate::context::Context;
use crate::model::Model;
use crate::token::{ALONE, SequenceId, Token};

impl Context {
    /// Returns the number of tokens of the sequence in the context.
    pub fn held(&self) -> usize {
        // SAFETY: the memory belongs to the context and is only read. It is null for models without a memory, and the
        // call accepts null. Returns the greatest position, or -1 for an empty memory.
        let last = unsafe { sys::llama_memory_seq_pos_max(sys::llama_get_memory(self.raw.as_ptr()), 0) };
        usize::try_from(last.saturating_add(1)).unwrap_or(0)
    }

    /// Removes everything after the first `tokens` tokens. If the model cannot remove a part of the tokens (a
    /// recurrent model), removes all tokens. Returns the number of remaining tokens.
    pub fn keep(&mut self, tokens: usize) -> usize {
        if tokens >= self.held() {
            return self.held();
        }
        if tokens == 0 || !self.keep_of(ALONE, tokens) {
            self.clear();
        }
        self.held()
    }

    /// Removes everything after the first `tokens` tokens of `sequence`. Returns false if this is impossible, because
    /// the model is recurrent, or because later tokens attend to cells that were already dropped. The caller must
    /// then clear the sequence.
    pub fn keep_of(&mut self, sequence: SequenceId, tokens: usize) -> bool {
        self.reaches_back_from(sequence, tokens)
            && u32::try_from(tokens).is_ok_and(|from| self.forget(sequence, from))
    }
}

impl Context {
    /// True if the context still contains every cell to which a token after the first `tokens` tokens attends. Layers
    /// with a sliding window may have dropped some cells, and llama.cpp does not report such losses
    /// (src/llama-kv-cache-iswa.cpp; ggml 0.26.0).
    fn reaches_back_from(&self, sequence: SequenceId, tokens: usize) -> bool {
        let Some(window) = self.model.window() else { return true };
        // SAFETY: as in `held`; returns the greatest of all layers' first positions.
        let first = unsafe {
            sys::llama_memory_seq_pos_min(
                sys::llama_get_memory(self.raw.as_ptr()),
                sequence as sys::llama_seq_id,
            )
        };
        usize::try_from(first).is_ok_and(|first| first <= tokens.saturating_sub(window as usize))
    }
}

impl Model {
    /// True if the memory can remove the last tokens and keep the others. A recurrent state cannot, because every
    /// token changes the state.
    pub fn can_take_back(&self) -> bool {
        // SAFETY: reads fields.
        unsafe {
            !sys::llama_model_is_recurrent(self.raw.as_ptr())
                && !sys::llama_model_is_hybrid(self.raw.as_ptr())
        }
    }

    /// Returns the value of a metadata key as text, regardless of its length.
    pub fn metadata_text(&self, key: &str) -> Option<String> {
        let key = CString::new(key).ok()?;
        let mut bytes = vec![0_u8; 4096];
        for _ in 0..2 {
            // SAFETY: `key` is NUL-terminated; writes at most the given size with a NUL at the end, and returns the
            // full length.
            let length = unsafe {
                sys::llama_model_meta_val_str(
                    self.raw.as_ptr(),
                    key.as_ptr(),
                    bytes.as_mut_ptr().cast(),
                    bytes.len(),
                )
            };
            let length = usize::try_from(length).ok()?;
            if length < bytes.len() {
                bytes.truncate(length);
                return Some(String::from_utf8_lossy(&bytes).into_owned());
            }
            bytes.resize(length + 1, 0);
        }
        None
    }

    /// Returns the text of the token that begins a text; empty if the model has no such token.
    pub fn begin_text(&self) -> String {
        // SAFETY: reads a field.
        self.special_text(unsafe { sys::llama_vocab_bos(self.vocab) })
    }

    /// Returns the text of the token that ends a text; empty if the model has no such token.
    pub fn end_text(&self) -> String {
        // SAFETY: reads a field.
        self.special_text(unsafe { sys::llama_vocab_eos(self.vocab) })
    }

    fn special_text(&self, token: Token) -> String {
        let mut bytes = Vec::new();
        match token >= 0 && self.piece_with(token, true, &mut bytes).is_ok() {
            true => String::from_utf8_lossy(&bytes).into_owned(),
            false => String::new(),
        }
    }

    /// True if `token`, which must be in the vocabulary, is special. A special token is never part of a longer token.
    pub fn is_special(&self, token: Token) -> bool {
        let known = token >= 0 && self.has_vocabulary() && token.cast_unsigned() < self.n_vocab();
        let special = sys::LLAMA_TOKEN_ATTR_CONTROL | sys::LLAMA_TOKEN_ATTR_USER_DEFINED;
        // SAFETY: the token is in the vocabulary, which the call requires.
        known && unsafe { sys::llama_vocab_get_attr(self.vocab, token) } & special != 0
    }
}
