//! Prompts with known answers, and judgement of deviating answers.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use load::answer::fetch;
use load::request::http;
use serde_json::{Value, json};

use crate::serving::equal;
use crate::serving::prompts::Prompts;
use crate::serving::server::Server;

/// Time limit for an answer.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Number of prompts.
const PROMPTS: u64 = 24;

/// Number of tokens of an answer: over the socket with JSON lines (`LONG`), and over HTTP (`SHORT`).
pub const LONG: u32 = 24;
pub const SHORT: u32 = 8;

/// Maximum number of tokens in which a correct answer may differ from the known answer.
const TIES: usize = 3;

/// Maximum difference in log probability (natural logarithm) between a deviating token and the most likely one, when
/// the server is queried without other clients. Rounding differences between batches are far smaller. Tokens of
/// another prompt differ far more, even in a random model.
const NEARLY: f64 = 0.05;

/// Number of alternative tokens to request, which is the maximum that the server allows.
const ALTERNATIVES: u32 = 20;

/// Prompt with its answer.
#[derive(Clone, Debug)]
pub struct Known {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Tokens of the answer.
    pub tokens: Vec<u32>,
    /// Text of the answer's first [`SHORT`] tokens.
    pub text: String,
}

/// Answer that a client received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledAnswer {
    /// Tokens that were received.
    pub tokens: Vec<u32>,
    /// Number of tokens that were requested.
    pub asked: u32,
}

/// Collects the answers of a server that has no other clients.
pub fn learn(server: &Server, prompts: &Prompts) -> Result<Vec<Known>> {
    (0..PROMPTS)
        .map(|number| {
            let mut prompt = prompts.prompt(number);
            // Prompts have several lengths.
            prompt.truncate(3 + (number as usize * 7) % 37);
            let tokens = ask(server, &prompt, LONG)?;
            if tokens.len() != LONG as usize {
                bail!("requested {LONG} tokens, but received {}", tokens.len());
            }
            let text = whole(server, &prompt, SHORT, false)?;
            Ok(Known { prompt, tokens, text })
        })
        .collect::<Result<_>>()
        .context("cannot collect the server's answers")
}

fn ask(server: &Server, prompt: &[u32], count: u32) -> Result<Vec<u32>> {
    let socket = server.socket.as_ref().context("this server does not support JSON lines")?;
    equal::read_tokens(&equal::line(socket, &equal::request(prompt, count))?)
}

/// Returns the body of an HTTP request for `count` tokens.
pub fn body(prompt: &[u32], count: u32, stream: bool, cache: bool) -> Value {
    json!({
        "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": true, "stream": stream,
        "cache_prompt": cache, "return_tokens": true,
    })
}

fn whole(server: &Server, prompt: &[u32], count: u32, cache: bool) -> Result<String> {
    let request = http("POST", "/v1/completions", body(prompt, count, false, cache).to_string().as_bytes());
    let (status, body) = fetch(&server.http, &request, PATIENCE).map_err(anyhow::Error::msg)?;
    let answer: Value = serde_json::from_slice(&body)
        .with_context(|| format!("the body of the response with status {status} is not JSON"))?;
    text_of(&answer).with_context(|| format!("status {status}: {answer}"))
}

/// Returns the text of an HTTP answer or of a part of an answer.
pub fn text_of(answer: &Value) -> Option<String> {
    Some(answer.get("choices")?.get(0)?.get("text")?.as_str()?.to_string())
}

/// Returns the tokens of an HTTP answer or of a part of an answer.
pub fn tokens_of(answer: &Value) -> Option<Vec<u32>> {
    let tokens = answer.get("choices")?.get(0)?.get("tokens")?.as_array()?;
    tokens.iter().map(|token| token.as_u64()?.try_into().ok()).collect()
}

/// Verdict on an answer that differs from the known answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Deviation {
    /// The answer is correct. The value is the largest difference in log probability between a deviating token and the
    /// best token.
    Tie(f64),
    /// The answer is wrong; the text gives the reason.
    Wrong(String),
}

impl Known {
    /// True if `answer` equals the known answer.
    pub fn is(&self, answer: &SampledAnswer) -> bool {
        answer.tokens.len() == answer.asked as usize && self.tokens.starts_with(&answer.tokens)
    }

    /// Decides whether a deviating `answer` is correct. The order of additions depends on the size of the batch, and
    /// can decide between two tokens of nearly equal probability. A server without other clients must therefore give
    /// nearly the same probability to the deviating token and to its own token. It must also continue from the
    /// deviating token as the answer does.
    pub fn judge(&self, server: &Server, answer: &SampledAnswer) -> Result<Deviation> {
        let SampledAnswer { tokens, asked } = answer;
        if tokens.len() != *asked as usize {
            return Ok(Deviation::Wrong(format!("requested {asked} tokens, but received {}", tokens.len())));
        }
        let whole = |said: &[u32]| [self.prompt.as_slice(), said].concat();
        let next = |said: &[u32], left| ask(server, &whole(said), left);
        follows(tokens, next, |said, token| behind(server, &whole(said), token))
    }
}

