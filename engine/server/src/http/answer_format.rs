//! Interface of the answer formats: OpenAI's completions, chat and responses, and Anthropic's messages.

use chat::Part;
use serde_json::Value;

use super::token_details::TokenDetails;
use crate::api_error::ApiError;
use crate::done::Done;
use crate::job::PromptProgress;

/// Complete answer, or one of several answers to a request.
pub(super) struct AnswerChoice {
    /// Index of the answer.
    pub index: usize,
    /// Text, thoughts and tool calls in the order of the answer.
    pub parts: Vec<Part>,
    /// Details of the tokens.
    pub details: TokenDetails,
    /// End of the generation.
    pub done: Box<Done>,
    /// True if the answer ends with tool calls that the client must carry out.
    pub has_calls: bool,
}

/// Format of an endpoint's answers, with the state of one answer.
pub(super) trait AnswerFormat: Send {
    /// Returns the JSON value of a complete answer with one or more `choices`.
    fn whole(&mut self, choices: Vec<AnswerChoice>) -> Value;

    /// Writes the first events of a stream with `count` choices.
    fn begin(&mut self, events: &mut EventBuffer, count: usize);

    /// Writes the events for the next `parts` of choice `index`, whose tokens have `details`.
    fn parts(&mut self, events: &mut EventBuffer, index: usize, parts: Vec<Part>, details: TokenDetails);

    /// Writes an event for the `progress` of evaluating the prompt of choice `index`.
    fn progress(&mut self, events: &mut EventBuffer, index: usize, progress: PromptProgress);

    /// Writes the last events of a choice, whose `parts` are the parts that have not been written yet.
    fn end(&mut self, events: &mut EventBuffer, choice: AnswerChoice);

    /// Writes the last events of the stream. `ends` contains the ends of all choices.
    fn over(&mut self, events: &mut EventBuffer, ends: &[Box<Done>]);

    /// Writes the event for `error`, which ends the stream.
    fn failed(&mut self, events: &mut EventBuffer, error: &ApiError);
}

/// Server-sent events that have not been sent yet.
#[derive(Debug, Default)]
pub(super) struct EventBuffer(Vec<u8>);

impl EventBuffer {
    /// Adds an event with `data`.
    pub fn put(&mut self, data: &Value) {
        self.0.extend_from_slice(format!("data: {data}\n\n").as_bytes());
    }

    /// Adds an event whose name is the `type` of its data.
    pub fn put_typed(&mut self, data: &Value) {
        let name = data["type"].as_str().unwrap_or_default();
        self.0.extend_from_slice(format!("event: {name}\ndata: {data}\n\n").as_bytes());
    }

    /// Adds `line`, which is not JSON.
    pub fn put_line(&mut self, line: &str) {
        self.0.extend_from_slice(line.as_bytes());
        self.0.extend_from_slice(b"\n\n");
    }

    /// True if there are no events.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes all events.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

/// Part of a complete answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AnswerBlock {
    /// Thoughts.
    Thought(String),
    /// Text.
    Text(String),
    /// Tool call.
    Call {
        /// Name of the function.
        name: String,
        /// Arguments, as JSON; incomplete if the answer was cut off.
        arguments: String,
    },
}

impl AnswerBlock {
    /// Joins the `parts` of an answer. Adjacent blocks are of different kinds, except calls. No text is empty.
    pub fn of(parts: Vec<Part>) -> Vec<Self> {
        let mut blocks = Vec::new();
        for part in parts {
            match (part, blocks.last_mut()) {
                (Part::Thought(more), Some(AnswerBlock::Thought(text)))
                | (Part::Text(more), Some(AnswerBlock::Text(text))) => text.push_str(&more),
                (Part::Arguments(more), Some(AnswerBlock::Call { arguments, .. })) => {
                    arguments.push_str(&more)
                }
                (Part::Thought(text), _) => blocks.push(AnswerBlock::Thought(text)),
                (Part::Text(text), _) if !text.is_empty() => blocks.push(AnswerBlock::Text(text)),
                (Part::Call(name), _) => blocks.push(AnswerBlock::Call { name, arguments: String::new() }),
                (Part::Text(_) | Part::Arguments(_), _) => {}
            }
        }
        blocks
    }
}

/// Returns the texts of `parts` that are neither thoughts nor calls, joined.
pub(super) fn text_of(parts: &[Part]) -> String {
    let text = |part: &Part| match part {
        Part::Text(text) => text.clone(),
        _ => String::new(),
    };
    parts.iter().map(text).collect()
}
