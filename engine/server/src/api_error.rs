//! Errors that clients receive, in OpenAI's format.

use serde_json::{Value, json};

/// Kind of an error, which determines the HTTP status, `type` and `code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiErrorKind {
    /// The request is invalid.
    Invalid,
    /// The prompt does not fit into the context.
    PromptTooLong,
    /// The body is larger than the limit.
    TooLarge,
    /// The key is missing or wrong.
    Unauthorized,
    /// The `Host` header may belong to a DNS rebinding attack.
    Forbidden,
    /// A browser sent a cross-origin request without a key.
    Origin,
    /// The path or object does not exist.
    NotFound,
    /// The model does not exist.
    NoModel,
    /// The model cannot be loaded now.
    NoRoom,
    /// The HTTP method is not allowed on this path.
    Method,
    /// The body is not declared as JSON, or it is compressed.
    MediaType,
    /// The queue has no room for the request.
    Busy,
    /// A limit on connections or on the bytes of waiting requests is reached.
    Overloaded,
    /// The server is shutting down.
    Stopping,
    /// The request timed out.
    Deadline,
    /// The evaluation failed.
    Failed,
}

impl ApiErrorKind {
    /// Returns the HTTP status, `type` and `code`.
    pub fn words(self) -> (u16, &'static str, &'static str) {
        const INVALID: &str = "invalid_request_error";
        match self {
            ApiErrorKind::Invalid => (400, INVALID, "invalid_value"),
            ApiErrorKind::PromptTooLong => (400, INVALID, "context_length_exceeded"),
            ApiErrorKind::TooLarge => (413, INVALID, "request_too_large"),
            ApiErrorKind::Unauthorized => (401, "authentication_error", "invalid_api_key"),
            ApiErrorKind::Forbidden => (403, "permission_error", "forbidden_host"),
            ApiErrorKind::Origin => (403, "permission_error", "forbidden_origin"),
            ApiErrorKind::NoModel => (404, INVALID, "model_not_found"),
            ApiErrorKind::NoRoom => (503, "server_error", "model_unavailable"),
            ApiErrorKind::NotFound => (404, INVALID, "not_found"),
            ApiErrorKind::Method => (405, INVALID, "method_not_allowed"),
            ApiErrorKind::MediaType => (415, INVALID, "unsupported_media_type"),
            ApiErrorKind::Busy => (429, "rate_limit_error", "busy"),
            ApiErrorKind::Overloaded => (503, "server_error", "overloaded"),
            ApiErrorKind::Stopping => (503, "server_error", "shutting_down"),
            ApiErrorKind::Deadline => (504, "server_error", "deadline"),
            ApiErrorKind::Failed => (500, "server_error", "failed"),
        }
    }
}

/// Error that a client receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// Kind of the error.
    pub kind: ApiErrorKind,
    /// Human-readable explanation.
    pub message: String,
    /// Name of the invalid field, if a field is the cause.
    pub param: Option<String>,
    /// Number of seconds after which a retry may succeed.
    pub retry_after: Option<u64>,
}

/// Maximum length of a message, in bytes. A message may quote data from the client, which can be megabytes long.
const MOST: usize = 2000;

/// Shortens a long `message` in the middle. Its start states the cause, and its end states the remedy.
fn cut(message: String) -> String {
    if message.len() <= MOST {
        return message;
    }
    let head = message.floor_char_boundary(MOST / 2);
    let tail = message.ceil_char_boundary(message.len() - MOST / 2);
    format!("{} … {}", &message[..head], &message[tail..])
}

impl ApiError {
    /// Creates an error that is not caused by a single field.
    pub fn new(kind: ApiErrorKind, message: impl Into<String>) -> Self {
        // A message must be a single line, so a hint from the engine is appended after a semicolon.
        let message = cut(build_info::words::with_inline_hint(&message.into()));
        ApiError { kind, message, param: None, retry_after: None }
    }

    /// Creates the error for an invalid field `param`. `message` states the expected value.
    pub fn field(param: &str, message: impl std::fmt::Display) -> Self {
        let message = format!("{param}: {message}");
        ApiError { param: Some(param.to_string()), ..ApiError::new(ApiErrorKind::Invalid, message) }
    }

    /// Returns the HTTP status code.
    pub fn status(&self) -> u16 {
        self.kind.words().0
    }

    /// Returns the JSON value of the key `error`.
    pub fn error(&self) -> Value {
        let (_, kind, code) = self.kind.words();
        let mut error = json!({ "message": self.message, "type": kind, "param": self.param, "code": code });
        if let Some(seconds) = self.retry_after {
            error["retry_after"] = seconds.into();
        }
        error
    }
}

/// Returns the error for every request that arrives during shutdown.
pub fn stopping() -> ApiError {
    ApiError {
        retry_after: Some(1),
        ..ApiError::new(ApiErrorKind::Stopping, "the server is shutting down and accepts no more requests")
    }
}
