//! What a sequence holds, as bytes that another context of the same model and options takes.

use llama_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::token::SequenceId;

impl Context {
    /// The state of the first sequence, for [`restore`](Self::restore).
    pub fn save(&mut self) -> Result<Vec<u8>> {
        self.save_sequence(0)
    }

    /// Puts back a state that [`save`](Self::save) took from a context of the same model and options.
    pub fn restore(&mut self, state: &[u8]) -> Result<()> {
        self.restore_sequence(0, state)
    }

    /// The state of `sequence`: the K and V of its tokens and their places, those too that it shares with others.
    pub fn save_sequence(&mut self, sequence: SequenceId) -> Result<Vec<u8>> {
        let failed = |why: String| Err(Error::State { what: "save", why });
        if sequence >= self.sequences() {
            return failed(format!("there is no sequence {sequence}"));
        }
        let (err, err_size) = self.message.parts();
        // SAFETY: the context is live, the sequence one of its own; computes a size.
        let size =
            unsafe { sys::anneal_state_size(self.raw.as_ptr(), sequence.cast_signed(), err, err_size) };
        let mut state: Vec<u8> = Vec::new();
        if state.try_reserve_exact(size).is_err() {
            return failed(format!("there is no memory for its {}", build_info::Bytes(size as u64)));
        }
        let (err, err_size) = self.message.parts();
        // SAFETY: writes at most `size` bytes, for which there is room. Nothing reads them before: zeros would be written
        // for nothing, while everyone waits.
        let written = unsafe {
            let (data, sequence) = (state.as_mut_ptr(), sequence.cast_signed());
            sys::anneal_state_get(self.raw.as_ptr(), sequence, data, size, err, err_size)
        };
        if written == 0 || written > size {
            return failed(self.message.text());
        }
        // SAFETY: so many bytes were written, each of them.
        unsafe { state.set_len(written) };
        Ok(state)
    }

    /// Puts a state that [`save_sequence`](Self::save_sequence) took, from any sequence of a context of the same model
    /// and options, in the place of what `sequence` holds. llama.cpp checks its types, sizes and lengths, not its
    /// content.
    ///
    /// # Errors
    /// Where it is no such state, or there are not as many cells; what `sequence` held is then forgotten.
    pub fn restore_sequence(&mut self, sequence: SequenceId, state: &[u8]) -> Result<()> {
        let failed = |why: String| Err(Error::State { what: "restore", why });
        if sequence >= self.sequences() {
            return failed(format!("there is no sequence {sequence}"));
        }
        let (err, err_size) = self.message.parts();
        // SAFETY: the context is live, the sequence one of its own; reads at most `state.len()` bytes.
        let read = unsafe {
            let (data, sequence) = (state.as_ptr(), sequence.cast_signed());
            sys::anneal_state_set(self.raw.as_ptr(), sequence, data, state.len(), err, err_size)
        };
        if read == state.len() {
            return Ok(());
        }
        let why = match read {
            0 => self.message.text(),
            _ => format!("{} bytes are left over", state.len() - read),
        };
        self.forget(sequence, 0);
        failed(why)
    }

    /// Whether `sequence` holds `tokens` tokens at the places 0, 1, 2 and so on, as far as its first and last tell.
    pub fn holds(&self, sequence: SequenceId, tokens: usize) -> bool {
        if sequence >= self.sequences() || tokens == 0 {
            return false;
        }
        // SAFETY: the memory belongs to the context and is only read; null for models without one, which the calls
        // take. -1 where the sequence is empty.
        let (first, last) = unsafe {
            let memory = sys::llama_get_memory(self.raw.as_ptr());
            let sequence = sequence.cast_signed();
            (sys::llama_memory_seq_pos_min(memory, sequence), sys::llama_memory_seq_pos_max(memory, sequence))
        };
        first == 0 && usize::try_from(last).is_ok_and(|last| last + 1 == tokens)
    }
}
