//! Reason for which a generation ended.

use serde::Serialize;

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
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

impl Finish {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Finish::End => "end",
            Finish::StopString => "stop_string",
            Finish::Length => "length",
            Finish::ContextFull => "context_full",
            Finish::Deadline => "deadline",
            Finish::Shutdown => "shutdown",
        }
    }
}
