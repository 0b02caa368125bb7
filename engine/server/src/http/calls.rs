//! Thoughts and tool calls in an answer, in the format of OpenAI's API and its common extension `reasoning_content`.

use std::hash::{BuildHasher, Hasher, RandomState};

use chat::{AnswerPiece, CallReader, ForcedReader, Part, ThoughtReader};
use serde_json::{Value, json};

use crate::api_error::ApiError;
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

/// Part of an answer.
#[derive(Clone, Debug)]
enum AnswerPart {
    Thought(String),
    Other(Part),
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
                (AnswerPart::Thought(text), _) => thoughts.push_str(&text),
                (AnswerPart::Other(Part::Text(text)), _) => content.push_str(&text),
                (AnswerPart::Other(Part::Call(name)), _) => calls.push((name, String::new())),
                (AnswerPart::Other(Part::Arguments(more)), Some((_, arguments))) => arguments.push_str(&more),
                (AnswerPart::Other(Part::Arguments(_)), None) => {}
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

    fn parts(&mut self, text: &str) -> Vec<AnswerPart> {
        let pieces = match &mut self.thoughts {
            Some(thoughts) => thoughts.push(text),
            None => vec![AnswerPiece::Text(text.to_string())],
        };
        self.parts_of(pieces)
    }

    fn rest(&mut self) -> Vec<AnswerPart> {
        let pieces = self.thoughts.as_mut().map(ThoughtReader::finish).unwrap_or_default();
        let mut parts = self.parts_of(pieces);
        if let ToolCallReader::Auto(reader) = &mut self.reader {
            parts.extend(reader.finish().into_iter().map(AnswerPart::Other));
        }
        parts
    }

    /// Looks for calls in the text of `pieces`. A call within thoughts is a part of the thoughts.
    fn parts_of(&mut self, pieces: Vec<AnswerPiece>) -> Vec<AnswerPart> {
        let mut parts = Vec::new();
        for piece in pieces {
            match (piece, &mut self.reader) {
                (AnswerPiece::Thought(text), _) => parts.push(AnswerPart::Thought(text)),
                (AnswerPiece::Text(text), _) if text.is_empty() => {}
                (AnswerPiece::Text(text), ToolCallReader::None) => {
                    parts.push(AnswerPart::Other(Part::Text(text)))
                }
                (AnswerPiece::Text(text), ToolCallReader::Auto(reader)) => {
                    parts.extend(reader.push(&text).into_iter().map(AnswerPart::Other));
                }
                (AnswerPiece::Text(text), ToolCallReader::Forced(reader)) => {
                    parts.extend(reader.push(&text).into_iter().map(AnswerPart::Other));
                }
            }
        }
        parts
    }

    fn told(&mut self, parts: Vec<AnswerPart>) -> Vec<Value> {
        let mut told = |part| match part {
            AnswerPart::Thought(text) => json!({ "reasoning_content": text }),
            AnswerPart::Other(Part::Text(text)) => json!({ "content": text }),
            AnswerPart::Other(Part::Call(name)) => {
                self.count += 1;
                let function = json!({ "name": name, "arguments": "" });
                json!({ "tool_calls": [{ "index": self.count - 1, "id": id(), "type": "function", "function": function }] })
            }
            AnswerPart::Other(Part::Arguments(more)) => {
                let index = self.count.saturating_sub(1);
                json!({ "tool_calls": [{ "index": index, "function": { "arguments": more } }] })
            }
        };
        parts.into_iter().map(&mut told).collect()
    }
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
