//! Text, thoughts and tool calls of an answer, whatever the format in which the client receives them.

use chat::{CallReader, ForcedReader, Part, ThoughtMarks, ThoughtReader};
use sampling::Constraint;

use crate::api_error::ApiError;
use crate::client::Client;
use crate::finish_reason::FinishReason;
use crate::request::{Generate, Prompt};
use crate::server::Server;

/// Reader that splits one answer into text, thoughts and tool calls.
#[derive(Clone, Debug)]
pub struct AnswerReader {
    thoughts: Option<ThoughtReader>,
    calls: ToolCallReader,
    /// True once a call has begun.
    has_call: bool,
}

#[derive(Clone, Debug)]
enum ToolCallReader {
    /// The answer contains no calls.
    None,
    Auto(Box<CallReader>),
    Forced(ForcedReader),
}

impl ToolCallReader {
    /// Adds `text` to the answer, and returns the parts that are now certain.
    fn push(&mut self, text: String) -> Vec<Part> {
        match self {
            ToolCallReader::None => vec![Part::Text(text)],
            ToolCallReader::Auto(reader) => reader.push(&text),
            ToolCallReader::Forced(reader) => reader.push(&text),
        }
    }

    /// Ends the answer, and returns the remaining parts.
    fn finish(&mut self) -> Vec<Part> {
        match self {
            ToolCallReader::Auto(reader) => reader.finish(),
            ToolCallReader::None | ToolCallReader::Forced(_) => Vec::new(),
        }
    }
}

impl AnswerReader {
    /// Creates the reader for an answer to `request`. Without `thoughts`, the answer contains no thoughts.
    pub fn new(
        request: &Generate,
        thoughts: Option<ThoughtReader>,
        server: &Server,
    ) -> Result<Self, ApiError> {
        let plain = AnswerReader { thoughts, calls: ToolCallReader::None, has_call: false };
        let Prompt::Messages(conversation) = &request.prompt else { return Ok(plain) };
        let offered = conversation.offered();
        let calls = match conversation.forced() {
            Some(_) => ToolCallReader::Forced(ForcedReader::default()),
            None if offered.is_empty() => ToolCallReader::None,
            None => match server.template()?.call_format() {
                Some(format) => {
                    ToolCallReader::Auto(Box::new(CallReader::new(format.clone(), offered.to_vec())))
                }
                None => ToolCallReader::None,
            },
        };
        Ok(AnswerReader { calls, ..plain })
    }

    /// Adds `text` to the answer, and returns the parts that are now certain.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        let parts = match &mut self.thoughts {
            Some(thoughts) => thoughts.push(text),
            None => vec![Part::Text(text.to_string())],
        };
        self.with_calls(parts)
    }

    /// Ends the answer, and returns the remaining parts.
    pub fn finish(&mut self) -> Vec<Part> {
        let parts = self.thoughts.as_mut().map(ThoughtReader::finish).unwrap_or_default();
        let mut parts = self.with_calls(parts);
        let rest = self.calls.finish();
        self.has_call |= rest.iter().any(|part| matches!(part, Part::Call(_)));
        parts.extend(rest);
        parts
    }

    /// True if an answer that ended because of `finish` ends with calls that the client must carry out.
    pub fn ends_with_calls(&self, finish: FinishReason) -> bool {
        match &self.calls {
            ToolCallReader::None => false,
            ToolCallReader::Auto(_) => {
                self.has_call && matches!(finish, FinishReason::End | FinishReason::StopString)
            }
            ToolCallReader::Forced(reader) => reader.is_over(),
        }
    }

    /// Looks for calls in the text of `parts`. A call within thoughts is a part of the thoughts.
    fn with_calls(&mut self, parts: Vec<Part>) -> Vec<Part> {
        let calls = |part| match part {
            Part::Text(text) if text.is_empty() => Vec::new(),
            Part::Text(text) => self.calls.push(text),
            other => vec![other],
        };
        let parts: Vec<Part> = parts.into_iter().flat_map(calls).collect();
        self.has_call |= parts.iter().any(|part| matches!(part, Part::Call(_)));
        parts
    }
}

/// Returns the reader that separates the thoughts from the rest of an answer to `generate`; `None` if the answer
/// contains none.
pub(super) async fn thoughts(
    server: &Server,
    client: &Client,
    generate: &Generate,
) -> Result<Option<ThoughtReader>, ApiError> {
    let Prompt::Messages(conversation) = &generate.prompt else { return Ok(None) };
    // An answer that must match a schema contains no thoughts.
    if matches!(generate.sampling.constraint, Some(Constraint::JsonSchema(_))) {
        return Ok(None);
    }
    let template = server.template()?;
    let Some(marks) = template.thought_marks() else {
        return Ok(Some(ThoughtReader::new(ThoughtMarks::default(), false)));
    };
    // Only the prompt shows if the template opens the thoughts, for example because of `enable_thinking`. Errors are
    // reported when the request's prompt is rendered.
    let conversation = conversation.clone();
    let is_open = server
        .aside(client, move || {
            conversation.prompt(&template).is_ok_and(|prompt| marks.are_open_after(&prompt))
        })
        .await?;
    Ok(Some(ThoughtReader::new(marks, is_open)))
}
