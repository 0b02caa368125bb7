//! Answer formats of OpenAI's two text endpoints.

use crate::finish_reason::FinishReason;

/// Format of an answer, named after its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerShape {
    /// `/v1/completions`.
    Text,
    /// `/v1/chat/completions`.
    Chat,
}

/// Returns OpenAI's finish reason. Several of Anneal's reasons map to the same OpenAI reason.
pub(super) fn finish_reason(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::End | FinishReason::StopString => "stop",
        FinishReason::Length
        | FinishReason::ContextFull
        | FinishReason::Deadline
        | FinishReason::Shutdown => "length",
    }
}
