//! Response header that lists the JSON schema keywords that the server does not enforce.

use std::collections::BTreeSet;

use axum::http::HeaderValue;
use axum::http::header::HeaderName;
use axum::response::Response;

use crate::request_log::RequestLog;
use crate::schema_field::SchemaField;

/// Name of the response header that lists the schema keywords that are not enforced.
pub(super) const IGNORED: HeaderName = HeaderName::from_static("anneal-ignored-keywords");

/// Maximum number of keywords in the header.
const MOST_IGNORED: usize = 16;

/// Returns the value of the header [`IGNORED`] for these paths in the schema in `field`; `None` if there are none.
pub(super) fn header(ignored: &[String], field: &SchemaField) -> Option<HeaderValue> {
    if ignored.is_empty() {
        return None;
    }
    // The log contains no names from the client.
    let keywords: BTreeSet<&str> = ignored.iter().filter_map(|place| place.rsplit('.').next()).collect();
    let keywords = Vec::from_iter(keywords).join(", ");
    RequestLog::current().ignored(&keywords);
    let names = ignored.iter().take(MOST_IGNORED).map(|place| field.name(place));
    let mut value = names.map(|name| name.escape_default().to_string()).collect::<Vec<_>>().join(", ");
    if ignored.len() > MOST_IGNORED {
        value += ", ...";
    }
    HeaderValue::try_from(value).ok()
}

/// Adds the header [`IGNORED`] with the value `ignored`.
pub(super) fn mark(mut response: Response, ignored: Option<HeaderValue>) -> Response {
    if let Some(ignored) = ignored {
        response.headers_mut().insert(IGNORED, ignored);
    }
    response
}
