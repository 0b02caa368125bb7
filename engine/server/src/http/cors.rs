//! Requests from web pages of other origins: the CORS protocol (<https://fetch.spec.whatwg.org/#http-cors-protocol>).

use axum::body::Body;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use axum::response::Response;

use crate::api_error::{ApiError, ApiErrorKind};
use crate::origins::AllowedOrigins;

/// Request header with which a browser asks for access to a private network from a public page.
const PRIVATE: HeaderName = HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// Response headers that pages may read, in addition to the headers that are always readable.
const EXPOSED: HeaderValue = HeaderValue::from_static("anneal-ignored-keywords, retry-after");

/// Time in seconds for which a browser may cache the response to a preflight.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// Returns the error for a page whose origin is not allowed.
pub(super) fn refused() -> ApiError {
    ApiError::new(
        ApiErrorKind::Origin,
        "cross-origin request refused (Origin, Sec-Fetch-Site): add the page's origin to allowed_origins in the \
         configuration, or put a proxy in front of the server",
    )
}

/// Returns the origin of `request` if `allowed` contains it.
pub(super) fn origin<B>(allowed: &AllowedOrigins, request: &Request<B>) -> Option<HeaderValue> {
    let mut origins = request.headers().get_all(ORIGIN).iter();
    let origin = origins.next().filter(|_| origins.next().is_none())?;
    allowed.allows(origin.to_str().ok()?).then(|| origin.clone())
}

/// Returns the response if `request` is a preflight, in which a browser asks whether a page may send a request. A
/// preflight contains no key. `origin` is the allowed origin of the request.
pub(super) fn preflight<B>(
    request: &Request<B>,
    origin: Option<&HeaderValue>,
) -> Option<Result<Response, ApiError>> {
    let headers = request.headers();
    let asks = headers.contains_key(ORIGIN) && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if request.method() != Method::OPTIONS || !asks {
        return None;
    }
    if origin.is_none() {
        return Some(Err(refused()));
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let answer = response.headers_mut();
    answer.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
    answer.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    if let Some(wanted) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    if headers.contains_key(PRIVATE) {
        answer.insert(ALLOW_PRIVATE, HeaderValue::from_static("true"));
    }
    Some(Ok(response))
}

/// Lets pages of `origin` read `response`.
pub(super) fn mark(response: &mut Response, origin: Option<HeaderValue>) {
    let Some(origin) = origin else { return };
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    headers.insert(VARY, HeaderValue::from_static("Origin"));
}
