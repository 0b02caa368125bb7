//! `POST /v1/embeddings`

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::app::{App, client_of, fields};
use super::respond::{long_answer, refuse};
use crate::api_error::Refusal;
use crate::embeddings;
use crate::models::Front;
use crate::request_log::Ticket;

/// `POST /v1/embeddings`
pub async fn embeddings(State(front): App, request: Request) -> Response {
    match embedded(&front, request).await {
        Ok(response) => response,
        Err(refusal) => refuse(&refusal),
    }
}

async fn embedded(front: &Arc<Front>, request: Request) -> Result<Response, Refusal> {
    let arrived = Instant::now();
    let client = client_of(&request);
    let mut fields = fields(front, request).await?;
    let server = front.choose(&mut fields, arrived).await?;
    let request = embeddings::Request::take(&mut fields, "input", &server)?;
    let encoding = request.encoding;
    let (found, tokens) = request.run(&server, client.clone(), arrived).await?;
    Ticket::current().embedded(tokens);
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
