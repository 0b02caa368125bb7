//! State of a sequence as bytes. Another context of the same model and options can restore the state.

use llama_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::token::SequenceId;

impl Context {
    /// Returns the state of the first sequence, for [`restore`](Self::restore).
    pub fn save(&mut self) -> Result<Vec<u8>> {
        self.save_sequence(0)
    }

    /// Restores a state that [`save`](Self::save) returned for a context of the same model and options.
    pub fn restore(&mut self, state: &[u8]) -> Result<()> {
        self.restore_sequence(0, state)
    }

    /// Like [`restore`](Self::restore), but restores only the first `keep` tokens of the state. Removes all other
    /// tokens.
    ///
    /// # Errors
    /// Errors of [`restore`](Self::restore), and an error if part of the sequence cannot be removed.
    pub fn restore_first(&mut self, state: &[u8], keep: u32) -> Result<()> {
        self.clear();
        self.restore(state)?;
        match self.forget(0, keep) {
            true => Ok(()),
            false => Err(Error::State {
                what: "restore",
                why: "a part of the sequence cannot be removed from the model's memory".to_string(),
            }),
        }
    }

    /// Returns the state of `sequence`: the K and V of its tokens and their positions. Tokens that are shared with
    /// other sequences are included.
    pub fn save_sequence(&mut self, sequence: SequenceId) -> Result<Vec<u8>> {
        self.save_state(sequence, false)
    }

    /// Returns the part of the state of `sequence` that cannot be truncated to an earlier token, such as a recurrent
    /// state, for [`restore_checkpoint`](Self::restore_checkpoint).
    ///
    /// # Errors
    /// As for [`save_sequence`](Self::save_sequence).
    pub fn save_checkpoint(&mut self, sequence: SequenceId) -> Result<Vec<u8>> {
        self.save_state(sequence, true)
    }

    fn save_state(&mut self, sequence: SequenceId, partial: bool) -> Result<Vec<u8>> {
        let failed = |why: String| Err(Error::State { what: "save", why });
        if sequence >= self.sequences() {
            return failed(format!("sequence {sequence} does not exist"));
        }
        let (err, err_size) = self.message.parts();
        // SAFETY: the context is live and the sequence belongs to it; computes a size.
        let size = unsafe {
            sys::anneal_state_size(self.raw.as_ptr(), sequence.cast_signed(), partial, err, err_size)
        };
        let mut state: Vec<u8> = Vec::new();
        if state.try_reserve_exact(size).is_err() {
            return failed(format!("there is not enough memory for {}", build_info::Bytes(size as u64)));
        }
        let (err, err_size) = self.message.parts();
        // SAFETY: writes at most `size` bytes, for which memory is reserved. The bytes are not read before they are
        // written. Zeroing the memory first would waste time while every slot waits.
        let written = unsafe {
            let (data, sequence) = (state.as_mut_ptr(), sequence.cast_signed());
            sys::anneal_state_get(self.raw.as_ptr(), sequence, partial, data, size, err, err_size)
        };
        if written == 0 || written > size {
            return failed(self.message.text());
        }
        // SAFETY: the call wrote these bytes.
        unsafe { state.set_len(written) };
        Ok(state)
    }

    /// Replaces the content of `sequence` with a state that [`save_sequence`](Self::save_sequence) returned for any
    /// sequence of a context of the same model and options. llama.cpp checks types, sizes and lengths, but not the
    /// content.
    ///
    /// # Errors
    /// If `state` is invalid, or if too few cells are free. The content of `sequence` is then lost.
    pub fn restore_sequence(&mut self, sequence: SequenceId, state: &[u8]) -> Result<()> {
        self.restore_state(sequence, state, false)
    }

    /// Truncates `sequence` to its first `tokens` tokens. `state` is the result of
    /// [`save_checkpoint`](Self::save_checkpoint) after these tokens, in any sequence. Unless the model's
    /// [`prefix_reuse`](crate::Model::prefix_reuse) is [`StateAlone`](crate::PrefixReuse::StateAlone), `sequence` must
    /// contain the tokens.
    ///
    /// # Errors
    /// If `state` is invalid. The content of `sequence` is then lost.
    pub fn restore_checkpoint(&mut self, sequence: SequenceId, state: &[u8], tokens: usize) -> Result<()> {
        self.restore_state(sequence, state, true)?;
        let cut = u32::try_from(tokens).is_ok_and(|tokens| self.forget(sequence, tokens));
        if cut && self.holds(sequence, tokens) {
            return Ok(());
        }
        self.forget(sequence, 0);
        Err(Error::State { what: "restore", why: "the sequence ends at another token".to_string() })
    }

    fn restore_state(&mut self, sequence: SequenceId, state: &[u8], partial: bool) -> Result<()> {
        let failed = |why: String| Err(Error::State { what: "restore", why });
        if sequence >= self.sequences() {
            return failed(format!("sequence {sequence} does not exist"));
        }
        let (err, err_size) = self.message.parts();
        // SAFETY: the context is live and the sequence belongs to it; reads at most `state.len()` bytes.
        let read = unsafe {
            let (data, sequence) = (state.as_ptr(), sequence.cast_signed());
            sys::anneal_state_set(self.raw.as_ptr(), sequence, partial, data, state.len(), err, err_size)
        };
        if read == state.len() {
            return Ok(());
        }
        let why = match read {
            0 => self.message.text(),
            _ => format!("the last {} bytes do not belong to the state", state.len() - read),
        };
        self.forget(sequence, 0);
        failed(why)
    }

    /// True if `sequence` contains `tokens` tokens at the positions 0, 1, 2 and so on. Only its last position is
    /// checked, and its first position if the model keeps all positions.
    pub fn holds(&self, sequence: SequenceId, tokens: usize) -> bool {
        if sequence >= self.sequences() || tokens == 0 {
            return false;
        }
        // SAFETY: the memory belongs to the context and is only read. It is null for models without a memory, and the
        // calls accept null. They return -1 for an empty sequence.
        let (first, last) = unsafe {
            let memory = sys::llama_get_memory(self.raw.as_ptr());
            let sequence = sequence.cast_signed();
            (sys::llama_memory_seq_pos_min(memory, sequence), sys::llama_memory_seq_pos_max(memory, sequence))
        };
        (first == 0 || !self.model.has_plain_cache())
            && usize::try_from(last).is_ok_and(|last| last + 1 == tokens)
    }
}
