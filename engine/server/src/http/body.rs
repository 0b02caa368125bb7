//! Request bodies, read with limits on time, rate and the bytes of all waiting requests.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use build_info::Bytes;
use tokio::time::{Instant, timeout_at};

use crate::admission::{ConnectionPhase, ConnectionState, Late};
use crate::api_error::{ApiError, ApiErrorKind};
use crate::arrival;
use crate::budget::{ByteBounds, Charge};
use crate::client::Client;
use crate::models::ModelRegistry;

/// Reads the body of `request` from `client`. Returns its bytes and the charge for them.
///
/// # Errors
/// If the body is too large, too slow or incomplete, or if the limit on the bytes of waiting requests is exceeded.
pub async fn read(
    registry: &ModelRegistry,
    request: Request,
    client: &Client,
) -> Result<(Vec<u8>, Charge), ApiError> {
    let limits = registry.current().limits;
    let state = request.extensions().get::<Arc<ConnectionState>>().cloned();
    let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let mut charge = registry.charge(client);
    let mut bytes = Vec::new();
    // Reserved memory is not used until it is written, so a client that announces more bytes than it sends costs
    // little memory.
    bytes.reserve_exact(length.unwrap_or(0).min(limits.request));
    let mut body = request.into_body();
    let _reading = state.as_ref().map(Reading::new);
    let begin = Instant::now();
    loop {
        let until = arrival::deadline(begin, bytes.len());
        let frame = timeout_at(until, next(&mut body)).await.map_err(|_| {
            state.iter().for_each(|state| state.was_late(Late::Body));
            arrival::late("body", begin, bytes.len())
        })?;
        let Some(data) = frame? else {
            state.iter().for_each(|state| state.set_unread(false));
            return Ok((bytes, charge));
        };
        if bytes.len() + data.len() > limits.request {
            return Err(too_large(limits.request));
        }
        charge.grow(data.len(), ByteBounds::of(&limits))?;
        bytes.extend_from_slice(&data);
    }
}

/// Returns the next data of `body`. `None` at its end.
async fn next(body: &mut Body) -> Result<Option<axum::body::Bytes>, ApiError> {
    loop {
        match poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
            None => return Ok(None),
            // Trailers are ignored.
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Some(Err(error)) => {
                return Err(ApiError::new(ApiErrorKind::Invalid, format!("cannot read the body: {error}")));
            }
        }
    }
}

/// Guard that marks the connection as reading a body.
struct Reading<'a>(&'a ConnectionState);

impl<'a> Reading<'a> {
    fn new(state: &'a Arc<ConnectionState>) -> Self {
        state.set(ConnectionPhase::Reading);
        Reading(state)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.set(ConnectionPhase::Answering);
    }
}

pub(super) fn too_large(limit: usize) -> ApiError {
    ApiError::new(
        ApiErrorKind::TooLarge,
        format!("the body is larger than {} (max_request_bytes)", Bytes(limit as u64)),
    )
}
