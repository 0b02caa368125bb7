//! Several sequences in one context: batches of their tokens, and changes to the tokens in each sequence.

use std::sync::Arc;

use llama_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::options::ContextOptions;
use crate::token::{SequenceId, Token};

/// Maximum number of sequences in a context: llama.cpp's `LLAMA_MAX_SEQ`.
pub const MAX_SEQUENCES: u32 = 256;

/// Tokens of several sequences that are evaluated together.
#[derive(Debug, Default)]
pub struct Batch {
    tokens: Vec<Token>,
    positions: Vec<sys::llama_pos>,
    sequences: Vec<sys::llama_seq_id>,
    wants_logits: Vec<i8>,
    // Additional arrays that llama.cpp needs: a list of sequences for each token. They are rebuilt for each call.
    counts: Vec<i32>,
    lists: Vec<*mut sys::llama_seq_id>,
}

// SAFETY: the pointers are only dereferenced during a call, immediately after they were created.
unsafe impl Send for Batch {}

impl Batch {
    /// Removes all tokens.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.sequences.clear();
        self.wants_logits.clear();
    }

    /// Adds a token at `position` of `sequence`. Returns the row of the token, which is needed to read its logits
    /// later.
    pub fn push(&mut self, token: Token, position: u32, sequence: SequenceId, wants_logits: bool) -> i32 {
        self.tokens.push(token);
        self.positions.push(position.cast_signed());
        self.sequences.push(sequence.cast_signed());
        self.wants_logits.push(i8::from(wants_logits));
        self.tokens.len() as i32 - 1
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// True if the batch has no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns the batch as a `llama_batch`. The result is valid until this batch is changed.
    fn raw(&mut self) -> sys::llama_batch {
        self.counts.clear();
        self.counts.resize(self.tokens.len(), 1);
        self.lists.clear();
        // Creates a pointer to each element of the array.
        self.lists.extend(self.sequences.iter_mut().map(std::ptr::from_mut));
        sys::llama_batch {
            n_tokens: self.tokens.len() as i32,
            token: self.tokens.as_mut_ptr(),
            embd: std::ptr::null_mut(),
            pos: self.positions.as_mut_ptr(),
            n_seq_id: self.counts.as_mut_ptr(),
            seq_id: self.lists.as_mut_ptr(),
            logits: self.wants_logits.as_mut_ptr(),
        }
    }
}

/// Result of evaluating a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// All tokens were evaluated.
    Done,
    /// The context has too few free cells; nothing was changed.
    NoRoom,
}

impl Context {
    /// Creates a context of `model` for `sequences` sequences that share its cells. Each sequence can use all cells
    /// that the other sequences leave free.
    ///
    /// # Errors
    /// [`Error::Usage`] if llama.cpp does not support the number of sequences, [`Error::Context`] if llama.cpp cannot
    /// create the context.
    pub fn shared(model: &Arc<Model>, options: &ContextOptions, sequences: u32) -> Result<Self> {
        if !(1..=MAX_SEQUENCES).contains(&sequences) {
            return Err(Error::Usage(format!(
                "cannot create a context of {sequences} sequences: llama.cpp supports 1 to {MAX_SEQUENCES}"
            )));
        }
        Self::for_sequences(model, options, sequences, None, |_| ())
    }

    /// Creates a context like [`shared`](Self::shared), with room for `rows` rows of logits per batch. `rows` must be
    /// at least `sequences`.
    ///
    /// # Errors
    /// Errors of [`shared`](Self::shared).
    pub fn shared_with_rows(
        model: &Arc<Model>,
        options: &ContextOptions,
        sequences: u32,
        rows: u32,
    ) -> Result<Self> {
        if rows <= sequences {
            return Self::shared(model, options, sequences);
        }
        let mut context = Self::for_sequences(model, options, sequences, None, |params| {
            // llama.cpp refuses more rows than a batch has tokens.
            params.n_outputs_max = rows.min(params.n_batch);
        })?;
        context.rows = rows.min(context.n_batch());
        Ok(context)
    }

    /// Returns the number of rows of logits that a batch may request.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Returns the number of sequences in the context.
    pub fn sequences(&self) -> u32 {
        self.sequences
    }

