//! Everything but generating.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use llama::{Model, Token};
use serde::Serialize;
use serde_json::json;

use super::app::{App, client_of, fields};
use super::respond::{answer, long_answer, refuse, typed};
use crate::api_error::{Kind, Refusal};
use crate::closing::Closing;
use crate::fields::wrong;
use crate::input::{Fault, Input};
use crate::models::Front;
use crate::server::invalid;

/// Most tokens that are made text of at a time.
pub const TOKENS: usize = 1 << 20;

/// `GET /v1/models`
pub async fn models(State(front): App) -> Response {
    answer(&json!({ "object": "list", "data": front.described() }))
}

/// `GET /v1/models/NAME`
pub async fn model(State(front): App, name: Result<Path<String>, PathRejection>) -> Response {
    let name = name.map_err(|_| Refusal::new(Kind::Invalid, "the name in the path is not UTF-8"));
    match name.and_then(|Path(name)| front.described_by_name(&name)) {
        Ok(model) => answer(&model),
        Err(refusal) => refuse(&refusal),
    }
}

/// Whether the model, which is called `known`, is called `name`.
pub fn is_called(known: &str, name: &str) -> Result<(), Refusal> {
    if name == known {
        return Ok(());
    }
    let short: String = name.chars().take(100).collect();
    let message = format!("there is no model {short:?}; this server has {known:?}");
    Err(Refusal { param: Some("model".to_string()), ..Refusal::new(Kind::NoModel, message) })
}

/// `GET /health`
pub async fn health(State(front): App) -> Response {
    match front.closing() {
        Closing::Open if front.has_panicked() => answer(&json!({ "status": "degraded" })),
        Closing::Open => answer(&json!({ "status": "ok" })),
        _ => {
            let mut response = answer(&json!({ "status": "stopping" }));
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            response
        }
    }
}

/// `GET /metrics`
pub async fn metrics(State(front): App) -> Response {
    typed("text/plain; version=0.0.4", Body::from(front.to_prometheus()))
}

/// `POST /tokenize`
pub async fn tokenize(State(front): App, request: Request) -> Response {
    cut(&front, request).await.unwrap_or_else(|refusal| refuse(&refusal))
}

async fn cut(front: &Arc<Front>, request: Request) -> Result<Response, Refusal> {
    let arrived = Instant::now();
    let client = client_of(&request);
    let mut fields = fields(front, request).await?;
    let server = front.choose(&mut fields, arrived).await?;
    let text = fields.text("content")?;
    let text = text.ok_or_else(|| Refusal::field("content", "is missing: the text to cut into tokens"))?;
    fields.finish()?;
    let checked = server.model.check_length(text.len(), server.n_ctx);
    checked.map_err(|error| Refusal { param: Some("content".to_string()), ..invalid(&error) })?;
    let tokens = server.text_tokens(text, &client).await?;
    match tokens.len() > MANY {
        true => long_answer(&server, &client, move || Cut { tokens }).await,
        false => Ok(answer(&json!({ "tokens": tokens }))),
    }
}

/// The tokens of a text. A JSON value of each token would take eight times as much memory.
#[derive(Serialize)]
struct Cut {
    tokens: Vec<Token>,
}

/// Of more tokens text is made, and they are written, beside: others' tokens do not wait for it.
const MANY: usize = 4096;

/// `POST /detokenize`
pub async fn detokenize(State(front): App, request: Request) -> Response {
    joined(&front, request).await.unwrap_or_else(|refusal| refuse(&refusal))
}

async fn joined(front: &Arc<Front>, request: Request) -> Result<Response, Refusal> {
    let arrived = Instant::now();
    let client = client_of(&request);
    let mut fields = fields(front, request).await?;
    let server = front.choose(&mut fields, arrived).await?;
    let last = server.model.n_vocab().saturating_sub(1);
    let range = || format!("use tokens from 0 to {last}");
    let list = match fields.input("tokens", 0) {
        Some(Ok(Input::Tokens(list))) if list.len() <= TOKENS => list,
        Some(Ok(Input::Tokens(list))) => {
            return Err(Refusal::field("tokens", format!("at most {TOKENS}, not {}", list.len())));
        }
        Some(Err(Fault::Token(value) | Fault::Item(value))) => return Err(wrong("tokens", range(), &value)),
        Some(Err(Fault::Kind(value))) => return Err(wrong("tokens", "use a list of tokens", &value)),
        Some(Err(Fault::Json(why))) => return Err(Refusal::field("tokens", format!("is not JSON: {why}"))),
        Some(Ok(_) | Err(Fault::Many(_))) => return Err(Refusal::field("tokens", range())),
        None => return Err(Refusal::field("tokens", "is missing: the tokens to make text of")),
    };
    fields.finish()?;
    let (is_long, model) = (list.len() > MANY, Arc::clone(&server.model));
    let make = move || text(&model, &list).map(|text| json!({ "content": text }).to_string());
    let text = if is_long { server.aside(&client, make).await?? } else { make()? };
    Ok(typed("application/json", Body::from(text)))
}

/// The text of a list of tokens.
fn text(model: &Model, list: &[Token]) -> Result<String, Refusal> {
    let last = model.n_vocab().saturating_sub(1);
    let mut bytes = Vec::new();
    for token in list.iter().copied() {
        if !model.has_token(token) {
            return Err(wrong("tokens", format!("use tokens from 0 to {last}"), &token.into()));
        }
        let put = model.piece(token, &mut bytes);
        put.map_err(|error| Refusal::new(Kind::Failed, error.to_string()))?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
