//! Route `POST /v1/chat/completions`.

use axum::extract::{Request, State};
use axum::response::Response;

use super::app::App;
use super::completions::{choices, include_usage};
use super::format;
use super::openai::OpenAiAnswer;
use super::other::is_called;
use super::out::{CompletionRequest, Dialect, respond};
use super::respond::refuse;
use super::shape::AnswerShape;
use super::token_details::return_tokens;
use crate::api_error::ApiError;
use crate::conversation::Conversation;
use crate::fields::Fields;
use crate::logprobs::MOST;
use crate::request::{Defaults, Generate, Prompt};
use crate::server::Server;

const CHAT: Dialect = Dialect { shape: AnswerShape::Chat, read, answer: OpenAiAnswer::chat, refuse };

/// Handles `POST /v1/chat/completions`.
pub async fn chat(State(registry): App, request: Request) -> Response {
    respond(&registry, request, &CHAT).await
}

/// Reads the request. Unknown fields are ignored, because clients send many fields that the server does not support.
fn read(server: &Server, fields: &mut Fields) -> Result<CompletionRequest, ApiError> {
    server.template()?;
    take(fields, &server.name, &server.current().defaults)
}

/// Reads a request to a server whose model is called `name`.
pub(super) fn take(
    fields: &mut Fields,
    name: &str,
    defaults: &Defaults,
) -> Result<CompletionRequest, ApiError> {
    if let Some(model) = fields.text("model")? {
        is_called(name, &model)?;
    }
    let choices = choices(fields)?;
    let logprobs = logprobs(fields)?;
    let include_usage = include_usage(fields)?;
    let return_tokens = return_tokens(fields)?;
    let messages = fields.raw("messages");
    let messages = messages
        .ok_or_else(|| ApiError::field("messages", "is missing: give the conversation to continue"))?;
    let prompt = Prompt::Messages(Conversation::take(fields, messages)?);
    // `max_completion_tokens` is the newer name of `max_tokens` and overrides it.
    let max_tokens = fields.tokens("max_completion_tokens", 1)?;
    let format = format::take(fields)?;
    let mut generate = Generate::take(fields, prompt, defaults)?;
    generate.max_tokens = max_tokens.unwrap_or(generate.max_tokens);
    format::apply(format, &mut generate)?;
    generate.logprobs = logprobs;
    Ok(CompletionRequest { generate, choices, include_usage, return_tokens })
}

/// Returns the number of alternatives per token, if log-probabilities are requested.
fn logprobs(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let wanted = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.whole("top_logprobs", 0..=MOST)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::field("top_logprobs", "needs \"logprobs\": true")),
    }
}
