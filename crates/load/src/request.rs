//! What is sent.

use std::fmt::Write;

/// How a server is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// OpenAI's `/v1/completions`, streamed as server-sent events.
    Http,
    /// A line of JSON, answered by a line for each token.
    Lines,
}

/// A request for greedy text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The prompt's tokens: the same for every server, whatever its tokeniser does.
    pub prompt: Vec<u32>,
    /// Tokens to generate.
    pub tokens: u32,
    /// Whether the prompt may begin with what is in the server's cache.
    pub cache_prompt: bool,
}

impl Ask {
    /// As bytes to be written.
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

/// A request over HTTP/1.1 for one answer, after which the connection ends.
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
