//! Why a client does not get what it asked for, in the shape of OpenAI's errors.

use serde_json::{Value, json};

/// Why, as a program reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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

impl Kind {
    /// HTTP status, `type` and `code`.
    pub fn words(self) -> (u16, &'static str, &'static str) {
        const INVALID: &str = "invalid_request_error";
        match self {
            Kind::Invalid => (400, INVALID, "invalid_value"),
            Kind::PromptTooLong => (400, INVALID, "context_length_exceeded"),
            Kind::TooLarge => (413, INVALID, "request_too_large"),
            Kind::Unauthorized => (401, "authentication_error", "invalid_api_key"),
            Kind::Forbidden => (403, "permission_error", "forbidden_host"),
            Kind::Origin => (403, "permission_error", "forbidden_origin"),
            Kind::NoModel => (404, INVALID, "model_not_found"),
            Kind::NoRoom => (503, "server_error", "model_unavailable"),
            Kind::NotFound => (404, INVALID, "not_found"),
            Kind::Method => (405, INVALID, "method_not_allowed"),
            Kind::MediaType => (415, INVALID, "unsupported_media_type"),
            Kind::Busy => (429, "rate_limit_error", "busy"),
            Kind::Overloaded => (503, "server_error", "overloaded"),
            Kind::Stopping => (503, "server_error", "shutting_down"),
            Kind::Deadline => (504, "server_error", "deadline"),
            Kind::Failed => (500, "server_error", "failed"),
        }
    }
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub kind: Kind,
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

impl Refusal {
    /// Without a field.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Refusal { kind, message: cut(message.into()), param: None, retry_after: None }
    }

    /// `param` is wrong: `message` says what it should be.
    pub fn field(param: &str, message: impl std::fmt::Display) -> Self {
        let message = format!("{param}: {message}");
        Refusal { param: Some(param.to_string()), ..Refusal::new(Kind::Invalid, message) }
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
pub fn stopping() -> Refusal {
    Refusal {
        retry_after: Some(1),
        ..Refusal::new(Kind::Stopping, "this server is shutting down and takes no more requests")
    }
}
