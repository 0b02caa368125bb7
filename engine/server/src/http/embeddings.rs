//! Route `POST /v1/embeddings`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::app::{App, client_of, fields};
use super::respond::{long_answer, refuse};
use crate::api_error::ApiError;
use crate::embeddings;
use crate::models::ModelRegistry;
use crate::request_log::RequestLog;

/// Handles `POST /v1/embeddings`.
pub async fn embeddings(State(registry): App, request: Request) -> Response {
    match embedded(&registry, request).await {
        Ok(response) => response,
        Err(refusal) => refuse(&refusal),
    }
}

async fn embedded(registry: &Arc<ModelRegistry>, request: Request) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let client = client_of(&request);
    let mut fields = fields(registry, request).await?;
    let server = registry.choose(&mut fields, arrived).await?;
    let request = embeddings::EmbeddingRequest::take(&mut fields, "input", &server)?;
    let encoding = request.encoding;
    let (found, tokens) = request.run(&server, client.clone(), arrived).await?;
    RequestLog::current().embedded(tokens);
    let name = server.name.clone();
    let make = move || {
        let embeddings = found.iter().map(|embedding| embeddings::rendered(embedding, encoding));
        let one =
            |(index, embedding)| json!({ "object": "embedding", "index": index, "embedding": embedding });
        let data: Value = embeddings.enumerate().map(one).collect();
        let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
        json!({ "object": "list", "data": data, "model": name, "usage": usage })
    };
    long_answer(&server, &client, make).await
}
