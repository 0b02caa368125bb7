//! Numbers of tokens and sequences.

use llama_sys as sys;

/// Number of a token in the vocabulary.
pub type Token = sys::llama_token;

/// Number of a sequence in a context, counted from 0.
pub type SequenceId = u32;

/// The only sequence in a single-sequence context.
pub const ALONE: SequenceId = 0;
