//! Checks of request heads that hyper does not perform.

use axum::http::header::{CONTENT_ENCODING, HOST, TRANSFER_ENCODING};
use axum::http::{HeaderMap, Version};

use crate::api_error::{ApiError, ApiErrorKind};

/// Rejects heads that servers and proxies may interpret differently: heads without exactly one `Host`, or with a
/// transfer coding other than `chunked`.
pub fn check(version: Version, headers: &HeaderMap) -> Result<(), ApiError> {
    match headers.get_all(HOST).iter().count() {
        1 => {}
        // HTTP/1.0 clients need not send `Host`.
        0 if version < Version::HTTP_11 => {}
        0 => return Err(invalid("the header Host is missing: HTTP/1.1 requires it")),
        _ => return Err(invalid("the request has more than one Host header: send exactly one")),
    }
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_plain = codings.next().is_none_or(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
    if !is_plain || codings.next().is_some() {
        return Err(invalid("unsupported Transfer-Encoding: use chunked alone, or send Content-Length"));
    }
    Ok(())
}

/// Rejects a compressed body.
pub fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let is_plain = |coding: &[u8]| coding.is_empty() || coding.eq_ignore_ascii_case(b"identity");
    match headers.get_all(CONTENT_ENCODING).iter().all(|coding| is_plain(coding.as_bytes())) {
        true => Ok(()),
        false => Err(ApiError::new(
            ApiErrorKind::MediaType,
            "unsupported Content-Encoding: send the body uncompressed, without this header",
        )),
    }
}

fn invalid(message: &str) -> ApiError {
    ApiError::new(ApiErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    type Lines = &'static [(&'static str, &'static str)];

    fn headers(lines: Lines) -> HeaderMap {
        let request =
            lines.iter().fold(Request::builder(), |request, (name, value)| request.header(*name, *value));
        request.body(()).expect("a request").into_parts().0.headers
    }

    #[test]
    fn a_head_with_two_meanings_is_refused() {
        let cases: [(Version, Lines, &str); 9] = [
            (Version::HTTP_11, &[("host", "a")], ""),
            (Version::HTTP_11, &[], "Host is missing"),
            (Version::HTTP_10, &[], ""),
            (Version::HTTP_11, &[("host", "a"), ("host", "a")], "more than one Host"),
            (Version::HTTP_10, &[("host", "a"), ("host", "b")], "more than one Host"),
            (Version::HTTP_11, &[("host", "a"), ("transfer-encoding", "Chunked")], ""),
            (Version::HTTP_11, &[("host", "a"), ("transfer-encoding", "gzip, chunked")], "Transfer-Encoding"),
            (
                Version::HTTP_11,
                &[("host", "a"), ("transfer-encoding", "gzip"), ("transfer-encoding", "chunked")],
                "Transfer-Encoding",
            ),
            (
                Version::HTTP_11,
                &[("host", "a"), ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
                "Transfer-Encoding",
            ),
        ];
        for (version, lines, expected) in cases {
            let message =
                check(version, &headers(lines)).err().map(|refusal| refusal.message).unwrap_or_default();
            assert!(
                message.contains(expected) && message.is_empty() == expected.is_empty(),
                "{lines:?}: {message}"
            );
        }
    }

    #[test]
    fn a_compressed_body_is_refused() {
        let cases: [(Lines, bool); 5] = [
            (&[], true),
            (&[("content-encoding", "identity")], true),
            (&[("content-encoding", "gzip")], false),
            (&[("content-encoding", "identity, gzip")], false),
            (&[("content-encoding", "identity"), ("content-encoding", "br")], false),
        ];
        for (lines, expected) in cases {
            assert_eq!(check_encoding(&headers(lines)).is_ok(), expected, "{lines:?}");
        }
    }
}
