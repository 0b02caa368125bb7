//! Answers of the Messages API: content blocks of thoughts, text and tool calls.

use chat::{Part, arguments_object};
use serde_json::{Value, json};

use super::error;
use crate::api_error::ApiError;
use crate::done::Done;
use crate::finish_reason::FinishReason;
use crate::http::answer_format::{AnswerBlock, AnswerChoice, AnswerFormat, EventBuffer};
use crate::http::ident::answer_id;
use crate::http::openai::add_ours;
use crate::http::out::CompletionRequest;
use crate::http::token_details::TokenDetails;
use crate::job::PromptProgress;
use crate::server::Server;

/// Answer to one request.
pub(super) struct MessagesAnswer {
    id: String,
    model: String,
    /// Type of the block that is being sent.
    open: Option<&'static str>,
    /// Number of blocks that have begun.
    blocks: usize,
}

impl MessagesAnswer {
    /// Creates the answer to a request.
    pub fn boxed(server: &Server, _: &CompletionRequest) -> Box<dyn AnswerFormat> {
        let (id, model) = (answer_id("msg_"), server.name.clone());
        Box::new(MessagesAnswer { id, model, open: None, blocks: 0 })
    }

    fn message(&self, content: Value) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage(None),
        })
    }

    /// Begins `block`, and ends the block before it.
    fn open(&mut self, events: &mut EventBuffer, kind: &'static str, block: &Value) {
        self.close(events);
        events.put_typed(
            &json!({ "type": "content_block_start", "index": self.blocks, "content_block": block }),
        );
        self.open = Some(kind);
        self.blocks += 1;
    }

    /// Ends the open block, if there is one.
    fn close(&mut self, events: &mut EventBuffer) {
        if self.open.take().is_some() {
            events.put_typed(&json!({ "type": "content_block_stop", "index": self.blocks - 1 }));
        }
    }

    fn delta(&self, events: &mut EventBuffer, delta: &Value) {
        let index = self.blocks.saturating_sub(1);
        events.put_typed(&json!({ "type": "content_block_delta", "index": index, "delta": delta }));
    }

    fn part(&mut self, events: &mut EventBuffer, part: Part) {
        match part {
            Part::Thought(text) => {
                if self.open != Some(THINKING) {
                    self.open(events, THINKING, &thinking(""));
                }
                self.delta(events, &json!({ "type": "thinking_delta", "thinking": text }));
            }
            Part::Text(text) if text.is_empty() => {}
            Part::Text(text) => {
                if self.open != Some(TEXT) {
                    self.open(events, TEXT, &json!({ "type": TEXT, "text": "" }));
                }
                self.delta(events, &json!({ "type": "text_delta", "text": text }));
            }
            Part::Call(name) => self.open(events, TOOL_USE, &tool_use(&name, json!({}))),
            Part::Arguments(more) => {
                self.delta(events, &json!({ "type": "input_json_delta", "partial_json": more }));
            }
        }
    }
}

const THINKING: &str = "thinking";
const TEXT: &str = "text";
const TOOL_USE: &str = "tool_use";

/// Returns a block of thoughts. Only Anthropic's servers use the signature, but the SDK requires it.
fn thinking(text: &str) -> Value {
    json!({ "type": THINKING, "thinking": text, "signature": "" })
}

fn tool_use(name: &str, input: Value) -> Value {
    json!({ "type": TOOL_USE, "id": answer_id("toolu_"), "name": name, "input": input })
}

impl AnswerFormat for MessagesAnswer {
    fn whole(&mut self, choices: Vec<AnswerChoice>) -> Value {
        let Some(choice) = choices.into_iter().next() else { return self.message(json!([])) };
        let block = |block| match block {
            AnswerBlock::Thought(text) => thinking(&text),
            AnswerBlock::Text(text) => json!({ "type": TEXT, "text": text }),
            AnswerBlock::Call { name, arguments } => tool_use(&name, arguments_object(&arguments)),
        };
        let blocks: Value = AnswerBlock::of(choice.parts).into_iter().map(block).collect();
        let mut message = self.message(blocks);
        let (reason, sequence) = stop(&choice.done, choice.has_calls);
        message["stop_reason"] = reason.into();
        message["stop_sequence"] = sequence;
        message["usage"] = usage(Some(&choice.done));
        add_ours(&mut message, &choice.done);
        message
    }

    fn begin(&mut self, events: &mut EventBuffer, _: usize) {
        events.put_typed(&json!({ "type": "message_start", "message": self.message(json!([])) }));
    }

    fn parts(&mut self, events: &mut EventBuffer, _: usize, parts: Vec<Part>, _: TokenDetails) {
        parts.into_iter().for_each(|part| self.part(events, part));
    }

    fn progress(&mut self, events: &mut EventBuffer, _: usize, progress: PromptProgress) {
        events.put_typed(&json!({ "type": "ping", "prompt_progress": progress }));
    }

    fn end(&mut self, events: &mut EventBuffer, choice: AnswerChoice) {
        choice.parts.into_iter().for_each(|part| self.part(events, part));
        self.close(events);
        let (reason, sequence) = stop(&choice.done, choice.has_calls);
        let mut event = json!({
            "type": "message_delta",
            "delta": { "stop_reason": reason, "stop_sequence": sequence },
            "usage": usage(Some(&choice.done)),
        });
        add_ours(&mut event, &choice.done);
        events.put_typed(&event);
    }

    fn over(&mut self, events: &mut EventBuffer, _: &[Box<Done>]) {
        events.put_typed(&json!({ "type": "message_stop" }));
    }

    fn failed(&mut self, events: &mut EventBuffer, refusal: &ApiError) {
        events.put_typed(&error(refusal));
    }
}

/// Returns the stop reason and the stop string of an answer that ended with `done`.
fn stop(done: &Done, has_calls: bool) -> (&'static str, Value) {
    match done.finish {
        _ if has_calls => ("tool_use", Value::Null),
        FinishReason::End => ("end_turn", Value::Null),
        FinishReason::StopString => ("stop_sequence", json!(done.stop_string)),
        FinishReason::ContextFull => ("model_context_window_exceeded", Value::Null),
        FinishReason::Length | FinishReason::Deadline | FinishReason::Shutdown => ("max_tokens", Value::Null),
    }
}

/// Returns the token counts of an answer. All counts are 0 until the answer has ended. `input_tokens` excludes the
/// cached tokens.
fn usage(done: Option<&Done>) -> Value {
    let usage = done.map(|done| done.usage).unwrap_or_default();
    json!({
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    })
}
