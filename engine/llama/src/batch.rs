//! Several sequences in one context: batches of their tokens, and what is kept of each.

use std::sync::Arc;

use llama_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::options::ContextOptions;
use crate::token::{SequenceId, Token};

/// The greatest number of sequences of a context: llama.cpp's LLAMA_MAX_SEQ.
pub const MAX_SEQUENCES: u32 = 256;

/// Tokens of several sequences, to be evaluated together.
#[derive(Debug, Default)]
pub struct Batch {
    tokens: Vec<Token>,
    positions: Vec<sys::llama_pos>,
    sequences: Vec<sys::llama_seq_id>,
    wants_logits: Vec<i8>,
    // What llama.cpp wants besides: a list of sequences for each token. Made anew for each call.
    counts: Vec<i32>,
    lists: Vec<*mut sys::llama_seq_id>,
}

// SAFETY: the pointers are only ever looked at during a call, right after they were made.
unsafe impl Send for Batch {}

impl Batch {
    /// Forgets its tokens.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.sequences.clear();
        self.wants_logits.clear();
    }

    /// Adds a token at `position` of `sequence`; returns its row, by which logits are asked for.
    pub fn push(&mut self, token: Token, position: u32, sequence: SequenceId, wants_logits: bool) -> i32 {
        self.tokens.push(token);
        self.positions.push(position.cast_signed());
        self.sequences.push(sequence.cast_signed());
        self.wants_logits.push(i8::from(wants_logits));
        self.tokens.len() as i32 - 1
    }

    /// Its tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// As llama.cpp takes it; alive until this batch is touched again.
    fn raw(&mut self) -> sys::llama_batch {
        self.counts.clear();
        self.counts.resize(self.tokens.len(), 1);
        self.lists.clear();
        // A pointer to each element of the array.
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

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// All of it was evaluated.
    Done,
    /// There are not as many cells: nothing changed.
    NoRoom,
}

impl Context {
    /// A context of `model` for `sequences` sequences, which share its cells: each can have all that the others leave.
    pub fn shared(model: &Arc<Model>, options: &ContextOptions, sequences: u32) -> Result<Self> {
        if !(1..=MAX_SEQUENCES).contains(&sequences) {
            return Err(Error::Usage(format!(
                "{sequences} sequences: llama.cpp keeps 1 to {MAX_SEQUENCES} in a context"
            )));
        }
        Self::for_sequences(model, options, sequences, None, |_| ())
    }

    /// The same with room for `rows` rows of logits in a batch, `sequences` or more.
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
            // llama.cpp takes no more than a batch has tokens.
            params.n_outputs_max = rows.min(params.n_batch);
        })?;
        context.rows = rows.min(context.n_batch());
        Ok(context)
    }

    /// Rows of logits that a batch may ask for.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// How many sequences it keeps.
    pub fn sequences(&self) -> u32 {
        self.sequences
    }

    /// Evaluates `batch`: no more than [`n_batch`](Self::n_batch) tokens, of sequences that it keeps, each at the
    /// position after the sequence's last, no more logits asked for than there are [`rows`](Self::rows).
    ///
    /// # Errors
    /// Where llama.cpp fails; what the sequences of the batch hold is unknown then.
    pub fn decode_batch(&mut self, batch: &mut Batch) -> Result<Decoded> {
        // llama.cpp asserts this.
        let rows = batch.wants_logits.iter().filter(|wanted| **wanted != 0).count();
        if rows > self.rows as usize {
            let why = format!("{rows} rows of logits in a context with room for {}", self.rows);
            return Err(Error::Decode { tokens: batch.len(), why });
        }
        self.evaluate(batch)
    }

    /// The same for a context with room for as many rows as a batch has tokens.
    pub(super) fn evaluate(&mut self, batch: &mut Batch) -> Result<Decoded> {
        let refused = |why: String| Err(Error::Decode { tokens: batch.len(), why });
        // llama.cpp asserts both of these.
        if batch.len() > self.n_batch() as usize {
            return refused(format!("a batch of this context has at most {} tokens", self.n_batch()));
        }
        if let Some(strange) =
            batch.sequences.iter().find(|sequence| sequence.cast_unsigned() >= self.sequences)
        {
            return refused(format!("sequence {strange} is none of the context's {}", self.sequences));
        }
        let tokens = batch.len();
        let raw = batch.raw();
        let (err, err_size) = self.message.parts();
        // SAFETY: the arrays of `raw` are as long as it says and outlive the call, which keeps no pointer to them.
        let code = unsafe { sys::anneal_decode_batch(self.raw.as_ptr(), &raw, err, err_size) };
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

    /// Forgets the tokens of `sequence` from position `from` on. False where the model's memory cannot forget a part
    /// (a recurrent state); all of it (`from` 0) it always can.
    pub fn forget(&mut self, sequence: SequenceId, from: u32) -> bool {
        if sequence >= self.sequences {
            return false;
        }
        let (err, err_size) = self.message.parts();
        // SAFETY: the context is live, the sequence one of its own.
        unsafe {
            let (sequence, from) = (sequence.cast_signed(), from.cast_signed());
            sys::anneal_seq_rm(self.raw.as_ptr(), sequence, from, err, err_size)
        }
    }

    /// Makes the first `tokens` tokens of `from` the tokens of `to` as well, without copying: they share cells. What
    /// `to` held is forgotten. For models with a plain cache ([`Model::has_plain_cache`]).
    pub fn share_prefix(&mut self, from: SequenceId, to: SequenceId, tokens: u32) -> bool {
        if from >= self.sequences || from == to || !self.model.has_plain_cache() || !self.forget(to, 0) {
            return false;
        }
        let (err, err_size) = self.message.parts();
        // SAFETY: the context is live and has a memory, the sequences are its own and differ.
        unsafe {
            let (from, to, end) = (from.cast_signed(), to.cast_signed(), tokens.cast_signed());
            sys::anneal_seq_cp(self.raw.as_ptr(), from, to, end, err, err_size)
        }
    }

    /// Puts the tokens of `from` behind the `held` tokens of `to`, without copying; `from` is empty then. False for
    /// models whose memory cannot move tokens.
    pub fn append(&mut self, from: SequenceId, to: SequenceId, held: u32) -> bool {
        if from.max(to) >= self.sequences || from == to || !self.model.has_plain_cache() {
            return false;
        }
        let (err, err_size) = self.message.parts();
        // SAFETY: the context is live, the sequences are its own and differ.
        unsafe {
            let (from, to, held) = (from.cast_signed(), to.cast_signed(), held.cast_signed());
            sys::anneal_seq_append(self.raw.as_ptr(), from, to, held, err, err_size)
        }
    }
}

impl Model {
    /// Whether `token` is one of the vocabulary.
    pub fn has_token(&self, token: Token) -> bool {
        u32::try_from(token).is_ok_and(|token| token < self.n_vocab())
    }
}