/// Returns the difference in log probability between the best token after `prompt` and `token`. Returns `None` if
/// `token` is not among the alternatives.
fn behind(server: &Server, prompt: &[u32], token: u32) -> Result<Option<f64>> {
    let socket = server.socket.as_ref().context("this server does not support JSON lines")?;
    let mut request = equal::request(prompt, 1);
    request["logprobs"] = ALTERNATIVES.into();
    let answer = equal::line(socket, &request)?;
    let likely = |entry: &Value| Some((entry.get("token")?.as_u64()?, entry.get("logprob")?.as_f64()?));
    let top = answer.pointer("/logprobs/0/top").and_then(Value::as_array);
    let top: Option<Vec<(u64, f64)>> = top.and_then(|top| top.iter().map(likely).collect());
    let top = top.with_context(|| {
        format!("the response contains no alternative tokens: {:.300}", answer.to_string())
    })?;
    let best = top.first().map_or(0.0, |(_, logprob)| *logprob);
    Ok(top.iter().find(|(other, _)| *other == u64::from(token)).map(|(_, logprob)| best - logprob))
}

/// Checks that `tokens` equal the results of `next`, token by token, except for a few tokens. For each exception,
/// `behind` returns the difference in log probability to the best token.
fn follows(
    tokens: &[u32],
    mut next: impl FnMut(&[u32], u32) -> Result<Vec<u32>>,
    mut behind: impl FnMut(&[u32], u32) -> Result<Option<f64>>,
) -> Result<Deviation> {
    let (mut at, mut widest) = (0, 0.0_f64);
    for _ in 0..=TIES {
        let left = u32::try_from(tokens.len() - at)?;
        let said = if left == 0 { Vec::new() } else { next(&tokens[..at], left)? };
        let same = said.iter().zip(&tokens[at..]).take_while(|(said, token)| said == token).count();
        at += same;
        let Some(token) = tokens.get(at) else { return Ok(Deviation::Tie(widest)) };
        match behind(&tokens[..at], *token)? {
            Some(less) if less <= NEARLY => widest = widest.max(less),
            less => {
                let less =
                    less.map_or("not an alternative".to_string(), |less| format!("less likely by {less:.4}"));
                let said = said.get(same);
                return Ok(Deviation::Wrong(format!("token {at} is {token}, {less}, instead of {said:?}")));
            }
        }
        at += 1;
    }
    Ok(Deviation::Wrong(format!("more than {TIES} tokens differ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_token_is_excused_and_another_answer_is_not() {
        // Each token is one more than the sum of the tokens before it.
        let next = |said: &[u32], left: u32| {
            let mut all = said.to_vec();
            for _ in 0..left {
                all.push(all.iter().sum::<u32>() % 97 + 1);
            }
            Ok(all[said.len()..].to_vec())
        };
        // Only these tokens are nearly as likely as the best one.
        let behind = |_: &[u32], token: u32| match token {
            50 => Ok(Some(0.01)),
            60 => Ok(Some(0.02)),
            70 => Ok(Some(0.3)),
            _ => Ok(None),
        };
        let right = next(&[], 12).unwrap();
        let go_on = |from: &[u32]| [from, &next(from, 12 - from.len() as u32).unwrap()].concat();
        let once = go_on(&[&right[..4], &[50]].concat());
        let twice = go_on(&[&once[..8], &[60]].concat());
        let cases = [
            (right.clone(), Ok(0.0)),
            (once.clone(), Ok(0.01)),
            (twice, Ok(0.02)),
            // Only the last token differs.
            ([&right[..11], &[60]].concat(), Ok(0.02)),
            ([&right[..11], &[70]].concat(), Err("token 11 is 70, less likely by 0.3000")),
            ([&right[..11], &[99]].concat(), Err("token 11 is 99, not an alternative")),
            // From the middle on, the tokens belong to another answer.
            ([&right[..4], &[50, 7, 7, 7, 7, 7, 7, 7]].concat(), Err("token 5 is 7")),
            (vec![50; 12], Err("more than 3")),
        ];
        for (tokens, expected) in cases {
            match (follows(&tokens, next, behind).unwrap(), expected) {
                (Deviation::Tie(found), Ok(widest)) => assert_eq!(found, widest, "{tokens:?}"),
                (Deviation::Wrong(words), Err(expected)) => assert!(words.contains(expected), "{words}"),
                (found, _) => panic!("{tokens:?}: {found:?}"),
            }
        }
        assert_ne!(once, right);
    }

    #[test]
    fn an_answer_is_known_by_its_tokens_and_by_how_many_came() {
        let known = Known { prompt: vec![1], tokens: vec![1345, 7, 8], text: String::new() };
        let cases = [
            (vec![1345, 7, 8], 3, true),
            (vec![1345, 7], 2, true),
            (vec![1345, 7], 3, false),
            (vec![], 0, true),
            // These tokens split the same text differently.
            (vec![32, 256, 280], 3, false),
        ];
        for (tokens, asked, expected) in cases {
            assert_eq!(known.is(&SampledAnswer { tokens: tokens.clone(), asked }), expected, "{tokens:?}");
        }
    }

    #[test]
    fn tokens_are_read_out_of_an_answer_over_http() {
        let answer = json!({ "choices": [{ "text": " thee", "tokens": [1345] }] });
        assert_eq!((tokens_of(&answer), text_of(&answer)), (Some(vec![1345]), Some(" thee".to_string())));
        for none in
            [json!({}), json!({ "choices": [{ "text": "a" }] }), json!({ "choices": [{ "tokens": [-1] }] })]
        {
            assert_eq!(tokens_of(&none), None, "{none}");
        }
    }
}
