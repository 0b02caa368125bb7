//! Checks of the head of a request that come before all others.

use axum::http::header::{CONTENT_ENCODING, HOST, TRANSFER_ENCODING};
use axum::http::{HeaderValue, Request, Version};

use crate::serve::refusal::{Kind, Refusal};

/// Size of the longest head of a request in bytes. A connection buffers no more than this.
pub const HEAD: usize = 64 << 10;

/// Refuses a `request` whose head is too long, names no host or several, or encodes the body.
///
/// RFC 9112 (3.2, 6.1) asks for the checks of `Host` and `Transfer-Encoding`: proxies and servers that read such heads
/// differently can be tricked into forwarding hidden requests.
pub fn check<B>(request: &Request<B>) -> Result<(), Refusal> {
    let headers = request.headers();
    if size(request) > HEAD {
        let message =
            format!("the head of the request has more than {HEAD} bytes: send fewer or shorter headers");
        return Err(Refusal::new(Kind::HeadTooLarge, message));
    }
    match headers.get_all(HOST).iter().count() {
        0 if request.version() == Version::HTTP_11 => {
            return Err(Refusal::new(Kind::Invalid, "the header Host is missing: HTTP/1.1 requires it"));
        }
        0 | 1 => {}
        count => {
            let message = format!("the request has {count} Host headers: send exactly one");
            return Err(Refusal::new(Kind::Invalid, message));
        }
    }
    let mut transfers = headers.get_all(TRANSFER_ENCODING).iter();
    if transfers.any(|value| !is(value, "chunked")) {
        let message =
            "the Transfer-Encoding is not supported: send the body with chunked or with a Content-Length";
        return Err(Refusal::new(Kind::Invalid, message));
    }
    let mut contents = headers.get_all(CONTENT_ENCODING).iter();
    if contents.any(|value| !is(value, "identity")) {
        let message = "compressed bodies are not supported: send the body without Content-Encoding";
        return Err(Refusal::new(Kind::MediaType, message));
    }
    Ok(())
}

/// Returns the size of the head of `request` as it was sent, apart from optional spaces.
fn size<B>(request: &Request<B>) -> usize {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let line = request.method().as_str().len() + target + "  HTTP/1.1\r\n".len();
    let headers = request.headers().iter();
    let headers: usize =
        headers.map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len()).sum();
    line + headers + "\r\n".len()
}

/// True if `value` is `word` in upper or lower case.
fn is(value: &HeaderValue, word: &str) -> bool {
    value.as_bytes().trim_ascii().eq_ignore_ascii_case(word.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Status that a request with these headers is refused with.
    fn refused(version: Version, headers: &[(&str, &str)]) -> Option<u16> {
        let request = Request::post("/v1/completions").version(version);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        check(&request.body(()).expect("a request")).err().map(|refusal| refusal.status())
    }

    #[test]
    fn ambiguous_and_encoded_requests_are_refused() {
        const HOST_HEADER: (&str, &str) = ("host", "localhost");
        type Headers = &'static [(&'static str, &'static str)];
        let cases: [(Headers, Option<u16>); 9] = [
            (&[HOST_HEADER], None),
            (&[], Some(400)),
            (&[HOST_HEADER, HOST_HEADER], Some(400)),
            (&[HOST_HEADER, ("transfer-encoding", "Chunked")], None),
            (&[HOST_HEADER, ("transfer-encoding", "gzip, chunked")], Some(400)),
            (&[HOST_HEADER, ("transfer-encoding", "gzip"), ("transfer-encoding", "chunked")], Some(400)),
            (&[HOST_HEADER, ("content-encoding", "identity")], None),
            (&[HOST_HEADER, ("content-encoding", "gzip")], Some(415)),
            (&[HOST_HEADER, ("content-encoding", "identity, br")], Some(415)),
        ];
        for (headers, expected) in cases {
            assert_eq!(refused(Version::HTTP_11, headers), expected, "{headers:?}");
        }
        assert_eq!(refused(Version::HTTP_10, &[]), None);
    }

    #[test]
    fn a_head_has_at_most_64_kib() {
        let rest = "POST /v1/completions HTTP/1.1\r\nhost: a\r\nx: \r\n\r\n".len();
        for (length, expected) in [(HEAD - rest, None), (HEAD - rest + 1, Some(431))] {
            let headers = [("host", "a"), ("x", &"y".repeat(length))];
            assert_eq!(refused(Version::HTTP_11, &headers), expected, "{length}");
        }
    }
}
