//! `POST /v1/completions`

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::App;
use super::other::named;
use super::out::{Shape, respond};
use crate::serve::fields::{Fields, shown, wrong};
use crate::serve::refusal::Refusal;
use crate::serve::request::{Generate, prompt};
use crate::serve::server::Server;

/// `POST /v1/completions`
pub async fn completions(State(server): App, request: Request) -> Response {
    respond(&server, request, Shape::Text, read).await
}

/// The request, and whether a stream ends with the usage. Fields that nobody knows are ignored: clients send many.
fn read(server: &Server, fields: &mut Fields) -> Result<(Generate, bool), Refusal> {
    if let Some(model) = fields.text("model")? {
        named(server, &model)?;
    }
    only(fields, "n", &json!(1))?;
    only(fields, "best_of", &json!(1))?;
    only(fields, "echo", &json!(false))?;
    only(fields, "suffix", &json!(""))?;
    if let Some(value) = fields.take("logprobs") {
        return Err(wrong("logprobs", "is not offered yet; leave it out", &value));
    }
    let include_usage = include_usage(fields)?;
    let prompt = prompt(fields.take("prompt"))?;
    Ok((Generate::take(fields, prompt, &server.current().defaults)?, include_usage))
}

/// Refuses a value of `name` that asks for what is not offered.
pub(super) fn only(fields: &mut Fields, name: &'static str, neutral: &Value) -> Result<(), Refusal> {
    let Some(value) = fields.take(name) else { return Ok(()) };
    let same = match (value.as_f64(), neutral.as_f64()) {
        (Some(value), Some(neutral)) => value == neutral,
        _ => value == *neutral,
    };
    match same {
        true => Ok(()),
        false => {
            let what = format!("only {} is offered, not {}", neutral, shown(&value));
            Err(Refusal::field(name, what))
        }
    }
}

/// Whether a stream ends with the usage.
pub(super) fn include_usage(fields: &mut Fields) -> Result<bool, Refusal> {
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
