//! Route `POST /v1/rerank`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::app::{App, client_of, fields};
use super::respond::{long_answer, refuse};
use crate::api_error::ApiError;
use crate::embeddings::RerankRequest;
use crate::models::ModelRegistry;
use crate::request_log::RequestLog;

/// Handles `POST /v1/rerank`.
pub async fn rerank(State(registry): App, request: Request) -> Response {
    ranked(&registry, request).await.unwrap_or_else(|refusal| refuse(&refusal))
}

async fn ranked(registry: &Arc<ModelRegistry>, request: Request) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let client = client_of(&request);
    let mut fields = fields(registry, request).await?;
    let server = registry.choose(&mut fields, arrived).await?;
    let request = RerankRequest::take(&mut fields, &server)?;
    drop(fields);
    let (scores, tokens) = request.run(&server, client.clone(), arrived).await?;
    RequestLog::current().embedded(tokens);
    let name = server.name.clone();
    let make = move || {
        let results: Value = best(&scores, request.top_n)
            .into_iter()
            .map(|index| {
                let mut result = json!({ "index": index, "relevance_score": scores[index] });
                if request.return_documents {
                    result["document"] = json!({ "text": request.documents[index] });
                }
                result
            })
            .collect();
        let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
        json!({ "object": "list", "model": name, "results": results, "usage": usage })
    };
    long_answer(&server, &client, make).await
}

/// Returns the indices of the `top_n` highest `scores`, in descending order. Equal scores keep their order.
fn best(scores: &[f32], top_n: Option<usize>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|one, other| scores[*other].total_cmp(&scores[*one]));
    order.truncate(top_n.unwrap_or(usize::MAX));
    order
}

#[cfg(test)]
mod tests {
    use super::best;

    #[test]
    fn the_best_come_first_and_of_equals_the_first() {
        let scores = [0.5, -1.0, 2.0, 0.5];
        for (top_n, expected) in [(None, &[2, 0, 3, 1][..]), (Some(2), &[2, 0]), (Some(9), &[2, 0, 3, 1])] {
            assert_eq!(best(&scores, top_n), expected, "{top_n:?}");
        }
    }
}
