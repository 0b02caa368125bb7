//! What a context holds, and what a vocabulary's special tokens are: for conversations that go on.

use std::ffi::CString;

use llama_sys as sys;

use crate::context::Context;
use crate::model::Model;
use crate::token::{ALONE, SequenceId, Token};

impl Context {
    /// Tokens of the sequence that it holds.
    pub fn held(&self) -> usize {
        // SAFETY: the memory belongs to the context and is only read; null for models without one, which the call
        // takes. The greatest position, -1 where there is none.
        let last = unsafe { sys::llama_memory_seq_pos_max(sys::llama_get_memory(self.raw.as_ptr()), 0) };
        usize::try_from(last.saturating_add(1)).unwrap_or(0)
    }

    /// Forgets what comes after the first `tokens` tokens; everything, where the model cannot forget a part (a
    /// recurrent one). Returns how many are left.
    pub fn keep(&mut self, tokens: usize) -> usize {
        if tokens >= self.held() {
            return self.held();
        }
        if tokens == 0 || !self.keep_of(ALONE, tokens) {
            self.clear();
        }
        self.held()
    }

    /// Forgets what comes after the first `tokens` tokens of `sequence`. Where it cannot (a recurrent model, or what a token
    /// after them looks back at is gone) it says so, and the sequence is to be emptied.
    pub fn keep_of(&mut self, sequence: SequenceId, tokens: usize) -> bool {
        self.reaches_back_from(sequence, tokens)
            && u32::try_from(tokens).is_ok_and(|from| self.forget(sequence, from))
    }
}

impl Context {
    /// Whether what a token after the first `tokens` looks back at is still there: layers with a sliding window may have
    /// let it go, and llama.cpp forgets the rest without a word.
    fn reaches_back_from(&self, sequence: SequenceId, tokens: usize) -> bool {
        // SAFETY: reads a field.
        let window = unsafe { sys::llama_model_n_swa(self.model.raw.as_ptr()) };
        let Some(window) = usize::try_from(window).ok().filter(|window| *window > 0) else { return true };
        // SAFETY: as in `held`; of all layers the greatest of the first positions.
        let first = unsafe {
            sys::llama_memory_seq_pos_min(
                sys::llama_get_memory(self.raw.as_ptr()),
                sequence as sys::llama_seq_id,
            )
        };
        usize::try_from(first).is_ok_and(|first| first <= tokens.saturating_sub(window))
    }
}

impl Model {
    /// Whether its memory can forget the last tokens alone: not where a state is changed by every token.
    pub fn can_take_back(&self) -> bool {
        // SAFETY: reads fields.
        unsafe {
            !sys::llama_model_is_recurrent(self.raw.as_ptr())
                && !sys::llama_model_is_hybrid(self.raw.as_ptr())
        }
    }

    /// Value of a metadata key that is a text, whole.
    pub fn metadata_text(&self, key: &str) -> Option<String> {
        let key = CString::new(key).ok()?;
        let mut bytes = vec![0_u8; 4096];
        for _ in 0..2 {
            // SAFETY: `key` is NUL-terminated; writes at most the given size with a NUL at the end, returns the length
            // that there is.
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

    /// The token that begins a text, as text; empty where there is none.
    pub fn begin_text(&self) -> String {
        // SAFETY: reads a field.
        self.special_text(unsafe { sys::llama_vocab_bos(self.vocab) })
    }

    /// The token that ends a text, as text; empty where there is none.
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

    /// Whether `token`, one of the vocabulary, stands for itself: it is never a part of a longer one.
    pub fn is_special(&self, token: Token) -> bool {
        let known = token >= 0 && self.has_vocabulary() && token.cast_unsigned() < self.n_vocab();
        let special = sys::LLAMA_TOKEN_ATTR_CONTROL | sys::LLAMA_TOKEN_ATTR_USER_DEFINED;
        // SAFETY: the token is in the vocabulary, which the call demands.
        known && unsafe { sys::llama_vocab_get_attr(self.vocab, token) } & special != 0
    }
}
