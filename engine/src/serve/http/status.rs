//! `GET /status`

use axum::extract::State;
use axum::response::Response;
use serde_json::json;

use super::{App, answer};
use crate::serve::status::Status;

/// `GET /status`
pub async fn status(State(front): App) -> Response {
    answer(&json!(Status::of(&front)))
}
