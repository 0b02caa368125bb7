//! Route `GET /status`.

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::json;

use super::app::{App, owner_of};
use super::respond::answer;
use crate::status::Status;

/// Handles `GET /status`.
pub async fn status(State(registry): App, request: Request) -> Response {
    answer(&json!(Status::of(&registry, owner_of(&request))))
}
