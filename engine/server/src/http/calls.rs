//! Tool calls in an answer, in OpenAI's format.

use std::hash::{BuildHasher, Hasher, RandomState};

use chat::{CallReader, ForcedReader, Part};
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::finish_reason::FinishReason;
use crate::request::{Generate, Prompt};
use crate::server::Server;

/// Reader of the tool calls in one answer.
#[derive(Clone, Debug)]
pub struct Calls {
    reader: ToolCallReader,
    /// Number of calls that have begun.
    count: usize,
}

#[derive(Clone, Debug)]
enum ToolCallReader {
    Auto(CallReader),
    Forced(ForcedReader),
}

impl Calls {
    /// Creates the reader for an answer to `request`. `None` if the answer cannot contain calls.
    pub fn of(request: &Generate, server: &Server) -> Result<Option<Self>, ApiError> {
        let Prompt::Messages(conversation) = &request.prompt else { return Ok(None) };
        let offered = conversation.offered();
        let reader = match conversation.forced() {
            Some(_) => Some(ToolCallReader::Forced(ForcedReader::default())),
            None if offered.is_empty() => None,
            None => {
                let format = server.template()?.call_format();
                format.map(|format| ToolCallReader::Auto(CallReader::new(format, offered.to_vec())))
            }
        };
        Ok(reader.map(|reader| Calls { reader, count: 0 }))
    }

    /// Returns the message of a complete answer, and its finish reason.
    pub fn message(&mut self, text: &str, finish: FinishReason) -> (Value, &'static str) {
        let mut content = String::new();
        let mut calls: Vec<(String, String)> = Vec::new();
        let parts = [self.parts(text), self.rest()].concat();
        for part in parts {
            match (part, calls.last_mut()) {
                (Part::Text(text), _) => content.push_str(&text),
                (Part::Call(name), _) => calls.push((name, String::new())),
                (Part::Arguments(more), Some((_, arguments))) => arguments.push_str(&more),
                (Part::Arguments(_), None) => {}
            }
        }
        self.count = calls.len();
        let content = (calls.is_empty() || !content.is_empty()).then_some(content);
        let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
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
            ToolCallReader::Auto(_) => self.count > 0,
            ToolCallReader::Forced(reader) => reader.is_over(),
        };
        match super::shape::finish_reason(finish) {
            _ if whole && matches!(self.reader, ToolCallReader::Forced(_)) => "tool_calls",
            "stop" if whole => "tool_calls",
            other => other,
        }
    }

    fn parts(&mut self, text: &str) -> Vec<Part> {
        match &mut self.reader {
            ToolCallReader::Auto(reader) => reader.push(text),
            ToolCallReader::Forced(reader) => reader.push(text),
        }
    }

    fn rest(&mut self) -> Vec<Part> {
        match &mut self.reader {
            ToolCallReader::Auto(reader) => reader.finish(),
            ToolCallReader::Forced(_) => Vec::new(),
        }
    }

    fn told(&mut self, parts: Vec<Part>) -> Vec<Value> {
        let mut told = |part| match part {
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
