//! Thoughts and tool calls in an answer, in the format of OpenAI's API and its common extension `reasoning_content`.

use std::hash::{BuildHasher, Hasher, RandomState};

use chat::{CallReader, ForcedReader, Part, ThoughtMarks, ThoughtReader};
use sampling::Constraint;
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::client::Client;
use crate::finish_reason::FinishReason;
use crate::request::{Generate, Prompt};
use crate::server::Server;

/// Reader of the thoughts and the tool calls in one answer.
#[derive(Clone, Debug)]
pub struct Calls {
    thoughts: Option<ThoughtReader>,
    reader: ToolCallReader,
    /// Number of calls that have begun.
    count: usize,
}

#[derive(Clone, Debug)]
enum ToolCallReader {
    /// The answer contains no calls.
    None,
    Auto(CallReader),
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

impl Calls {
    /// Creates the reader for an answer to `request`. `None` if the answer can contain neither thoughts nor calls.
    pub fn of(
        request: &Generate,
        thoughts: Option<ThoughtReader>,
        server: &Server,
    ) -> Result<Option<Self>, ApiError> {
        let Prompt::Messages(conversation) = &request.prompt else { return Ok(None) };
        let offered = conversation.offered();
        let reader = match conversation.forced() {
            Some(_) => ToolCallReader::Forced(ForcedReader::default()),
            None if offered.is_empty() => ToolCallReader::None,
            None => match server.template()?.call_format() {
                Some(format) => ToolCallReader::Auto(CallReader::new(format, offered.to_vec())),
                None => ToolCallReader::None,
            },
        };
        let is_plain = thoughts.is_none() && matches!(reader, ToolCallReader::None);
        Ok((!is_plain).then_some(Calls { thoughts, reader, count: 0 }))
    }

    /// Returns the message of a complete answer, and its finish reason.
    pub fn message(&mut self, text: &str, finish: FinishReason) -> (Value, &'static str) {
        let (mut thoughts, mut content) = (String::new(), String::new());
        let mut calls: Vec<(String, String)> = Vec::new();
        let parts = [self.parts(text), self.rest()].concat();
        for part in parts {
            match (part, calls.last_mut()) {
                (Part::Thought(text), _) => thoughts.push_str(&text),
                (Part::Text(text), _) => content.push_str(&text),
                (Part::Call(name), _) => calls.push((name, String::new())),
                (Part::Arguments(more), Some((_, arguments))) => arguments.push_str(&more),
                (Part::Arguments(_), None) => {}
            }
        }
        self.count = calls.len();
        let content = (calls.is_empty() || !content.is_empty()).then_some(content);
        let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
        if !thoughts.is_empty() {
            message["reasoning_content"] = thoughts.into();
        }
        if !calls.is_empty() {
            let call = |(name, arguments)| json!({ "id": id(), "type": "function", "function": { "name": name, "arguments": arguments } });
            message["tool_calls"] = calls.into_iter().map(call).collect();
        }
        (message, self.finish_reason(finish))
    }

    /// Returns the deltas of a stream for the next `text`.
    pub fn deltas(&mut self, text: &str) -> Vec<Value> {
        let parts = self.parts(text);
        self.told(parts)
    }

    /// Returns the deltas at the end of a stream.
    pub fn last(&mut self) -> Vec<Value> {
        let parts = self.rest();
        self.told(parts)
    }

    /// Returns the finish reason of an answer whose text was emitted completely.
    pub fn finish_reason(&self, finish: FinishReason) -> &'static str {
        let whole = match &self.reader {
            ToolCallReader::None | ToolCallReader::Auto(_) => self.count > 0,
            ToolCallReader::Forced(reader) => reader.is_over(),
        };
        match super::shape::finish_reason(finish) {
            _ if whole && matches!(self.reader, ToolCallReader::Forced(_)) => "tool_calls",
            "stop" if whole => "tool_calls",
            other => other,
        }
    }

    fn parts(&mut self, text: &str) -> Vec<Part> {
        let parts = match &mut self.thoughts {
            Some(thoughts) => thoughts.push(text),
            None => vec![Part::Text(text.to_string())],
        };
        self.with_calls(parts)
    }

    fn rest(&mut self) -> Vec<Part> {
        let parts = self.thoughts.as_mut().map(ThoughtReader::finish).unwrap_or_default();
        let mut parts = self.with_calls(parts);
        parts.extend(self.reader.finish());
        parts
    }

    /// Looks for calls in the text of `parts`. A call within thoughts is a part of the thoughts.
    fn with_calls(&mut self, parts: Vec<Part>) -> Vec<Part> {
        let calls = |part| match part {
            Part::Text(text) if text.is_empty() => Vec::new(),
            Part::Text(text) => self.reader.push(text),
            other => vec![other],
        };
        parts.into_iter().flat_map(calls).collect()
    }

    fn told(&mut self, parts: Vec<Part>) -> Vec<Value> {
        let mut told = |part| match part {
            Part::Thought(text) => json!({ "reasoning_content": text }),
            Part::Text(text) => json!({ "content": text }),
            Part::Call(name) => {
                self.count += 1;
                let function = json!({ "name": name, "arguments": "" });
                json!({ "tool_calls": [{ "index": self.count - 1, "id": id(), "type": "function", "function": function }] })
            }
            Part::Arguments(more) => {
                let index = self.count.saturating_sub(1);
                json!({ "tool_calls": [{ "index": index, "function": { "arguments": more } }] })
            }
        };
        parts.into_iter().map(&mut told).collect()
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

/// Returns a random ID for a call. It has nine letters and digits, because Mistral's templates reject other IDs.
fn id() -> String {
    const SIGNS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let mut random = RandomState::new().build_hasher().finish();
    let mut sign = || {
        let sign = SIGNS[(random % SIGNS.len() as u64) as usize];
        random /= SIGNS.len() as u64;
        char::from(sign)
    };
    (0..9).map(|_| sign()).collect()
}
