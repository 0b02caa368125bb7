//! Routes `POST /models/load` and `POST /models/unload`. The paths and `success` come from llama-server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::app::{App, fields};
use super::respond::{answer, refuse};
use crate::api_error::ApiError;
use crate::fields::{Fields, wrong};
use crate::models::ModelRegistry;

/// Handles `POST /models/load`.
pub async fn load(State(registry): App, request: Request) -> Response {
    loaded(&registry, request).await.unwrap_or_else(|refusal| refuse(&refusal))
}

/// Handles `POST /models/unload`.
pub async fn unload(State(registry): App, request: Request) -> Response {
    unloaded(&registry, request).await.unwrap_or_else(|refusal| refuse(&refusal))
}

async fn loaded(registry: &Arc<ModelRegistry>, request: Request) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let mut fields = fields(registry, request).await?;
    // The name must be exact, even if other requests with an unknown name get the default model.
    let name = name(&fields)?;
    registry.described_by_name(&name)?;
    fields.take("model");
    let patience = patience(&mut fields, registry.patience(Some(&name)))?;
    fields.finish()?;
    drop(registry.lease(Some(&name), arrived + patience).await?);
    done(registry, &name)
}

async fn unloaded(registry: &Arc<ModelRegistry>, request: Request) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let mut fields = fields(registry, request).await?;
    let name = name(&fields)?;
    fields.take("model");
    let patience = patience(&mut fields, registry.current().defaults.deadline)?;
    fields.finish()?;
    registry.unload(&name, arrived + patience).await?;
    done(registry, &name)
}

/// Returns the name of the model without taking it.
fn name(fields: &Fields) -> Result<String, ApiError> {
    match fields.peek("model") {
        Some(Value::String(name)) => Ok(name.clone()),
        Some(other) => Err(wrong("model", "use a string", other)),
        None => Err(ApiError::field("model", "is missing: give the name of the model")),
    }
}

/// Takes the time limit of the request, which is at most `most`.
fn patience(fields: &mut Fields, most: Duration) -> Result<Duration, ApiError> {
    let asked = fields.number("timeout_s", 0.001..=most.as_secs_f64())?;
    Ok(asked.map_or(most, Duration::from_secs_f64))
}

fn done(registry: &ModelRegistry, name: &str) -> Result<Response, ApiError> {
    Ok(answer(&json!({ "success": true, "model": registry.described_by_name(name)? })))
}
