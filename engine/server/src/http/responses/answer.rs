//! Answers of the Responses API: output items of thoughts, text and tool calls.

use chat::Part;
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::done::Done;
use crate::finish_reason::FinishReason;
use crate::http::answer_format::{AnswerChoice, AnswerFormat, EventBuffer};
use crate::http::ident::{answer_id, call_id};
use crate::http::openai::{add_ours, now};
use crate::http::out::CompletionRequest;
use crate::http::token_details::TokenDetails;
use crate::job::PromptProgress;
use crate::server::Server;

/// Answer to one request.
pub(super) struct ResponsesAnswer {
    id: String,
    created: u64,
    model: String,
    max_tokens: u32,
    temperature: f32,
    top_p: f32,
    /// Number of events so far.
    events: u64,
    /// Completed output items.
    output: Vec<Value>,
    /// Item that is being sent.
    open: Option<OutputItem>,
}

/// Output item of a response that is not complete.
struct OutputItem {
    kind: ItemKind,
    id: String,
    /// Thoughts, text or arguments so far.
    text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ItemKind {
    Reasoning,
    Message,
    Call { id: String, name: String },
}

impl OutputItem {
    fn new(kind: ItemKind) -> Self {
        let prefix = match kind {
            ItemKind::Reasoning => "rs_",
            ItemKind::Message => "msg_",
            ItemKind::Call { .. } => "fc_",
        };
        OutputItem { kind, id: answer_id(prefix), text: String::new() }
    }

    /// Returns the item. `status` is `in_progress`, `completed` or `incomplete`.
    fn value(&self, status: &str) -> Value {
        match &self.kind {
            ItemKind::Reasoning => json!({
                "type": "reasoning", "id": self.id, "summary": [], "status": status,
                "content": if status == IN_PROGRESS { json!([]) } else { json!([self.part()]) },
            }),
            ItemKind::Message => json!({
                "type": "message", "id": self.id, "role": "assistant", "status": status,
                "content": if status == IN_PROGRESS { json!([]) } else { json!([self.part()]) },
            }),
            ItemKind::Call { id, name } => json!({
                "type": "function_call", "id": self.id, "call_id": id, "name": name, "arguments": self.text,
                "status": status,
            }),
        }
    }

    /// Returns the content part of a text or of thoughts.
    fn part(&self) -> Value {
        match self.kind {
            ItemKind::Reasoning => json!({ "type": "reasoning_text", "text": self.text }),
            _ => json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": [] }),
        }
    }
}

const IN_PROGRESS: &str = "in_progress";
const COMPLETED: &str = "completed";
const INCOMPLETE: &str = "incomplete";

impl ResponsesAnswer {
    /// Creates the answer to a request.
    pub fn boxed(server: &Server, request: &CompletionRequest) -> Box<dyn AnswerFormat> {
        let generate = &request.generate;
        Box::new(ResponsesAnswer {
            id: answer_id("resp_"),
            created: now(),
            model: server.name.clone(),
            max_tokens: generate.max_tokens,
            temperature: generate.sampling.temperature,
            top_p: generate.sampling.top_p,
            events: 0,
            output: Vec::new(),
            open: None,
        })
    }

