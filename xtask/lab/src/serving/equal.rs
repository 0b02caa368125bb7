//! Checks that two servers give the same answers, before they are measured.

use std::io::{BufRead, BufReader, Write};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use load::answer::fetch;
use load::request::http;
use load::{Address, Wire};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::server::{Server, ServerKind};

/// Time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(600);

/// Agreement of two servers' greedy answers to one prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Equal {
    /// Number of tokens that were requested.
    pub asked: usize,
    /// Number of equal tokens before the first difference.
    pub same: usize,
}

impl Equal {
    /// Compares two answers.
    pub fn of(one: &[u32], other: &[u32]) -> Self {
        let same = one.iter().zip(other).take_while(|(one, other)| one == other).count();
        Self { asked: one.len().max(other.len()), same }
    }

    /// True if all tokens are equal.
    pub fn is_whole(&self) -> bool {
        self.same == self.asked
    }
}

/// Returns the tokens of `server`'s greedy answer to `prompt`. The request does not use the prompt cache.
pub fn tokens(server: &Server, kind: ServerKind, prompt: &[u32], count: u32) -> Result<Vec<u32>> {
    let answer = match (kind, &server.socket) {
        (ServerKind::Anneal, Some(socket)) => line(socket, &request(prompt, count))?,
        _ => {
            let body = json!({
                "prompt": prompt, "n_predict": count, "temperature": 0, "ignore_eos": true, "stream": false,
                "cache_prompt": false, "return_tokens": true,
            });
            let request = http("POST", "/completion", body.to_string().as_bytes());
            let (status, body) = fetch(&server.http, &request, PATIENCE).map_err(anyhow::Error::msg)?;
            let answer: Value = serde_json::from_slice(&body).with_context(|| {
                format!("/completion: the body of the response with status {status} is not JSON")
            })?;
            answer
        }
    };
    read_tokens(&answer).with_context(|| format!("{} returned no tokens", server.line()))
}

/// Returns a one-line request for an answer.
pub fn request(prompt: &[u32], count: u32) -> Value {
    json!({
        "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": true, "cache_prompt": false,
    })
}

/// Reads the tokens of an answer.
pub fn read_tokens(answer: &Value) -> Result<Vec<u32>> {
    let tokens = answer.get("tokens").and_then(Value::as_array);
    let tokens = tokens.and_then(|tokens| {
        tokens.iter().map(|token| token.as_u64().and_then(|token| u32::try_from(token).ok())).collect()
    });
    tokens.ok_or_else(|| anyhow!("the response was {:.200}", answer.to_string()))
}

/// Sends one line of JSON and reads one line.
pub fn line(socket: &Address, request: &Value) -> Result<Value> {
    let mut wire = Wire::open(socket, PATIENCE).with_context(|| format!("cannot connect to {socket}"))?;
    wire.write_all(format!("{request}\n").as_bytes()).context("cannot send the request")?;
    let mut line = String::new();
    BufReader::new(wire).read_line(&mut line).context("cannot read the answer")?;
    serde_json::from_str(&line).with_context(|| format!("the response is not JSON: {line:.200}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_counted_to_the_first_that_differs() {
        let cases: [(&[u32], &[u32], usize, bool); 5] = [
            (&[1, 2, 3], &[1, 2, 3], 3, true),
            (&[1, 2, 3], &[1, 9, 3], 1, false),
            (&[1, 2, 3], &[1, 2], 2, false),
            (&[9], &[1], 0, false),
            (&[], &[], 0, true),
        ];
        for (one, other, same, whole) in cases {
            let found = Equal::of(one, other);
            assert_eq!((found.same, found.is_whole()), (same, whole), "{one:?} {other:?}");
        }
    }

    #[test]
    fn only_tokens_are_taken_as_tokens() {
        assert_eq!(read_tokens(&json!({ "tokens": [1, 2] })).unwrap(), [1, 2]);
        for answer in
            [json!({}), json!({ "tokens": [1, "a"] }), json!({ "tokens": [-1] }), json!({ "error": {} })]
        {
            assert!(read_tokens(&answer).is_err(), "{answer}");
        }
    }
}
