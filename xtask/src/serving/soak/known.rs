//! Prompts whose answers are known, and what to make of an answer that is another.

use anyhow::{Context, Result, bail};
use load::answer::fetch;
use load::request::http;
use serde_json::{Value, json};

use super::equal;
use crate::serving::prompts::Prompts;
use crate::serving::server::Server;

/// Prompts.
const PROMPTS: u64 = 24;

/// Tokens of an answer; of one over HTTP, of which only the text is known.
pub const LONG: u32 = 24;
pub const SHORT: u32 = 8;

/// Where an answer may take another token than the known one, and still be right.
const TIES: usize = 3;

/// A prompt with its answer.
#[derive(Clone, Debug)]
pub struct Known {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Its answer.
    pub tokens: Vec<u32>,
    /// The text of the answer's first tokens.
    pub text: String,
}

/// An answer: by its tokens, or by its text alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// [`LONG`] tokens.
    Tokens(Vec<u32>),
    /// The text of [`SHORT`] tokens.
    Text(String),
}

/// Asks a server that nobody else asks.
pub fn learn(server: &Server, prompts: &Prompts) -> Result<Vec<Known>> {
    (0..PROMPTS)
        .map(|number| {
            let mut prompt = prompts.prompt(number);
            // Of several lengths.
            prompt.truncate(3 + (number as usize * 7) % 37);
            let tokens = ask(server, &prompt, LONG)?;
            if tokens.len() != LONG as usize {
                bail!("{LONG} tokens were asked for, and {} came", tokens.len());
            }
            let text = whole(server, &prompt, SHORT, false)?;
            Ok(Known { prompt, tokens, text })
        })
        .collect::<Result<_>>()
        .context("the server does not say what its answers are")
}

fn ask(server: &Server, prompt: &[u32], count: u32) -> Result<Vec<u32>> {
    let socket = server.socket.as_ref().context("this server takes no lines of JSON")?;
    equal::read_tokens(&equal::line(socket, &equal::request(prompt, count))?)
}

/// A request over HTTP for the text of `count` tokens.
pub fn body(prompt: &[u32], count: u32, stream: bool, cache: bool) -> Value {
    json!({
        "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": true, "stream": stream,
        "cache_prompt": cache,
    })
}

fn whole(server: &Server, prompt: &[u32], count: u32, cache: bool) -> Result<String> {
    let request = http("POST", "/v1/completions", body(prompt, count, false, cache).to_string().as_bytes());
    let (status, body) =
        fetch(&server.http, &request, std::time::Duration::from_secs(60)).map_err(anyhow::Error::msg)?;
    let answer: Value =
        serde_json::from_slice(&body).with_context(|| format!("status {status}, and no JSON"))?;
    text_of(&answer).with_context(|| format!("status {status}: {answer}"))
}

/// The text of an answer over HTTP, or of a part of one.
pub fn text_of(answer: &Value) -> Option<String> {
    Some(answer.get("choices")?.get(0)?.get("text")?.as_str()?.to_string())
}

impl Known {
    /// Whether `answer` is the known one.
    pub fn is(&self, answer: &Answer) -> bool {
        match answer {
            Answer::Tokens(tokens) => *tokens == self.tokens,
            Answer::Text(text) => *text == self.text,
        }
    }

    /// Whether `answer` is right all the same: a batch of another size sums up in another order, which can decide
    /// between two tokens that are nearly as likely. What follows must be what the server, asked alone, says behind the
    /// token that was taken.
    pub fn explains(&self, server: &Server, answer: &Answer) -> Result<bool> {
        let tokens = match answer {
            Answer::Tokens(tokens) => tokens.clone(),
            Answer::Text(text) => {
                let request = http("POST", "/tokenize", json!({ "content": text }).to_string().as_bytes());
                let (_, body) = fetch(&server.http, &request, std::time::Duration::from_secs(60))
                    .map_err(anyhow::Error::msg)?;
                equal::read_tokens(&serde_json::from_slice(&body).context("/tokenize answers no JSON")?)?
            }
        };
        follows(&tokens, |said, left| ask(server, &[self.prompt.as_slice(), said].concat(), left))
    }
}

/// Whether `tokens` are what `next` says, token by token, but for a few that are another.
fn follows(tokens: &[u32], mut next: impl FnMut(&[u32], u32) -> Result<Vec<u32>>) -> Result<bool> {
    let mut at = 0;
    for _ in 0..=TIES {
        let Ok(left @ 1..) = u32::try_from(tokens.len().saturating_sub(at)) else {
            return Ok(!tokens.is_empty());
        };
        let said = next(&tokens[..at], left)?;
        let same = said.iter().zip(&tokens[at..]).take_while(|(said, token)| said == token).count();
        if same == left as usize {
            return Ok(true);
        }
        at += same + 1;
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_token_is_excused_and_another_answer_is_not() {
        // Each token is the sum of those before it, plus one.
        let next = |said: &[u32], left: u32| {
            let mut all = said.to_vec();
            for _ in 0..left {
                all.push(all.iter().sum::<u32>() % 97 + 1);
            }
            Ok(all[said.len()..].to_vec())
        };
        let right = next(&[], 12).unwrap();
        let go_on = |from: &[u32]| [from, &next(from, 12 - from.len() as u32).unwrap()].concat();
        let once = go_on(&[&right[..4], &[50]].concat());
        let twice = go_on(&[&once[..8], &[60]].concat());
        let cases = [
            (right.clone(), true),
            (once.clone(), true),
            (twice, true),
            // The last token alone is another.
            ([&right[..11], &[99]].concat(), true),
            // Another's answer from the middle on.
            ([&right[..4], &[7, 7, 7, 7, 7, 7, 7, 7]].concat(), false),
            (vec![5; 12], false),
            (vec![], false),
        ];
        for (tokens, expected) in cases {
            assert_eq!(follows(&tokens, next).unwrap(), expected, "{tokens:?}");
        }
        assert_ne!(once, right);
    }
}
