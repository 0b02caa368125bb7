//! Response header that lists the keywords of a JSON schema that the server does not enforce.

use std::collections::BTreeSet;

use axum::http::HeaderValue;
use axum::http::header::HeaderName;
use axum::response::Response;
use sampling::Constraint;

use crate::api_error::ApiError;
use crate::client::Client;
use crate::request::Generate;
use crate::request_log::RequestLog;
use crate::server::Server;

/// Name of the response header that lists the schema's keywords that are not enforced.
const IGNORED: HeaderName = HeaderName::from_static("anneal-ignored-keywords");

/// Maximum number of keywords in the header.
const MOST_IGNORED: usize = 16;

/// Returns the value of the header [`IGNORED`]; `None` if the schema of `generate` is enforced completely.
pub(super) async fn ignored_keywords(
    server: &Server,
    client: &Client,
    generate: &Generate,
) -> Result<Option<HeaderValue>, ApiError> {
    let Some(constraint @ Constraint::JsonSchema(_)) = &generate.sampling.constraint else {
        return Ok(None);
    };
    // A large schema takes time, so the check runs on the blocking pool.
    let constraint = constraint.clone();
    let places = server.aside(client, move || sampling::ignored_keywords(&constraint)).await?;
    if places.is_empty() {
        return Ok(None);
    }
    // The log contains no names from the client.
    let keywords: BTreeSet<&str> = places.iter().filter_map(|place| place.rsplit('.').next()).collect();
    let keywords = Vec::from_iter(keywords).join(", ");
    RequestLog::current().ignored(&keywords);
    let names = places.iter().take(MOST_IGNORED).map(|place| generate.schema_field.name(place));
    let mut value = names.map(|name| name.escape_default().to_string()).collect::<Vec<_>>().join(", ");
    if places.len() > MOST_IGNORED {
        value += ", ...";
    }
    Ok(HeaderValue::try_from(value).ok())
}

/// Adds the header [`IGNORED`] with the value `ignored`.
pub(super) fn mark(mut response: Response, ignored: Option<HeaderValue>) -> Response {
    if let Some(ignored) = ignored {
        response.headers_mut().insert(IGNORED, ignored);
    }
    response
}
