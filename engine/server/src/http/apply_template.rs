//! Route `POST /apply-template`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::json;

use super::app::{App, client_of, fields};
use super::chat;
use super::respond::{long_answer, refuse};
use crate::api_error::ApiError;
use crate::models::ModelRegistry;
use crate::request::Prompt;

/// Handles `POST /apply-template`.
pub async fn apply_template(State(registry): App, request: Request) -> Response {
    rendered(&registry, request).await.unwrap_or_else(|refusal| refuse(&refusal))
}

async fn rendered(registry: &Arc<ModelRegistry>, request: Request) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let client = client_of(&request);
    let mut fields = fields(registry, request).await?;
    let server = registry.choose(&mut fields, arrived).await?;
    let request = chat::take(&mut fields, &server.name, &server.current().defaults)?;
    drop(fields);
    let Prompt::Messages(conversation) = request.generate.prompt else {
        return Err(ApiError::field("messages", "is missing: give the conversation to render"));
    };
    let (prompt, _) = server.rendered(conversation, &client).await?;
    long_answer(&server, &client, move || json!({ "prompt": prompt })).await
}
