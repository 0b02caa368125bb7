//! One request of a client: valid, abandoned or invalid.

use std::io::{Read, Write};

use load::answer::fetch;
use load::request::http;
use load::{Address, Wire};
use serde_json::Value;

use super::abuse;
use super::known::{Known, LONG, PATIENCE, SHORT, SampledAnswer, body, text_of, tokens_of};
use super::talk::{Api, Talks, Turn};
use crate::serving::equal;
use crate::serving::prompts::Random;
use crate::serving::server::Server;

/// Outcome of a request.
#[derive(Debug)]
pub enum Visit {
    /// The answer equals the known answer.
    Right,
    /// There is no answer to check: the client abandoned the request, or the server correctly refused it.
    Nothing,
    /// The server has no free slot.
    Busy,
    /// The answer to a known prompt differs from the known answer.
    Doubtful(usize, SampledAnswer),
    /// The answer of a conversation differs from the known answer.
    Unlike(String),
    /// The server misbehaved; the text gives the reason.
    Wrong(String),
}

impl From<Turn> for Visit {
    fn from(turn: Turn) -> Self {
        match turn {
            Turn::Right => Visit::Right,
            Turn::Busy => Visit::Busy,
            Turn::Unlike(words) => Visit::Unlike(words),
        }
    }
}

/// Sends a random request. Returns its kind and its outcome.
pub fn visit(server: &Server, known: &[Known], talks: &Talks, random: &mut Random) -> (&'static str, Visit) {
    let number = random.below(known.len());
    let one = &known[number];
    let cache = random.below(2) == 0;
    let Some(socket) = &server.socket else { return ("none", Visit::Wrong("no socket".to_string())) };
    let judged = |answer: Result<VisitReply, String>| match answer {
        Ok(VisitReply::Busy) => Visit::Busy,
        Ok(VisitReply::Answer(answer)) if one.is(&answer) => Visit::Right,
        Ok(VisitReply::Answer(answer)) => Visit::Doubtful(number, answer),
        Err(why) => Visit::Wrong(format!("prompt {number}: {why}")),
    };
    match random.below(29) {
        0..=3 => ("line", judged(lines(socket, one, false, cache, false))),
        4..=6 => ("streamed line", judged(lines(socket, one, true, cache, false))),
        7 => ("half-closed line", judged(lines(socket, one, true, cache, true))),
        8..=10 => ("HTTP", judged(over_http(&server.http, one, false, cache))),
        11..=12 => ("streamed HTTP", judged(over_http(&server.http, one, true, cache))),
        13..=14 => ("cancelled", quiet(abuse::cancel(server, one, random))),
        15 => ("left at once", quiet(abuse::leave(server, one, random))),
        16 => ("cut off", quiet(abuse::cut_off(server, one, random))),
        17 => ("too long a prompt", refused(abuse::long_prompt(server, random))),
        18 => ("too large", refused(abuse::too_large(server, random))),
        19..=27 => {
            let (api, streamed) = (Api::ALL[random.below(Api::ALL.len())], random.below(2) == 0);
            let turn = talks.visit(server, api, streamed, random);
            (api.kind(streamed), turn.map_or_else(Visit::Wrong, Visit::from))
        }
        _ => ("malformed", refused(abuse::malformed(server, random))),
    }
}

fn quiet(done: Result<(), String>) -> Visit {
    done.map_or_else(Visit::Wrong, |()| Visit::Nothing)
}

fn refused(refused: Result<(), String>) -> Visit {
    quiet(refused)
}

/// Reply of the server to a request that it should answer.
enum VisitReply {
    Answer(SampledAnswer),
    Busy,
}

/// Sends the request over the Unix socket.
fn lines(
    socket: &Address,
    known: &Known,
    stream: bool,
    cache: bool,
    half: bool,
) -> Result<VisitReply, String> {
    let mut request = equal::request(&known.prompt, LONG);
    request["stream"] = stream.into();
    request["cache_prompt"] = cache.into();
    let mut wire = Wire::open(socket, PATIENCE).map_err(|why| why.to_string())?;
    wire.write_all(format!("{request}\n").as_bytes()).map_err(|why| why.to_string())?;
    if half {
        wire.finish_writing().map_err(|why| why.to_string())?;
    }
    let (mut text, mut tokens) = (Vec::new(), Vec::new());
    let mut buffer = [0; 8 << 10];
    loop {
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let line: Value =
                serde_json::from_slice(&line).map_err(|why| format!("a line is not JSON: {why}"))?;
            if let Some(error) = line.get("error") {
                return busy(error);
            }
            if line.get("done") == Some(&true.into()) {
                if !stream {
                    tokens = equal::read_tokens(&line).map_err(|why| why.to_string())?;
                }
                return Ok(VisitReply::Answer(SampledAnswer { tokens, asked: LONG }));
            }
            let token = line.get("token").and_then(Value::as_u64).and_then(|token| u32::try_from(token).ok());
            tokens.push(token.ok_or_else(|| format!("a line has no token: {line:.200}"))?);
        }
        match wire.read(&mut buffer).map_err(|why| why.to_string())? {
            0 => return Err("the connection ended during the answer".to_string()),
            count => text.extend_from_slice(&buffer[..count]),
        }
    }
}

fn busy(error: &Value) -> Result<VisitReply, String> {
    let text = error.to_string();
    if text.contains("busy") { Ok(VisitReply::Busy) } else { Err(text.chars().take(300).collect()) }
}

/// Sends the request over HTTP.
fn over_http(address: &Address, known: &Known, stream: bool, cache: bool) -> Result<VisitReply, String> {
    let request = body(&known.prompt, SHORT, stream, cache).to_string();
    let (status, body) = fetch(address, &http("POST", "/v1/completions", request.as_bytes()), PATIENCE)?;
    let body = String::from_utf8(body).map_err(|_| "the answer is not UTF-8".to_string())?;
    match status {
        200 => {}
        429 => return Ok(VisitReply::Busy),
        _ => return Err(format!("status {status}: {body:.300}")),
    }
    let parse = |text: &str| {
        serde_json::from_str::<Value>(text).map_err(|why| format!("the body is not JSON: {why}"))
    };
    if !stream {
        let answer = parse(&body)?;
        return with_text(known, tokens_of(&answer), &text_of(&answer).unwrap_or_default())
            .ok_or_else(|| format!("missing tokens or wrong text in {answer:.300}"));
    }
    if !body.ends_with("data: [DONE]\n\n") {
        return Err(format!("the stream does not end with `data: [DONE]`: {body:.300}"));
    }
    let (mut text, mut tokens) = (String::new(), Vec::new());
    for data in body.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]") {
        let part = parse(data)?;
        if let Some(error) = part.get("error") {
            return busy(error);
        }
        text.push_str(&text_of(&part).unwrap_or_default());
        tokens.extend(tokens_of(&part).unwrap_or_default());
    }
    with_text(known, Some(tokens), &text)
        .ok_or_else(|| format!("the text does not match its tokens: {text:?}"))
}

/// Returns `tokens` as an answer. Returns `None` if the tokens are the known tokens but `text` is not the known text.
fn with_text(known: &Known, tokens: Option<Vec<u32>>, text: &str) -> Option<VisitReply> {
    let answer = SampledAnswer { tokens: tokens?, asked: SHORT };
    (!known.is(&answer) || text == known.text).then_some(VisitReply::Answer(answer))
}
