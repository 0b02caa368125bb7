//! Requests to a server.

use std::fmt::Write;

/// Interface of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// OpenAI's `/v1/completions`, streamed as server-sent events.
    Http,
    /// Lines of JSON: one for the request, and one for each token of the answer.
    Lines,
}

/// Request for greedily generated text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Tokens of the prompt. All servers get the same tokens, so their tokenisers do not matter.
    pub prompt: Vec<u32>,
    /// Number of tokens to generate.
    pub tokens: u32,
    /// True if the server may reuse a prefix of the prompt from its cache.
    pub cache_prompt: bool,
}

impl Ask {
    /// Serialises the request for `interface`.
    pub fn bytes(&self, interface: Interface) -> Vec<u8> {
        let mut body = String::with_capacity(128 + 7 * self.prompt.len());
        body.push_str("{\"prompt\":[");
        for (at, token) in self.prompt.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let _ = write!(body, "{comma}{token}");
        }
        let Ask { tokens, cache_prompt, .. } = self;
        let _ = write!(
            body,
            "],\"max_tokens\":{tokens},\"temperature\":0,\"ignore_eos\":true,\"stream\":true,\"cache_prompt\":{cache_prompt}"
        );
        match interface {
            Interface::Lines => {
                body.push_str("}\n");
                body.into_bytes()
            }
            Interface::Http => {
                body.push_str(",\"stream_options\":{\"include_usage\":true}}");
                http("POST", "/v1/completions", body.as_bytes())
            }
        }
    }
}

/// Builds an HTTP/1.1 request that closes the connection after its answer.
pub fn http(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_piece_of_valid_length() {
        let ask = Ask { prompt: vec![3, 14, 15], tokens: 8, cache_prompt: false };
        let text = String::from_utf8(ask.bytes(Interface::Http)).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /v1/completions HTTP/1.1\r\n"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        assert!(body.starts_with("{\"prompt\":[3,14,15],\"max_tokens\":8,\"temperature\":0,"), "{body}");
        assert!(
            body.contains("\"cache_prompt\":false") && body.ends_with("\"include_usage\":true}}"),
            "{body}"
        );
        let line = String::from_utf8(ask.bytes(Interface::Lines)).unwrap();
        assert!(line.ends_with("\"cache_prompt\":false}\n") && !line.contains("stream_options"), "{line}");
    }
}
