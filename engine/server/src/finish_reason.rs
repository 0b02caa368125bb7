//! Reason for which a generation ended.

use serde::Serialize;

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended the text.
    End,
    /// A stop string.
    StopString,
    /// As many tokens as asked for.
    Length,
    /// The context has no room for another token.
    ContextFull,
    /// The request's time is over.
    Deadline,
    /// The server stops.
    Shutdown,
}

impl FinishReason {
    /// As it is written.
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
