//! Access control of HTTP requests.

use std::hint::black_box;
use std::net::IpAddr;

use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request};

use super::cors;
use crate::api_error::{ApiError, ApiErrorKind};
use crate::client::Client;
use crate::models::ModelRegistry;
use crate::origins::{AllowedHosts, AllowedOrigins};
use crate::scope::Owner;

/// Client side of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Client that opened the connection.
    pub client: Client,
    /// Owner of the prompts, if the connection came through the socket's file. The file's mode then controls access.
    pub by_file: Option<Owner>,
}

/// Returns the owner of the prompts of `request`.
///
/// # Errors
/// If `peer` is not allowed to send this request.
pub fn check<B>(registry: &ModelRegistry, peer: &Peer, request: &Request<B>) -> Result<Owner, ApiError> {
    if let Some(owner) = peer.by_file {
        return Ok(owner);
    }
    if request.uri().path() == "/health" {
        return Ok(Owner::Open);
    }
    let current = registry.current();
    let keys = &current.keys;
    if keys.is_empty() {
        return from_here(request, &current.origins, &current.hosts).map(|()| Owner::Open);
    }
    let given = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
    // Anthropic's clients send the key in the header `x-api-key`.
    let given = given.and_then(bearer);
    let given =
        given.or_else(|| request.headers().get(API_KEY).map(HeaderValue::as_bytes)).unwrap_or_default();
    // The given key is compared with all keys, so that the time does not depend on which key matches.
    let known = keys.iter().fold(None, |known, key| match same(key.as_bytes(), given) {
        true => Some(key),
        false => known,
    });
    match known {
        Some(key) => Ok(Owner::of_key(key)),
        None => Err(ApiError::new(
            ApiErrorKind::Unauthorized,
            "the API key is missing or invalid: send the header Authorization: Bearer KEY or x-api-key: KEY",
        )),
    }
}

/// Checks that a `request` without a key does not come from a web page of another origin.
fn from_here<B>(
    request: &Request<B>,
    origins: &AllowedOrigins,
    hosts: &AllowedHosts,
) -> Result<(), ApiError> {
    const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
    let headers = request.headers();
    let is_known = |host: &HeaderValue| host.to_str().is_ok_and(|host| is_own(host, hosts));
    if !headers.get_all(HOST).iter().all(is_known) {
        return Err(ApiError::new(
            ApiErrorKind::Forbidden,
            "the header Host is neither an IP address nor localhost, so the request may be a DNS rebinding attack: \
            list the host name in allowed_hosts in the configuration, or send an API key",
        ));
    }
    // Browsers send both headers, and a web page cannot suppress them.
    if cors::origin(origins, request).is_some() {
        return Ok(());
    }
    let foreign = headers.get_all(ORIGIN).iter().any(|origin| !is_origin(origin, headers))
        || headers.get_all(SITE).iter().any(|site| site == "cross-site");
    if foreign { Err(cors::refused()) } else { Ok(()) }
}

/// True if `origin` is the origin that the request was sent to.
fn is_origin(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let place = origin
        .to_str()
        .ok()
        .and_then(|origin| origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")));
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    matches!((place, host), (Some(place), Some(host)) if place.eq_ignore_ascii_case(host))
}

/// True if `host` is an IP address, localhost or in `allowed`. Any other name could be part of a DNS rebinding attack,
/// because its owner can point the name at any address.
fn is_own(host: &str, allowed: &AllowedHosts) -> bool {
    let name = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok() || allowed.allows(name)
}

/// Header with the key in Anthropic's API.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Returns the key in the value of an `Authorization` header. The name of the scheme is case-insensitive (RFC 9110,
/// 11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
}

/// True if the keys are equal. The time of the comparison depends only on their lengths.
fn same(key: &[u8], given: &[u8]) -> bool {
    let bytes = (0..key.len()).map(|at| key[at] ^ given.get(at).copied().unwrap_or(0));
    let differ = bytes.fold(0, |differ, byte| black_box(differ | byte));
    differ == 0 && key.len() == given.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_compared_in_full() {
        let cases = [
            ("secret", "secret", true),
            ("secret", "secreT", false),
            ("secret", "secre", false),
            ("secret", "secret\0", false),
            ("secret", "", false),
        ];
        for (key, given, expected) in cases {
            assert_eq!(same(key.as_bytes(), given.as_bytes()), expected, "{key} and {given}");
        }
    }

    #[test]
    fn the_scheme_of_a_key_is_case_insensitive() {
        let cases: [(&str, Option<&str>); 6] = [
            ("Bearer secret", Some("secret")),
            ("bearer secret", Some("secret")),
            ("BEARER  secret", Some("secret")),
            ("Basic secret", None),
            ("Bearersecret", None),
            ("Bear", None),
        ];
        for (value, expected) in cases {
            assert_eq!(bearer(value.as_bytes()), expected.map(str::as_bytes), "{value}");
        }
    }

    #[test]
    fn only_pages_of_the_server_itself_are_answered_without_a_key() {
        type Headers = &'static [(&'static str, &'static str)];
        let cases: [(Headers, Option<ApiErrorKind>); 14] = [
            (&[("host", "localhost:8080")], None),
            (&[("host", "evil.example")], Some(ApiErrorKind::Forbidden)),
            (&[("host", "localhost:8080"), ("host", "evil.example")], Some(ApiErrorKind::Forbidden)),
            (&[("host", "localhost:8080"), ("origin", "http://localhost:8080")], None),
            (&[("host", "127.0.0.1"), ("origin", "https://127.0.0.1")], None),
            (&[("host", "localhost:8080"), ("origin", "http://localhost:3000")], Some(ApiErrorKind::Origin)),
            (&[("host", "localhost:8080"), ("origin", "https://evil.example")], Some(ApiErrorKind::Origin)),
            (&[("host", "localhost:8080"), ("origin", "null")], Some(ApiErrorKind::Origin)),
            (&[("host", "localhost:8080"), ("sec-fetch-site", "cross-site")], Some(ApiErrorKind::Origin)),
            (&[("host", "localhost:8080"), ("sec-fetch-site", "none")], None),
            // In the configuration.
            (&[("host", "own.example:8080")], None),
            (
                &[
                    ("host", "localhost:8080"),
                    ("origin", "http://page.example"),
                    ("sec-fetch-site", "cross-site"),
                ],
                None,
            ),
            (&[("host", "evil.example"), ("origin", "http://page.example")], Some(ApiErrorKind::Forbidden)),
            (
                &[
                    ("host", "localhost"),
                    ("origin", "http://page.example"),
                    ("origin", "http://evil.example"),
                ],
                Some(ApiErrorKind::Origin),
            ),
        ];
        let origins = "http://page.example".parse().expect("an origin");
        let hosts = "own.example".parse().expect("a host");
        for (headers, expected) in cases {
            let request = headers
                .iter()
                .fold(Request::get("/v1/models"), |request, (name, value)| request.header(*name, *value));
            let found = from_here(&request.body(()).expect("a request"), &origins, &hosts);
            assert_eq!(found.err().map(|refusal| refusal.kind), expected, "{headers:?}");
        }
    }

    #[test]
    fn only_addresses_and_localhost_are_answered_without_a_key() {
        let cases = [
            ("127.0.0.1:8080", true),
            ("127.0.0.1", true),
            ("LocalHost:1", true),
            ("[::1]:8080", true),
            ("[::1]", true),
            ("evil.example:8080", false),
            ("localhost.evil.example", false),
            ("", false),
        ];
        for (host, expected) in cases {
            assert_eq!(is_own(host, &AllowedHosts::default()), expected, "{host:?}");
        }
    }
}
