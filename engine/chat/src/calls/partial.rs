//! Incomplete text that more input may complete.

/// Reason why a text is not a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum No {
    /// The text is an incomplete call.
    Incomplete,
    /// The text is not a call.
    Other,
}

/// Returns the length of the longest proper prefix of `mark` that `text` ends with, in bytes.
pub(crate) fn overlap(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len().saturating_sub(1));
    let ends = |length: &usize| text.as_bytes().ends_with(&mark.as_bytes()[..*length]);
    (1..=longest).rev().find(ends).unwrap_or(0)
}
