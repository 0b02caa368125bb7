//! Helpers for all route handlers, which read a request's client, owner and fields.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};

use super::body::{self, too_large};
use super::head;
use crate::api_error::{ApiError, ApiErrorKind};
use crate::client::Client;
use crate::fields::Fields;
use crate::models::ModelRegistry;
use crate::scope::Owner;

pub(super) type App = State<Arc<ModelRegistry>>;

/// Reads the body of `request` and parses its fields.
pub(super) async fn fields(registry: &ModelRegistry, request: Request) -> Result<Fields, ApiError> {
    check_head(&request, registry.current().limits.request)?;
    let client = client_of(&request);
    let (bytes, charge) = body::read(registry, request, &client).await?;
    registry.fields(bytes, charge, &client).await
}

/// Returns the client that sent `request`.
pub(super) fn client_of(request: &Request) -> Client {
    request.extensions().get::<Client>().cloned().unwrap_or(Client::Unknown)
}

/// Returns the owner of the prompts of `request`.
pub(super) fn owner_of(request: &Request) -> Owner {
    request.extensions().get::<Owner>().copied().unwrap_or(Owner::Open)
}

/// Checks the headers before the body is read.
fn check_head(request: &Request, limit: usize) -> Result<(), ApiError> {
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let is_one = request.headers().get_all(CONTENT_TYPE).iter().count() == 1;
    if !is_one || !header(CONTENT_TYPE).is_some_and(is_json) {
        // This check also prevents web pages from sending requests without a CORS preflight.
        let message = "unsupported Content-Type: send JSON with the header Content-Type: application/json";
        return Err(ApiError::new(ApiErrorKind::MediaType, message));
    }
    head::check_encoding(request.headers())?;
    let length = header(CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    match length.is_some_and(|length| length > limit as u64) {
        true => Err(too_large(limit)),
        false => Ok(()),
    }
}

/// True if `kind` is a JSON media type. Browsers send some other types without a CORS preflight, with any parameters.
fn is_json(kind: &str) -> bool {
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let Some(subtype) = essence.strip_prefix("application/") else { return false };
    let is_word = subtype.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.!#$&^_".contains(&byte));
    is_word && (subtype == "json" || subtype.strip_suffix("+json").is_some_and(|name| !name.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_what_says_so_in_its_essence() {
        let cases = [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            (" application/json ", true),
            ("application/ld+json", true),
            ("text/plain; x=json", false),
            ("text/plain;application/json", false),
            ("text/json", false),
            ("application/jsonp", false),
            ("application/+json", false),
            ("application/x-www-form-urlencoded, application/json", false),
            ("multipart/form-data; boundary=json", false),
            ("", false),
        ];
        for (kind, expected) in cases {
            assert_eq!(is_json(kind), expected, "{kind:?}");
        }
    }
}
