//! Answers of `/v1/completions` and `/v1/chat/completions`, with the common extension `reasoning_content`.

use std::time::{SystemTime, UNIX_EPOCH};

use chat::Part;
use serde_json::{Value, json};

use super::answer_format::{AnswerBlock, AnswerChoice, AnswerFormat, EventBuffer, text_of};
use super::ident::{answer_id, call_id};
use super::out::CompletionRequest;
use super::shape::{AnswerShape, finish_reason};
use super::token_details::TokenDetails;
use crate::api_error::ApiError;
use crate::done::Done;
use crate::finish_reason::FinishReason;
use crate::job::PromptProgress;
use crate::server::Server;

/// Returns the number of seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// Answer to one request.
pub(super) struct OpenAiAnswer {
    shape: AnswerShape,
    id: String,
    created: u64,
    model: String,
    /// True if a stream must end with the token counts.
    include_usage: bool,
    /// Number of answers to each prompt.
    choices: u32,
    /// True if the object has the text of its first choice in `content`.
    has_content: bool,
    /// Number of calls in each choice that have begun.
    calls: Vec<usize>,
}

impl OpenAiAnswer {
    /// Creates the answer of `/v1/completions`.
    pub fn text(server: &Server, request: &CompletionRequest) -> Box<dyn AnswerFormat> {
        Self::boxed(server, request, AnswerShape::Text, "cmpl-")
    }

    /// Creates the answer of `/infill`, which also has the text under llama-server's name, `content`.
    pub fn infill(server: &Server, request: &CompletionRequest) -> Box<dyn AnswerFormat> {
        Box::new(OpenAiAnswer { has_content: true, ..Self::new(server, request, AnswerShape::Text, "cmpl-") })
    }

    /// Creates the answer of `/v1/chat/completions`.
    pub fn chat(server: &Server, request: &CompletionRequest) -> Box<dyn AnswerFormat> {
        Self::boxed(server, request, AnswerShape::Chat, "chatcmpl-")
    }

    fn boxed(
        server: &Server,
        request: &CompletionRequest,
        shape: AnswerShape,
        kind: &str,
    ) -> Box<dyn AnswerFormat> {
        Box::new(Self::new(server, request, shape, kind))
    }

    fn new(server: &Server, request: &CompletionRequest, shape: AnswerShape, kind: &str) -> Self {
        OpenAiAnswer {
            shape,
            id: answer_id(kind),
            created: now(),
            model: server.name.clone(),
            include_usage: request.include_usage,
            choices: request.choices,
            has_content: false,
            calls: Vec::new(),
        }
    }

    fn object(&self, kind: &str, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    /// Returns one choice of a complete answer.
    fn choice(&self, AnswerChoice { index, parts, details, done, has_calls }: AnswerChoice) -> Value {
        let finish = finish(done.finish, has_calls);
        match self.shape {
            AnswerShape::Text => {
                details.add_to(json!({ "index": index, "text": text_of(&parts), "finish_reason": finish }))
            }
            AnswerShape::Chat => {
                details.add_to(json!({ "index": index, "message": message(parts), "finish_reason": finish }))
            }
        }
    }

    fn text_chunk(&self, index: usize, text: &str, details: TokenDetails, finish: Option<&str>) -> Value {
        let choice = details.add_to(json!({ "index": index, "text": text, "finish_reason": finish }));
        let mut chunk = self.object("text_completion", json!([choice]));
        if self.has_content {
            chunk["content"] = text.into();
        }
        chunk
    }

    fn delta(&self, index: usize, delta: Value, details: TokenDetails, finish: Option<&str>) -> Value {
        let choice = details.add_to(json!({ "index": index, "delta": delta, "finish_reason": finish }));
        self.object("chat.completion.chunk", json!([choice]))
    }

    /// Returns the delta for `part` of choice `index`.
    fn delta_of(&mut self, index: usize, part: Part) -> Value {
        let count = &mut self.calls[index];
        match part {
            Part::Thought(text) => json!({ "reasoning_content": text }),
            Part::Text(text) => json!({ "content": text }),
            Part::Call(name) => {
                *count += 1;
                let function = json!({ "name": name, "arguments": "" });
                json!({ "tool_calls": [
                    { "index": *count - 1, "id": call_id(), "type": "function", "function": function },
                ]})
            }
            Part::Arguments(more) => {
                let at = count.saturating_sub(1);
                json!({ "tool_calls": [{ "index": at, "function": { "arguments": more } }] })
            }
        }
    }
}

impl AnswerFormat for OpenAiAnswer {
    fn whole(&mut self, choices: Vec<AnswerChoice>) -> Value {
        let ends: Vec<Box<Done>> = choices.iter().map(|choice| choice.done.clone()).collect();
        let choices = choices.into_iter().map(|choice| self.choice(choice));
        let mut choices: Vec<Value> = choices.collect();
        if ends.len() > 1 {
            choices.iter_mut().zip(&ends).for_each(|(choice, done)| add_end(choice, done));
        }
        let kind = match self.shape {
            AnswerShape::Text => "text_completion",
            AnswerShape::Chat => "chat.completion",
        };
        let mut object = self.object(kind, choices.into());
        if self.has_content {
            object["content"] = object["choices"][0]["text"].clone();
        }
        object["usage"] = usage(&ends, self.choices);
        if let Some(done) = ends.first() {
            add_ours(&mut object, done);
        }
        object
    }

