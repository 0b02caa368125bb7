//! Shapes of answers: those of OpenAI's two endpoints for text.

use crate::finish_reason::Finish;

/// Which endpoint's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `/v1/completions`
    Text,
    /// `/v1/chat/completions`
    Chat,
}

/// OpenAI knows no other.
pub(super) fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::End | Finish::StopString => "stop",
        Finish::Length | Finish::ContextFull | Finish::Deadline | Finish::Shutdown => "length",
    }
}