    /// Returns the response. `done` is its end, once it has one.
    fn response(&self, done: Option<&Done>) -> Value {
        let incomplete = done.and_then(|done| incomplete(done.finish));
        let status = match (done, incomplete) {
            (None, _) => IN_PROGRESS,
            (Some(_), Some(_)) => INCOMPLETE,
            (Some(_), None) => COMPLETED,
        };
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": incomplete.map(|reason| json!({ "reason": reason })),
            "model": self.model,
            "output": self.output,
            "max_output_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "parallel_tool_calls": true,
            "previous_response_id": null,
            "store": false,
            "tool_choice": "auto",
            "tools": [],
            "usage": done.map(usage),
        });
        if let Some(done) = done {
            add_ours(&mut response, done);
        }
        response
    }

    /// Sends `event` with its number.
    fn send(&mut self, events: &mut EventBuffer, mut event: Value) {
        event["sequence_number"] = self.events.into();
        self.events += 1;
        events.put_typed(&event);
    }

    /// Begins an item, and ends the item before it.
    fn open(&mut self, events: &mut EventBuffer, kind: ItemKind) {
        self.close(events, COMPLETED);
        let item = OutputItem::new(kind);
        let at = self.output.len();
        let added = json!({ "type": "response.output_item.added", "output_index": at, "item": item.value(IN_PROGRESS) });
        self.send(events, added);
        if !matches!(item.kind, ItemKind::Call { .. }) {
            let part = json!({
                "type": "response.content_part.added", "item_id": item.id, "output_index": at, "content_index": 0,
                "part": item.part(),
            });
            self.send(events, part);
        }
        self.open = Some(item);
    }

    /// Ends the open item, if there is one.
    fn close(&mut self, events: &mut EventBuffer, status: &str) {
        let Some(item) = self.open.take() else { return };
        let at = self.output.len();
        let end = |kind: &str, key: &str| {
            let mut event = json!({ "type": kind, "item_id": item.id, "output_index": at });
            event[key] = item.text.as_str().into();
            event
        };
        let mut event = match &item.kind {
            ItemKind::Reasoning => end("response.reasoning_text.done", "text"),
            ItemKind::Message => end("response.output_text.done", "text"),
            ItemKind::Call { .. } => end("response.function_call_arguments.done", "arguments"),
        };
        match &item.kind {
            ItemKind::Call { name, .. } => {
                event["name"] = name.as_str().into();
                self.send(events, event);
            }
            kind => {
                event["content_index"] = 0.into();
                if *kind == ItemKind::Message {
                    event["logprobs"] = json!([]);
                }
                self.send(events, event);
                let part = json!({
                    "type": "response.content_part.done", "item_id": item.id, "output_index": at, "content_index": 0,
                    "part": item.part(),
                });
                self.send(events, part);
            }
        }
        let value = item.value(status);
        self.send(events, json!({ "type": "response.output_item.done", "output_index": at, "item": value }));
        self.output.push(value);
    }

    /// Sends `text`, which continues the open item.
    fn delta(&mut self, events: &mut EventBuffer, text: &str) {
        let Some(item) = &mut self.open else { return };
        item.text.push_str(text);
        let kind = match item.kind {
            ItemKind::Reasoning => "response.reasoning_text.delta",
            ItemKind::Message => "response.output_text.delta",
            ItemKind::Call { .. } => "response.function_call_arguments.delta",
        };
        let mut event =
            json!({ "type": kind, "item_id": item.id, "output_index": self.output.len(), "delta": text });
        if !matches!(item.kind, ItemKind::Call { .. }) {
            event["content_index"] = 0.into();
        }
        if item.kind == ItemKind::Message {
            event["logprobs"] = json!([]);
        }
        self.send(events, event);
    }

    fn part(&mut self, events: &mut EventBuffer, part: Part) {
        let (kind, text) = match part {
            Part::Text(text) if text.is_empty() => return,
            Part::Thought(text) => (ItemKind::Reasoning, text),
            Part::Text(text) => (ItemKind::Message, text),
            Part::Call(name) => {
                return self.open(events, ItemKind::Call { id: format!("call_{}", call_id()), name });
            }
            Part::Arguments(more) => return self.delta(events, &more),
        };
        if self.open.as_ref().is_none_or(|item| item.kind != kind) {
            self.open(events, kind);
        }
        self.delta(events, &text);
    }

    /// Sends the last parts of the answer that ended with `done`.
    fn finish(&mut self, events: &mut EventBuffer, parts: Vec<Part>, done: &Done) {
        parts.into_iter().for_each(|part| self.part(events, part));
        let status = if incomplete(done.finish).is_some() { INCOMPLETE } else { COMPLETED };
        self.close(events, status);
    }
}

impl AnswerFormat for ResponsesAnswer {
    fn whole(&mut self, choices: Vec<AnswerChoice>) -> Value {
        let Some(choice) = choices.into_iter().next() else { return self.response(None) };
        // Only the items are needed, not the events.
        self.finish(&mut EventBuffer::default(), choice.parts, &choice.done);
        self.response(Some(&choice.done))
    }

    fn begin(&mut self, events: &mut EventBuffer, _: usize) {
        for kind in ["response.created", "response.in_progress"] {
            self.send(events, json!({ "type": kind, "response": self.response(None) }));
        }
    }

    fn parts(&mut self, events: &mut EventBuffer, _: usize, parts: Vec<Part>, _: TokenDetails) {
        parts.into_iter().for_each(|part| self.part(events, part));
    }

    fn progress(&mut self, events: &mut EventBuffer, _: usize, progress: PromptProgress) {
        self.send(events, json!({ "type": "response.in_progress", "response": self.response(None), "prompt_progress": progress }));
    }

    fn end(&mut self, events: &mut EventBuffer, choice: AnswerChoice) {
        self.finish(events, choice.parts, &choice.done);
        let kind = match incomplete(choice.done.finish) {
            Some(_) => "response.incomplete",
            None => "response.completed",
        };
        self.send(events, json!({ "type": kind, "response": self.response(Some(&choice.done)) }));
    }

    fn over(&mut self, _: &mut EventBuffer, _: &[Box<Done>]) {}

    /// Sends two events, because some clients read only `error`, and others only `response.failed`.
    fn failed(&mut self, events: &mut EventBuffer, refusal: &ApiError) {
        self.close(events, INCOMPLETE);
        let error = refusal.error();
        let mut response = self.response(None);
        response["status"] = "failed".into();
        response["error"] = json!({ "code": error["code"], "message": error["message"] });
        // OpenAI documents the fields of the error at the top level, but its SDKs raise an exception only if the key
        // `error` exists.
        let event = json!({
            "type": "error", "code": error["code"], "message": error["message"], "param": error["param"],
            "error": error,
        });
        self.send(events, event);
        self.send(events, json!({ "type": "response.failed", "response": response }));
    }
}

/// Returns the reason why an answer that ended because of `finish` is incomplete; `None` if it is complete.
fn incomplete(finish: FinishReason) -> Option<&'static str> {
    match finish {
        FinishReason::End | FinishReason::StopString => None,
        FinishReason::Length
        | FinishReason::ContextFull
        | FinishReason::Deadline
        | FinishReason::Shutdown => Some("max_output_tokens"),
    }
}

fn usage(done: &Done) -> Value {
    let usage = done.usage;
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": { "cached_tokens": usage.cached_tokens },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}