    fn begin(&mut self, events: &mut EventBuffer, count: usize) {
        self.calls = vec![0; count];
        if self.shape == AnswerShape::Chat {
            for index in 0..count {
                let begin = json!({ "role": "assistant", "content": "" });
                events.put(&self.delta(index, begin, TokenDetails::default(), None));
            }
        }
    }

    fn parts(
        &mut self,
        events: &mut EventBuffer,
        index: usize,
        mut parts: Vec<Part>,
        mut details: TokenDetails,
    ) {
        // If the text is held back, the details are sent with an empty text.
        if parts.is_empty() && !details.is_empty() {
            parts.push(Part::Text(String::new()));
        }
        for part in parts {
            let details = std::mem::take(&mut details);
            let chunk = match (self.shape, part) {
                (AnswerShape::Text, Part::Text(text)) => self.text_chunk(index, &text, details, None),
                (AnswerShape::Text, _) => continue,
                (AnswerShape::Chat, part) => {
                    let delta = self.delta_of(index, part);
                    self.delta(index, delta, details, None)
                }
            };
            events.put(&chunk);
        }
    }

    fn progress(&mut self, events: &mut EventBuffer, index: usize, progress: PromptProgress) {
        let mut chunk = match self.shape {
            AnswerShape::Text => self.text_chunk(index, "", TokenDetails::default(), None),
            AnswerShape::Chat => self.delta(index, json!({}), TokenDetails::default(), None),
        };
        // The name and the keys come from llama-server.
        chunk["prompt_progress"] = json!(progress);
        events.put(&chunk);
    }

    fn end(&mut self, events: &mut EventBuffer, choice: AnswerChoice) {
        let AnswerChoice { index, parts, details, done, has_calls } = choice;
        let finish = Some(finish(done.finish, has_calls));
        let mut last = match self.shape {
            AnswerShape::Text => self.text_chunk(index, &text_of(&parts), details, finish),
            // Clients expect text only in chunks without a finish reason.
            AnswerShape::Chat => {
                self.parts(events, index, parts, details);
                self.delta(index, json!({}), TokenDetails::default(), finish)
            }
        };
        add_ours(&mut last, &done);
        events.put(&last);
    }

    fn over(&mut self, events: &mut EventBuffer, ends: &[Box<Done>]) {
        if self.include_usage {
            let kind = match self.shape {
                AnswerShape::Text => "text_completion",
                AnswerShape::Chat => "chat.completion.chunk",
            };
            let mut object = self.object(kind, json!([]));
            object["usage"] = usage(ends, self.choices);
            events.put(&object);
        }
        events.put_line("data: [DONE]");
    }

    fn failed(&mut self, events: &mut EventBuffer, error: &ApiError) {
        events.put(&json!({ "error": error.error() }));
    }
}

/// Returns OpenAI's finish reason of an answer.
fn finish(finish: FinishReason, has_calls: bool) -> &'static str {
    if has_calls { "tool_calls" } else { finish_reason(finish) }
}

/// Returns the message of a complete answer.
fn message(parts: Vec<Part>) -> Value {
    let (mut thoughts, mut content, mut calls) = (String::new(), String::new(), Vec::new());
    for block in AnswerBlock::of(parts) {
        match block {
            AnswerBlock::Thought(text) => thoughts.push_str(&text),
            AnswerBlock::Text(text) => content.push_str(&text),
            AnswerBlock::Call { name, arguments } => calls.push((name, arguments)),
        }
    }
    let content = (calls.is_empty() || !content.is_empty()).then_some(content);
    let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
    if !thoughts.is_empty() {
        message["reasoning_content"] = thoughts.into();
    }
    if !calls.is_empty() {
        let call = |(name, arguments)| {
            let function = json!({ "name": name, "arguments": arguments });
            json!({ "id": call_id(), "type": "function", "function": function })
        };
        message["tool_calls"] = calls.into_iter().map(call).collect();
    }
    message
}

/// Returns the token counts of all answers. Each prompt has `choices` answers, and is counted only once, with the first
/// answer's number of cached tokens.
fn usage(ends: &[Box<Done>], choices: u32) -> Value {
    let prompts = || ends.iter().step_by(choices.max(1) as usize).map(|done| done.usage);
    let prompt: u32 = prompts().map(|usage| usage.prompt_tokens).sum();
    let cached: u32 = prompts().map(|usage| usage.cached_tokens).sum();
    let completion: u32 = ends.iter().map(|done| done.usage.completion_tokens).sum();
    let reasoning: u32 = ends.iter().map(|done| done.usage.reasoning_tokens).sum();
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": cached },
        "completion_tokens_details": { "reasoning_tokens": reasoning },
    })
}

/// Adds the fields that OpenAI's API does not have: the exact stop reason, the seed and the times.
pub(super) fn add_ours(object: &mut Value, done: &Done) {
    add_end(object, done);
    object["timings"] = done.timings.to_json(&done.usage);
    if let Some(report) = &done.device {
        object["device_sampling"] = json!(report);
    }
}

fn add_end(object: &mut Value, done: &Done) {
    object["stop"] = json!(done.finish);
    object["stop_string"] = json!(done.stop_string);
    object["seed"] = json!(done.seed);
}
