//! Anthropic's Messages API: `POST /v1/messages` and `POST /v1/messages/count_tokens`.

mod answer;
pub(super) mod request;

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use self::answer::MessagesAnswer;
use super::app::{App, client_of, fields};
use super::out::{Dialect, respond};
use super::respond::{answer, refused};
use super::shape::AnswerShape;
use crate::api_error::{ApiError, ApiErrorKind};
use crate::models::ModelRegistry;

/// Beginning of the paths of this API.
pub(super) const PATH: &str = "/v1/messages";

const MESSAGES: Dialect =
    Dialect { shape: AnswerShape::Chat, read: request::read, answer: MessagesAnswer::boxed, refuse };

/// Handles `POST /v1/messages`.
pub async fn messages(State(registry): App, request: Request) -> Response {
    respond(&registry, request, &MESSAGES).await
}

/// Handles `POST /v1/messages/count_tokens`.
pub async fn count_tokens(State(registry): App, request: Request) -> Response {
    count(&registry, request).await.unwrap_or_else(|refusal| refuse(&refusal))
}

async fn count(registry: &Arc<ModelRegistry>, request: Request) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let client = client_of(&request);
    let mut fields = fields(registry, request).await?;
    let server = registry.choose(&mut fields, arrived).await?;
    let request = request::read(&server, &mut fields)?;
    drop(fields);
    let tokens = server.prompt_tokens(request.generate.prompt, &client).await?;
    Ok(answer(&json!({ "input_tokens": tokens.len() })))
}

/// Returns an error as a response in the format of this API.
pub(super) fn refuse(refusal: &ApiError) -> Response {
    refused(refusal, &error(refusal))
}

/// Returns `refusal` in the format of this API, with the other keys of OpenAI's format.
fn error(refusal: &ApiError) -> Value {
    let kind = match refusal.kind {
        ApiErrorKind::NoModel | ApiErrorKind::NotFound => "not_found_error",
        ApiErrorKind::TooLarge => "request_too_large",
        ApiErrorKind::Busy => "rate_limit_error",
        ApiErrorKind::NoRoom | ApiErrorKind::Overloaded | ApiErrorKind::Stopping => "overloaded_error",
        ApiErrorKind::Deadline => "timeout_error",
        ApiErrorKind::Failed => "api_error",
        ApiErrorKind::Unauthorized => "authentication_error",
        ApiErrorKind::Forbidden | ApiErrorKind::Origin => "permission_error",
        ApiErrorKind::Invalid
        | ApiErrorKind::PromptTooLong
        | ApiErrorKind::Method
        | ApiErrorKind::MediaType => "invalid_request_error",
    };
    let mut error = refusal.error();
    error["type"] = kind.into();
    json!({ "type": "error", "error": error })
}
