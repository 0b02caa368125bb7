//! Tokens and sequences by number.

use llama_sys as sys;

/// Number of a token in the vocabulary.
pub type Token = sys::llama_token;

/// A sequence of a context, from 0.
pub type SequenceId = u32;

/// The sequence of a context that has no other.
pub const ALONE: SequenceId = 0;
