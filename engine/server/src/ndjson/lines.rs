//! Lines of an answer in the line protocol.

use chat::{Part, ThoughtReader};
use llama::Token;
use serde::Serialize;
use serde_json::{Value, json};

use crate::done::Done;
use crate::job::{Piece, PromptProgress};
use crate::logprobs::Likelihood;

/// Line for one token of a streamed answer.
#[derive(Serialize)]
pub(super) struct TokenLine<'a> {
    #[serde(skip_serializing_if = "Value::is_null")]
    id: &'a Value,
    token: Token,
    text: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reasoning_content: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprob: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top: Option<Value>,
}

/// Line that reports the progress of evaluating the prompt.
#[derive(Serialize)]
pub(super) struct ProgressLine<'a> {
    #[serde(skip_serializing_if = "Value::is_null")]
    pub(super) id: &'a Value,
    pub(super) prompt_progress: PromptProgress,
}

impl<'a> TokenLine<'a> {
    /// Creates the line for `piece`. `text` is the text of `piece`, split into answer and thoughts.
    pub(super) fn new(id: &'a Value, piece: &'a Piece, text: &'a SplitText) -> Self {
        let likelihood = piece.likelihood.as_ref();
        TokenLine {
            id,
            token: piece.token,
            text: &text.text,
            reasoning_content: &text.thoughts,
            logprob: likelihood.map(|likelihood| likelihood.chosen.logprob),
            top: likelihood.map(|likelihood| likelihood.top_json()),
        }
    }
}

/// Text and thoughts of an answer, separated.
#[derive(Default)]
pub(super) struct SplitText {
    text: String,
    thoughts: String,
}

impl SplitText {
    /// Splits `text`, the next piece of an answer that `reader` reads. Without a reader, the answer has no thoughts.
    pub(super) fn of(reader: &mut Option<ThoughtReader>, text: &str) -> Self {
        match reader {
            Some(reader) => SplitText::joined(reader.push(text)),
            None => SplitText { text: text.to_string(), thoughts: String::new() },
        }
    }

    /// Returns the rest of an answer that has ended.
    pub(super) fn rest(reader: &mut Option<ThoughtReader>) -> Self {
        SplitText::joined(reader.as_mut().map(ThoughtReader::finish).unwrap_or_default())
    }

    fn joined(parts: Vec<Part>) -> Self {
        let mut all = SplitText::default();
        for part in parts {
            match part {
                Part::Thought(more) => all.thoughts.push_str(&more),
                Part::Text(more) => all.text.push_str(&more),
                // The reader does not look for calls.
                Part::Call(_) | Part::Arguments(_) => {}
            }
        }
        all
    }

    pub(super) fn add(&mut self, more: &SplitText) {
        self.text.push_str(&more.text);
        self.thoughts.push_str(&more.thoughts);
    }

    pub(super) fn len(&self) -> usize {
        self.text.len() + self.thoughts.len()
    }
}

/// Generated tokens of an answer that is sent in one line.
#[derive(Default)]
pub(super) struct WholeAnswer {
    pub(super) text: SplitText,
    tokens: Vec<Token>,
    pub(super) logprobs: Vec<Likelihood>,
}

impl WholeAnswer {
    /// Adds `piece`. `text` is the text of `piece`, split into answer and thoughts.
    pub(super) fn add(&mut self, piece: Piece, text: &SplitText) {
        self.text.add(text);
        self.tokens.push(piece.token);
        self.logprobs.extend(piece.likelihood.map(|likelihood| *likelihood));
    }
}

/// Adds the request's `id` to `line`, if there is one.
pub(super) fn with_id(id: &Value, mut line: Value) -> Value {
    if !id.is_null() {
        line["id"] = id.clone();
    }
    line
}

/// Returns the token counts. Includes the device's report if a device was asked to sample.
fn usage(done: &Done) -> Value {
    let mut usage = json!(done.usage);
    if let Some(report) = &done.device {
        usage["device_sampling"] = json!(report);
    }
    usage
}

/// Returns the last line of an answer, with the text that was not yet sent.
pub(super) fn last(id: &Value, done: &Done, whole: &WholeAnswer, stream: bool) -> Value {
    let mut line = json!({
        "done": true,
        "text": whole.text.text,
        "stop": done.finish,
        "stop_string": done.stop_string,
        "seed": done.seed,
        "usage": usage(done),
        "timings": done.timings.to_json(&done.usage),
    });
    if !whole.text.thoughts.is_empty() {
        line["reasoning_content"] = whole.text.thoughts.as_str().into();
    }
    if !stream {
        line["tokens"] = json!(whole.tokens);
        if !whole.logprobs.is_empty() {
            line["logprobs"] = whole.logprobs.iter().map(Likelihood::to_json).collect();
        }
    }
    with_id(id, line)
}
