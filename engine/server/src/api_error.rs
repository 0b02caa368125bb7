//! Errors that clients get, in the shape of OpenAI's errors.

use serde_json::{Value, json};

/// Kind of an error, as programs read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiErrorKind {
    /// The request is wrong.
    Invalid,
    /// The prompt does not fit the context.
    PromptTooLong,
    /// More bytes than are read.
    TooLarge,
    /// No key, or a wrong one.
    Unauthorized,
    /// A web page asks by a name of its own, perhaps.
    Forbidden,
    /// A web page of another place asks.
    Origin,
    /// There is no such thing here.
    NotFound,
    /// There is no such model.
    NoModel,
    /// The model cannot be had now.
    NoRoom,
    /// Not with this method.
    Method,
    /// No JSON.
    MediaType,
    /// Too many wait already.
    Busy,
    /// Too many connections, or too many bytes of requests, are there already.
    Overloaded,
    /// The server stops.
    Stopping,
    /// The time of the request is over.
    Deadline,
    /// It could not be evaluated.
    Failed,
}

impl ApiErrorKind {
    /// HTTP status, `type` and `code`.
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

/// An error that a client gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// Why.
    pub kind: ApiErrorKind,
    /// Why, in words.
    pub message: String,
    /// The field that is wrong.
    pub param: Option<String>,
    /// When it may be worth another try, in seconds.
    pub retry_after: Option<u64>,
}

/// Most bytes of a message: it may repeat what a client sent, and that can be megabytes.
const MOST: usize = 2000;

/// `message` without its middle where it is long: what is wrong stands at the beginning, what to do at the end.
fn cut(message: String) -> String {
    if message.len() <= MOST {
        return message;
    }
    let head = message.floor_char_boundary(MOST / 2);
    let tail = message.ceil_char_boundary(message.len() - MOST / 2);
    format!("{} … {}", &message[..head], &message[tail..])
}

impl ApiError {
    /// Without a field.
    pub fn new(kind: ApiErrorKind, message: impl Into<String>) -> Self {
        ApiError { kind, message: cut(message.into()), param: None, retry_after: None }
    }

    /// `param` is wrong: `message` says what it should be.
    pub fn field(param: &str, message: impl std::fmt::Display) -> Self {
        let message = format!("{param}: {message}");
        ApiError { param: Some(param.to_string()), ..ApiError::new(ApiErrorKind::Invalid, message) }
    }

    /// The status over HTTP.
    pub fn status(&self) -> u16 {
        self.kind.words().0
    }

    /// The value of `error`.
    pub fn error(&self) -> Value {
        let (_, kind, code) = self.kind.words();
        let mut error = json!({ "message": self.message, "type": kind, "param": self.param, "code": code });
        if let Some(seconds) = self.retry_after {
            error["retry_after"] = seconds.into();
        }
        error
    }
}

/// The answer to everything once the end has begun.
pub fn stopping() -> ApiError {
    ApiError {
        retry_after: Some(1),
        ..ApiError::new(ApiErrorKind::Stopping, "this server is shutting down and takes no more requests")
    }
}
