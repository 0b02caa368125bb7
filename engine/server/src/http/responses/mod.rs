//! OpenAI's Responses API, without stored state: `POST /v1/responses`.

mod answer;
pub(super) mod request;

use axum::extract::{Request, State};
use axum::response::Response;

use self::answer::ResponsesAnswer;
use super::app::App;
use super::out::{Dialect, respond};
use super::respond::refuse;
use super::shape::AnswerShape;

const RESPONSES: Dialect =
    Dialect { shape: AnswerShape::Chat, read: request::read, answer: ResponsesAnswer::boxed, refuse };

/// Handles `POST /v1/responses`.
pub async fn responses(State(registry): App, request: Request) -> Response {
    respond(&registry, request, &RESPONSES).await
}
