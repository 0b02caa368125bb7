//! All routes except generation, embeddings, the status and the OpenAPI description.

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
use crate::api_error::{ApiError, ApiErrorKind};
use crate::blocking_pool::WorkKind;
use crate::client::Client;
use crate::closing::Closing;
use crate::fields::wrong;
use crate::input::{Input, InputFault};
use crate::models::ModelRegistry;
use crate::server::{Server, invalid};

/// Maximum number of tokens that one request may convert to text.
pub const TOKENS: usize = 1 << 20;

/// Handles `GET /v1/models`.
pub async fn models(State(registry): App) -> Response {
    answer(&json!({ "object": "list", "data": registry.described() }))
}

/// Handles `GET /v1/models/NAME`.
pub async fn model(State(registry): App, name: Result<Path<String>, PathRejection>) -> Response {
    let name =
        name.map_err(|_| ApiError::new(ApiErrorKind::Invalid, "the name in the path is not valid UTF-8"));
    match name.and_then(|Path(name)| registry.described_by_name(&name)) {
        Ok(model) => answer(&model),
        Err(refusal) => refuse(&refusal),
    }
}

/// Checks that the name `name` in a request refers to the model `known`.
///
/// # Errors
/// If the names differ.
pub fn is_called(known: &str, name: &str) -> Result<(), ApiError> {
    if name == known {
        return Ok(());
    }
    let short: String = name.chars().take(100).collect();
    let message = format!("unknown model {short:?}; this server has {known:?}");
    Err(ApiError { param: Some("model".to_string()), ..ApiError::new(ApiErrorKind::NoModel, message) })
}

/// Handles `GET /health`.
pub async fn health(State(registry): App) -> Response {
    match registry.closing() {
        Closing::Open if registry.has_panicked() => answer(&json!({ "status": "degraded" })),
        Closing::Open => answer(&json!({ "status": "ok" })),
        _ => {
            let mut response = answer(&json!({ "status": "stopping" }));
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            response
        }
    }
}

/// Handles `GET /metrics`.
pub async fn metrics(State(registry): App) -> Response {
    typed("text/plain; version=0.0.4", Body::from(registry.to_prometheus()))
}

/// Handles `POST /tokenize`.
pub async fn tokenize(State(registry): App, request: Request) -> Response {
    cut(&registry, request).await.unwrap_or_else(|refusal| refuse(&refusal))
}

async fn cut(registry: &Arc<ModelRegistry>, request: Request) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let client = client_of(&request);
    let mut fields = fields(registry, request).await?;
    let server = registry.choose(&mut fields, arrived).await?;
    let content = fields.text("content")?;
    // The name comes from vLLM.
    let (name, text) = match (content, fields.text("prompt")?) {
        (Some(_), Some(_)) => return Err(ApiError::field("prompt", "give content or prompt, not both")),
        (Some(text), None) => ("content", text),
        (None, Some(text)) => ("prompt", text),
        (None, None) => return Err(ApiError::field("content", "is missing: give the text to tokenise")),
    };
    let add_special = fields.bool("add_special_tokens")?.unwrap_or(true);
    fields.finish()?;
    let checked = server.model.check_length(text.len(), server.n_ctx);
    checked.map_err(|error| ApiError { param: Some(name.to_string()), ..invalid(&error) })?;
    let tokens = match add_special {
        true => server.text_tokens(text, &client).await?,
        false => {
            let (model, kind) = (Arc::clone(&server.model), WorkKind::of_text(text.len()));
            let tokens = server.cut(&client, kind, move || model.tokenize_with(&text, false)).await?;
            tokens.map_err(|error| ApiError { param: Some(name.to_string()), ..invalid(&error) })?
        }
    };
    match tokens.len() > MANY {
        true => long_answer(&server, &client, move || Cut { tokens }).await,
        false => Ok(answer(&json!({ "tokens": tokens }))),
    }
}

/// Tokens of a text. JSON values of the tokens would need eight times as much memory.
#[derive(Serialize)]
struct Cut {
    tokens: Vec<Token>,
}

/// Number of tokens above which the work runs on the blocking pool, so that it does not delay other clients' tokens.
const MANY: usize = 4096;

/// Handles `GET /tokenizer_info`.
pub async fn tokenizer_info(State(registry): App) -> Response {
    let told = registry.choose_default(Instant::now()).await.map(|server| {
        let name = |text: String| Some(text).filter(|text| !text.is_empty());
        answer(&json!({
            "model": server.name,
            "bos_token": name(server.model.begin_text()),
            "eos_token": name(server.model.end_text()),
            "add_bos_token": server.model.begin_token().is_some(),
        }))
    });
    told.unwrap_or_else(|refusal| refuse(&refusal))
}

/// Handles `POST /detokenize`.
pub async fn detokenize(State(registry): App, request: Request) -> Response {
    joined(&registry, request).await.unwrap_or_else(|refusal| refuse(&refusal))
}

async fn joined(registry: &Arc<ModelRegistry>, request: Request) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let client = client_of(&request);
    let mut fields = fields(registry, request).await?;
    let server = registry.choose(&mut fields, arrived).await?;
    let last = server.model.n_vocab().saturating_sub(1);
    let range = || format!("use tokens from 0 to {last}");
    let list = match fields.input("tokens", 0) {
        Some(Ok(Input::Tokens(list))) if list.len() <= TOKENS => list,
        Some(Ok(Input::Tokens(list))) => {
            return Err(ApiError::field(
                "tokens",
                format!("use at most {TOKENS} tokens, not {}", list.len()),
            ));
        }
        Some(Err(InputFault::Token(value) | InputFault::Item(value))) => {
            return Err(wrong("tokens", range(), &value));
        }
        Some(Err(InputFault::Kind(value))) => return Err(wrong("tokens", "use a list of tokens", &value)),
        Some(Err(InputFault::Json(why))) => {
            return Err(ApiError::field("tokens", format!("is not JSON: {why}")));
        }
        Some(Ok(_) | Err(InputFault::Many(_))) => return Err(ApiError::field("tokens", range())),
        None => return Err(ApiError::field("tokens", "is missing: give the tokens to convert to text")),
    };
    fields.finish()?;
    let is_long = list.len() > MANY;
    let text = token_text(&server, &client, "tokens", list).await?;
    match is_long {
        true => long_answer(&server, &client, move || json!({ "content": text })).await,
        false => Ok(answer(&json!({ "content": text }))),
    }
}

/// Converts the list of tokens in the field `field` to text, on the blocking pool if it is long.
pub(super) async fn token_text(
    server: &Server,
    client: &Client,
    field: &'static str,
    list: Vec<Token>,
) -> Result<String, ApiError> {
    let (is_long, model) = (list.len() > MANY, Arc::clone(&server.model));
    let make = move || text(&model, field, &list);
    if is_long { server.aside(client, make).await? } else { make() }
}

fn text(model: &Model, field: &str, list: &[Token]) -> Result<String, ApiError> {
    let last = model.n_vocab().saturating_sub(1);
    let mut bytes = Vec::new();
    for token in list.iter().copied() {
        if !model.has_token(token) {
            return Err(wrong(field, format!("use tokens from 0 to {last}"), &token.into()));
        }
        let put = model.piece(token, &mut bytes);
        put.map_err(|error| ApiError::new(ApiErrorKind::Failed, error.to_string()))?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
