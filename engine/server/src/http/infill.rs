//! Route `POST /infill`: generates the text between a prefix and a suffix. The names of the fields come from
//! llama-server.

use axum::extract::{Request, State};
use axum::response::Response;

use super::app::App;
use super::completions::{choices, include_usage};
use super::openai::OpenAiAnswer;
use super::out::{CompletionRequest, Dialect, respond};
use super::respond::refuse;
use super::shape::AnswerShape;
use super::token_details::return_tokens;
use crate::api_error::ApiError;
use crate::fields::Fields;
use crate::infill::{Infill, tokens_of};
use crate::request::{Defaults, Generate, Prompt, take_logprobs};
use crate::server::Server;

const INFILL: Dialect = Dialect { shape: AnswerShape::Text, read, answer: OpenAiAnswer::infill, refuse };

/// Handles `POST /infill`.
pub async fn infill(State(registry): App, request: Request) -> Response {
    respond(&registry, request, &INFILL).await
}

fn read(server: &Server, fields: &mut Fields) -> Result<CompletionRequest, ApiError> {
    tokens_of(&server.model, &server.name)?;
    take(fields, &server.current().defaults)
}

/// Reads a request. Unknown fields are ignored, because clients send many fields that the server does not support.
pub(super) fn take(fields: &mut Fields, defaults: &Defaults) -> Result<CompletionRequest, ApiError> {
    let choices = choices(fields)?;
    let include_usage = include_usage(fields)?;
    let return_tokens = return_tokens(fields)?;
    let prompt = Prompt::Infill(Box::new(Infill::take(fields)?));
    // `n_predict` is llama-server's name for `max_tokens`.
    let (old, new) = (fields.tokens("n_predict", 0)?, fields.tokens("max_tokens", 0)?);
    let mut generate = Generate::take(fields, prompt, defaults)?;
    generate.max_tokens = old.or(new).unwrap_or(generate.max_tokens);
    generate.logprobs = take_logprobs(fields)?;
    Ok(CompletionRequest { generate, choices, include_usage, return_tokens })
}
