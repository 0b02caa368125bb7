//! Numbers of tokens and sequences.

use llama_sys as sys;

/// Number of a token in the vocabulary.
pub type Token = sys::llama_token;

/// Number of a sequence in a context, counted from 0.
pub type SequenceId = u32;

/// Sequence of a context with a single sequence.
pub const ALONE: SequenceId = 0;
