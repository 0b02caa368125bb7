//! Text, thoughts and tool calls of an answer, independent of the format in which the client receives them.

use chat::{CallProgress, CallReader, ForcedReader, Offered, Part, ThoughtReader};

use crate::api_error::ApiError;
use crate::finish_reason::FinishReason;
use crate::request::{Generate, Prompt};
use crate::server::Server;

/// Reader that splits one answer into text, thoughts and tool calls.
#[derive(Clone, Debug)]
pub struct AnswerReader {
    thoughts: Option<ThoughtReader>,
    calls: ToolCallReader,
    /// Progress of the last call.
    last_call: CallProgress,
}

#[derive(Clone, Debug)]
enum ToolCallReader {
    /// The answer contains no calls, or the reader of the thoughts finds them.
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

/// Reader of an answer to a request that is not submitted yet.
pub struct NewReader {
    calls: ToolCallReader,
    /// Functions that the reader of the thoughts looks for.
    offered: Vec<Offered>,
    /// True if thoughts are separated from the text.
    is_separate: bool,
}

impl NewReader {
    /// Creates the reader for an answer of `server` to `generate`.
    ///
    /// # Errors
    /// If the request is a conversation and the model has no template.
    pub fn of(server: &Server, generate: &Generate) -> Result<Self, ApiError> {
        let plain = NewReader { calls: ToolCallReader::None, offered: Vec::new(), is_separate: false };
        let Prompt::Messages(conversation) = &generate.prompt else { return Ok(plain) };
        let offered = conversation.offered();
        let template = server.template()?;
        // The channel reader also finds calls, even if thoughts remain in the text. If the template does not show the
        // tools, a message describes them and asks for another format.
        let has_channels = template.thought_format().has_channels() && template.shows_tools();
        let calls = match conversation.forced() {
            Some(_) => ToolCallReader::Forced(ForcedReader::default()),
            None if offered.is_empty() || has_channels => ToolCallReader::None,
            None => match template.call_format() {
                Some(format) => {
                    ToolCallReader::Auto(Box::new(CallReader::new(format.clone(), offered.to_vec())))
                }
                None => ToolCallReader::None,
            },
        };
        let offered = if has_channels { offered.to_vec() } else { Vec::new() };
        Ok(NewReader { calls, offered, is_separate: generate.reasoning.is_separate })
    }

    /// Returns the reader. `thoughts` is the reader of the thoughts, which depends on the prompt.
    pub fn with(self, thoughts: Option<ThoughtReader>) -> AnswerReader {
        let finds_calls = !self.offered.is_empty();
        let thoughts = thoughts.filter(|_| self.is_separate || finds_calls);
        let thoughts = match thoughts.map(|reader| reader.offering(self.offered)) {
            Some(ThoughtReader::Channels(reader)) if !self.is_separate => {
                Some(ThoughtReader::Channels(reader.keeping_thoughts()))
            }
            thoughts => thoughts,
        };
        AnswerReader { thoughts, calls: self.calls, last_call: CallProgress::default() }
    }
}

impl AnswerReader {
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
        rest.iter().for_each(|part| self.last_call.follow(part));
        parts.extend(rest);
        parts
    }

    /// True if an answer that ended because of `finish` ends with calls that the client must carry out.
    pub fn ends_with_calls(&self, finish: FinishReason) -> bool {
        match &self.calls {
            // A reader of channels finds calls itself.
            ToolCallReader::None | ToolCallReader::Auto(_) => match finish {
                FinishReason::End => self.last_call.has_begun(),
                // A stop string inside the arguments cuts off the call.
                FinishReason::StopString => self.last_call.is_complete(),
                _ => false,
            },
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
        parts.iter().for_each(|part| self.last_call.follow(part));
        parts
    }
}
