//! Routes of the HTTP server.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::{get, post};

use super::respond::refuse;
use super::{chat, completions, embeddings, openapi, other, status};
use crate::api_error::{ApiError, ApiErrorKind};
use crate::models::ModelRegistry;

/// Every path there is.
fn router(registry: Arc<ModelRegistry>) -> Router {
    Router::new()
        .route("/v1/completions", post(completions::completions))
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/models", get(other::models))
        .route("/v1/models/{*name}", get(other::model))
        .route("/tokenize", post(other::tokenize))
        .route("/detokenize", post(other::detokenize))
        .route("/health", get(other::health))
        .route("/metrics", get(other::metrics))
        .route("/status", get(status::status))
        .route("/openapi.json", get(openapi::openapi))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .with_state(registry)
}

async fn nothing_here(request: Request) -> Response {
    let path: String = request.uri().path().chars().take(100).collect();
    refuse(&ApiError::new(ApiErrorKind::NotFound, format!("{path}: there is nothing here")))
}

async fn wrong_method(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    refuse(&ApiError::new(ApiErrorKind::Method, format!("{path} is not there for {method}")))
}

/// Router of the address of `--health-listen`.
fn health_router(registry: Arc<ModelRegistry>) -> Router {
    Router::new()
        .route("/health", get(other::health))
        .route("/metrics", get(other::metrics))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .with_state(registry)
}

/// Set of paths that are served at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// Everything.
    All,
    /// `/health` and `/metrics`.
    Health {
        /// True if `/metrics` needs no key here.
        open_metrics: bool,
    },
}

/// Routes of an address. They are made once, and each connection has a handle to them.
#[derive(Clone)]
pub struct Routes {
    pub(super) router: Router,
    pub(super) door: Door,
}

impl Routes {
    /// Makes the routes of `registry` that are served at `door`.
    pub fn new(registry: &Arc<ModelRegistry>, door: Door) -> Self {
        let router = if door == Door::All { router } else { health_router };
        Routes { router: router(Arc::clone(registry)), door }
    }
}
