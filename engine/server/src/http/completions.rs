//! Route `POST /v1/completions`.

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::app::App;
use super::format;
use super::openai::OpenAiAnswer;
use super::other::is_called;
use super::out::{CompletionRequest, Dialect, respond};
use super::respond::refuse;
use super::shape::AnswerShape;
use super::token_details::return_tokens;
use crate::api_error::ApiError;
use crate::fields::{Fields, shown, wrong};
use crate::infill::Infill;
use crate::request::{Defaults, Generate, prompts, take_logprobs};
use crate::server::Server;

const TEXT: Dialect = Dialect { shape: AnswerShape::Text, read, answer: OpenAiAnswer::text, refuse };

/// Handles `POST /v1/completions`.
pub async fn completions(State(registry): App, request: Request) -> Response {
    respond(&registry, request, &TEXT).await
}

/// Reads the request. Unknown fields are ignored, because clients send many fields that the server does not support.
fn read(server: &Server, fields: &mut Fields) -> Result<CompletionRequest, ApiError> {
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
    // `best_of` must equal the number of choices, because all choices are returned.
    only(fields, "best_of", &json!(choices))?;
    let echo = fields.bool("echo")?.unwrap_or(false);
    let suffix = fields.text("suffix")?.filter(|suffix| !suffix.is_empty());
    let include_usage = include_usage(fields)?;
    let return_tokens = return_tokens(fields)?;
    let (mut prompt, mut further) = prompts(fields, PROMPTS)?;
    if let Some(suffix) = suffix {
        if echo {
            return Err(ApiError::field("echo", "cannot be used with suffix"));
        }
        prompt = Infill::between(prompt, &suffix)?;
        let infills = further.into_iter().map(|prompt| Infill::between(prompt, &suffix));
        further = infills.collect::<Result<_, _>>()?;
    }
    let format = format::take(fields)?;
    // With 0, the request only evaluates the prompt.
    let max_tokens = fields.tokens("max_tokens", 0)?;
    let mut generate = Generate::take(fields, prompt, defaults)?;
    (generate.further, generate.echo) = (further, echo);
    generate.max_tokens = max_tokens.unwrap_or(generate.max_tokens);
    generate.logprobs = take_logprobs(fields)?;
    format::apply(format, &mut generate)?;
    Ok(CompletionRequest { generate, choices, include_usage, return_tokens })
}

/// Maximum number of prompts in one request.
pub(super) const PROMPTS: usize = 64;

/// Maximum number of answers to one prompt.
pub(super) const CHOICES: u32 = 8;

/// Takes the number of requested answers.
pub(super) fn choices(fields: &mut Fields) -> Result<u32, ApiError> {
    Ok(fields.whole("n", 1..=CHOICES)?.unwrap_or(1))
}

/// Rejects a value of `name` that asks for an unsupported feature. Only the value `neutral` is accepted.
pub(super) fn only(fields: &mut Fields, name: &'static str, neutral: &Value) -> Result<(), ApiError> {
    let Some(value) = fields.take(name) else { return Ok(()) };
    let same = match (value.as_f64(), neutral.as_f64()) {
        (Some(value), Some(neutral)) => value == neutral,
        _ => value == *neutral,
    };
    match same {
        true => Ok(()),
        false => {
            let what = format!("only {} is supported, not {}", neutral, shown(&value));
            Err(ApiError::field(name, what))
        }
    }
}

/// Returns true if a stream must end with the token counts.
pub(super) fn include_usage(fields: &mut Fields) -> Result<bool, ApiError> {
    match fields.take("stream_options") {
        None => Ok(false),
        Some(Value::Object(mut options)) => match options.remove("include_usage") {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(include)) => Ok(include),
            Some(other) => Err(wrong("stream_options.include_usage", "use true or false", &other)),
        },
        Some(other) => Err(wrong("stream_options", "use an object", &other)),
    }
}