    /// Evaluates `batch`. The batch may contain at most [`n_batch`](Self::n_batch) tokens, all from sequences in this
    /// context, and may request at most [`rows`](Self::rows) rows of logits. Each token must follow the last token of
    /// its sequence.
    ///
    /// # Errors
    /// If llama.cpp reports an error. Afterwards, the content of the batch's sequences is unknown.
    pub fn decode_batch(&mut self, batch: &mut Batch) -> Result<Decoded> {
        // llama.cpp checks the number of rows with an assertion, which would end the process.
        let rows = batch.wants_logits.iter().filter(|wanted| **wanted != 0).count();
        if rows > self.rows as usize {
            let why = format!(
                "{rows} rows of logits were requested, but the context has room for only {}",
                self.rows
            );
            return Err(Error::Decode { tokens: batch.len(), why });
        }
        self.evaluate(batch)
    }

    /// Evaluates `batch` like [`decode_batch`](Self::decode_batch), in a context that has one row of logits per token
    /// of a batch.
    pub(super) fn evaluate(&mut self, batch: &mut Batch) -> Result<Decoded> {
        let refused = |why: String| Err(Error::Decode { tokens: batch.len(), why });
        // llama.cpp checks both conditions with assertions.
        if batch.len() > self.n_batch() as usize {
            return refused(format!("this context accepts at most {} tokens per batch", self.n_batch()));
        }
        if let Some(strange) =
            batch.sequences.iter().find(|sequence| sequence.cast_unsigned() >= self.sequences)
        {
            return refused(format!(
                "sequence {strange} does not exist in a context with {} sequences",
                self.sequences
            ));
        }
        let tokens = batch.len();
        let raw = batch.raw();
        let code = self.with_threads(tokens, |context| {
            let (err, err_size) = context.message.parts();
            // SAFETY: the arrays of `raw` have the lengths that it states and outlive the call. llama.cpp keeps no
            // pointer to them.
            unsafe { sys::anneal_decode_batch(context.raw.as_ptr(), &raw, err, err_size) }
        });
        match code {
            0 => {
                self.note_graphs(tokens);
                Ok(Decoded::Done)
            }
            1 => Ok(Decoded::NoRoom),
            2 if self.was_stopped() => Err(Error::Interrupted),
            code => Err(self.decode_error(code, tokens)),
        }
    }

    /// Removes the tokens of `sequence` from position `from` to the end. Returns false if the model's memory, such as a
    /// recurrent state, cannot remove part of a sequence. If `from` is 0, the removal always succeeds.
    pub fn forget(&mut self, sequence: SequenceId, from: u32) -> bool {
        if sequence >= self.sequences {
            return false;
        }
        let (err, err_size) = self.message.parts();
        // SAFETY: the context is live, and the sequence belongs to the context.
        unsafe {
            let (sequence, from) = (sequence.cast_signed(), from.cast_signed());
            sys::anneal_seq_rm(self.raw.as_ptr(), sequence, from, err, err_size)
        }
    }

    /// Adds the first `tokens` tokens of `from` to `to` without copying: both sequences share the cells. All previous
    /// tokens of `to` are removed. `to` gets the recurrent state after all tokens of `from`. If `tokens` is smaller
    /// than the number of these tokens, call [`restore_checkpoint`](Self::restore_checkpoint) afterwards.
    pub fn share_prefix(&mut self, from: SequenceId, to: SequenceId, tokens: u32) -> bool {
        if from >= self.sequences || from == to || !self.forget(to, 0) {
            return false;
        }
        let (err, err_size) = self.message.parts();
        // SAFETY: the context is live and has a memory; the sequences belong to the context and differ.
        unsafe {
            let (from, to, end) = (from.cast_signed(), to.cast_signed(), tokens.cast_signed());
            sys::anneal_seq_cp(self.raw.as_ptr(), from, to, end, err, err_size)
        }
    }

    /// Appends the tokens of `from` to the `held` tokens of `to`, without copying. Afterwards, `from` is empty.
    /// Returns false for models whose memory cannot move tokens.
    pub fn append(&mut self, from: SequenceId, to: SequenceId, held: u32) -> bool {
        if from.max(to) >= self.sequences || from == to || !self.model.has_plain_cache() {
            return false;
        }
        let (err, err_size) = self.message.parts();
        // SAFETY: the context is live; the sequences belong to the context and differ.
        unsafe {
            let (from, to, held) = (from.cast_signed(), to.cast_signed(), held.cast_signed());
            sys::anneal_seq_append(self.raw.as_ptr(), from, to, held, err, err_size)
        }
    }
}

impl Model {
    /// True if `token` is in the vocabulary.
    pub fn has_token(&self, token: Token) -> bool {
        u32::try_from(token).is_ok_and(|token| token < self.n_vocab())
    }
}
