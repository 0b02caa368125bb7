//! Who may ask.

use std::hint::black_box;
use std::net::IpAddr;

use axum::http::Request;
use axum::http::header::{AUTHORIZATION, HOST};

use crate::serve::job::Client;
use crate::serve::refusal::{Kind, Refusal};
use crate::serve::server::Server;

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Who it is.
    pub client: Client,
    /// Whether it came by the socket's file, whose mode says who may.
    pub by_file: bool,
}

/// Whether `request` of `peer` may be answered.
pub fn check<B>(server: &Server, peer: &Peer, request: &Request<B>) -> Result<(), Refusal> {
    if peer.by_file || request.uri().path() == "/health" {
        return Ok(());
    }
    let header = |name| request.headers().get(name).map(axum::http::HeaderValue::as_bytes);
    if server.keys.is_empty() {
        let mut hosts = request.headers().get_all(HOST).iter();
        return match hosts.all(|host| host.to_str().is_ok_and(is_own)) {
            true => Ok(()),
            false => Err(Refusal::new(
                Kind::Forbidden,
                "the header Host names neither an address nor localhost: without a key only those are answered, so that \
                 no web page reaches this server by a name of its own",
            )),
        };
    }
    let given = header(AUTHORIZATION).and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
    // All of them, whichever it is.
    let known = server.keys.iter().fold(false, |known, key| known | same(key.as_bytes(), given));
    match known {
        true => Ok(()),
        false => Err(Refusal::new(
            Kind::Unauthorized,
            "no key, or not one of this server's: send the header Authorization: Bearer KEY",
        )),
    }
}

/// Whether a web page of another name cannot have sent this: names can be made to lead anywhere.
fn is_own(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Compares in a time that depends on the lengths alone.
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
            assert_eq!(is_own(host), expected, "{host:?}");
        }
    }
}
