//! HTTP responses: JSON, errors and other content types.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::Serialize;
use serde_json::{Value, json};

use crate::api_error::{ApiError, ApiErrorKind};
use crate::client::Client;
use crate::request_log::RequestLog;
use crate::server::Server;

/// Returns an error as a response.
pub(super) fn refuse(refusal: &ApiError) -> Response {
    refused(refusal, &json!({ "error": refusal.error() }))
}

/// Returns an error as a response with the content `body`.
pub(super) fn refused(refusal: &ApiError, body: &Value) -> Response {
    RequestLog::current().refused(refusal);
    let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = answer(body);
    *response.status_mut() = status;
    if let Some(seconds) = refusal.retry_after {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Returns JSON as a response.
pub(super) fn answer(value: &Value) -> Response {
    typed("application/json", Body::from(value.to_string()))
}

/// Answers `client` with the JSON of the value that `make` returns. Both steps run on the blocking pool, because the
/// answer is long.
pub(super) async fn long_answer<T: Serialize>(
    server: &Server,
    client: &Client,
    make: impl FnOnce() -> T + Send + 'static,
) -> Result<Response, ApiError> {
    let text = server.aside(client, move || serde_json::to_string(&make())).await?;
    let text = text.map_err(|error| ApiError::new(ApiErrorKind::Failed, error.to_string()))?;
    Ok(typed("application/json", Body::from(text)))
}

pub(super) fn typed(kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
