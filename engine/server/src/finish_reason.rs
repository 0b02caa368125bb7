//! Reasons why a generation ends.

use serde::Serialize;

/// Reason why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended the text.
    End,
    /// A stop string was found.
    StopString,
    /// The requested number of tokens was generated.
    Length,
    /// The context has no room for another token.
    ContextFull,
    /// The request timed out.
    Deadline,
    /// The server is shutting down.
    Shutdown,
}

impl FinishReason {
    /// Returns the name of the reason in answers and logs.
    pub fn word(self) -> &'static str {
        match self {
            FinishReason::End => "end",
            FinishReason::StopString => "stop_string",
            FinishReason::Length => "length",
            FinishReason::ContextFull => "context_full",
            FinishReason::Deadline => "deadline",
            FinishReason::Shutdown => "shutdown",
        }
    }
}
