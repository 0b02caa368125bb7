//! Answers from a server, with the arrival times of their pieces.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::http::Decoder;
use crate::lines::{self, Line};
use crate::request::{Ask, Interface};
use crate::wire::{Address, Wire};

/// Outcome of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnswerEnd {
    /// The answer is complete.
    Whole,
    /// The answer failed: an error from the server or the system, or a reply that cannot be parsed.
    Wrong(String),
}

/// Answer to one request. Times are in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Time from the beginning of the run to the request.
    pub asked_us: u64,
    /// Time from the request to the first piece of text; `None` if no text arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_us: Option<u64>,
    /// Times between consecutive pieces. For pieces that arrived in one read, the time is 0.
    pub between_us: Vec<u32>,
    /// Time from the request to the end of the answer.
    pub whole_us: u64,
    /// Number of generated tokens, as counted by the server.
    pub tokens: u32,
    /// Number of prompt tokens found in the server's cache; `None` if the server does not report this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<u32>,
    /// Outcome of the answer.
    pub ended: AnswerEnd,
}

/// Collects the pieces of an answer from its lines.
#[derive(Debug, Default)]
struct Pieces {
    /// Bytes received after the last complete line.
    text: Vec<u8>,
    first: Option<Instant>,
    last: Option<Instant>,
    between: Vec<u32>,
    counts: Option<(u32, Option<u32>)>,
    error: Option<String>,
}

impl Pieces {
    /// Processes all complete lines, which arrived at `now`.
    fn take(&mut self, now: Instant) {
        let mut from = 0;
        while let Some(length) = self.text[from..].iter().position(|byte| *byte == b'\n') {
            let line = &self.text[from..from + length];
            from += length + 1;
            match lines::read(line.strip_suffix(b"\r").unwrap_or(line)) {
                Line::Piece => {
                    if let Some(last) = self.last.replace(now) {
                        self.between.push(micros(now.duration_since(last)).try_into().unwrap_or(u32::MAX));
                    }
                    self.first.get_or_insert(now);
                }
                Line::Counts { generated, cached } => self.counts = Some((generated, cached)),
                Line::Error => self.error = Some(shortened(line)),
                Line::Other => {}
            }
        }
        self.text.drain(..from);
    }

    fn into_answer(self, begin: Instant, asked: Instant, ended: AnswerEnd) -> Answer {
        let (tokens, cached) = self.counts.unwrap_or_default();
        let ended = match (self.error, ended) {
            (Some(error), _) => AnswerEnd::Wrong(error),
            (None, AnswerEnd::Whole) if self.counts.is_none() => {
                AnswerEnd::Wrong("the answer ended without token counts".to_string())
            }
            (None, ended) => ended,
        };
        Answer {
            asked_us: micros(asked.duration_since(begin)),
            first_us: self.first.map(|first| micros(first.duration_since(asked))),
            between_us: self.between,
            whole_us: micros(asked.elapsed()),
            tokens,
            cached,
            ended,
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn shortened(line: &[u8]) -> String {
    String::from_utf8_lossy(line).chars().take(200).collect()
}

/// Sends `ask` to `address` on a new connection and reads the answer to its end. The clock starts when the connection
/// is open. `begin` is the start time of the run.
pub fn ask(address: &Address, interface: Interface, ask: &Ask, patience: Duration, begin: Instant) -> Answer {
    let request = ask.bytes(interface);
    let mut pieces = Pieces::default();
    let wire = Wire::open(address, patience);
    let asked = Instant::now();
    let ended = wire
        .map_err(|why| format!("cannot connect: {why}"))
        .and_then(|wire| read(wire, interface, &request, &mut pieces));
    let ended = ended.map_or_else(AnswerEnd::Wrong, |()| AnswerEnd::Whole);
    pieces.into_answer(begin, asked, ended)
}

fn read(mut wire: Wire, interface: Interface, request: &[u8], pieces: &mut Pieces) -> Result<(), String> {
    let said = |why: io::Error| match why.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "the server sent no data before the timeout".to_string()
        }
        _ => why.to_string(),
    };
    wire.write_all(request).map_err(said)?;
    let mut decoder = Decoder::default();
    let mut buffer = [0; 16 << 10];
    loop {
        let count = match wire.read(&mut buffer) {
            Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
            read => read.map_err(said)?,
        };
        let now = Instant::now();
        match interface {
            Interface::Http => decoder.feed(&buffer[..count], &mut pieces.text)?,
            Interface::Lines => pieces.text.extend_from_slice(&buffer[..count]),
        }
        pieces.take(now);
        let (over, may_end) = match interface {
            Interface::Http => (decoder.is_over(), decoder.may_end()),
            Interface::Lines => {
                let over = pieces.counts.is_some() || pieces.error.is_some();
                (over, over)
            }
        };
        if over || count == 0 {
            if interface == Interface::Http && ![0, 200].contains(&decoder.status()) {
                return Err(format!("status {}: {}", decoder.status(), shortened(&pieces.text)));
            }
            return if may_end {
                Ok(())
            } else {
                Err("the connection closed in the middle of the answer".to_string())
            };
        }
    }
}

/// Sends `request` and returns the status and the body of the answer.
///
/// # Errors
/// A message if the connection fails or the answer cannot be parsed.
pub fn fetch(address: &Address, request: &[u8], patience: Duration) -> Result<(u16, Vec<u8>), String> {
    let mut wire = Wire::open(address, patience).map_err(|why| why.to_string())?;
    wire.write_all(request).map_err(|why| why.to_string())?;
    let (mut decoder, mut body, mut buffer) = (Decoder::default(), Vec::new(), [0; 16 << 10]);
    loop {
        let count = wire.read(&mut buffer).map_err(|why| why.to_string())?;
        decoder.feed(&buffer[..count], &mut body)?;
        if decoder.is_over() || (count == 0 && decoder.may_end()) {
            return Ok((decoder.status(), body));
        }
        if count == 0 {
            return Err("the connection closed in the middle of the answer".to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Starts a server that sends each connection the next of `answers`, in pieces with pauses between the pieces.
    fn server(answers: Vec<Vec<Vec<u8>>>) -> Address {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for pieces in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 4096]);
                for piece in pieces {
                    let _ = stream.write_all(&piece);
                    std::thread::sleep(Duration::from_millis(15));
                }
            }
        });
        address
    }

    fn stream(lines: &[&str]) -> Vec<Vec<u8>> {
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        let chunks = lines.iter().map(|line| format!("{:x}\r\n{line}\n\n\r\n", line.len() + 2).into_bytes());
        [vec![head], chunks.collect(), vec![b"0\r\n\r\n".to_vec()]].concat()
    }

    fn simple() -> Ask {
        Ask { prompt: vec![1], tokens: 3, cache_prompt: false }
    }

    fn asked(address: &Address, interface: Interface) -> Answer {
        ask(address, interface, &simple(), Duration::from_secs(10), Instant::now())
    }

    const A: &str = r#"data: {"choices":[{"text":"a"}]}"#;
    const COUNTS: &str = r#"data: {"choices":[],"usage":{"completion_tokens":3}}"#;

    #[test]
    fn a_stream_is_timed_piece_by_piece() {
        let answer = asked(&server(vec![stream(&[A, A, A, COUNTS, "data: [DONE]"])]), Interface::Http);
        assert_eq!(
            (answer.ended.clone(), answer.tokens, answer.between_us.len()),
            (AnswerEnd::Whole, 3, 2),
            "{answer:?}"
        );
        let first = answer.first_us.unwrap();
        let between: u64 = answer.between_us.iter().map(|time| u64::from(*time)).sum();
        assert!(first > 0 && between >= 20_000 && answer.whole_us >= first + between, "{answer:?}");
    }

    #[test]
    fn lines_of_json_end_with_their_counts() {
        let lines = [
            r#"{"token":1,"text":"a"}"#,
            r#"{"token":2,"text":""}"#,
            r#"{"done":true,"usage":{"completion_tokens":2}}"#,
        ];
        let pieces = lines.iter().map(|line| format!("{line}\n").into_bytes()).collect();
        let answer = asked(&server(vec![pieces]), Interface::Lines);
        assert_eq!(
            (answer.ended.clone(), answer.tokens, answer.between_us.len()),
            (AnswerEnd::Whole, 2, 1),
            "{answer:?}"
        );
    }

    #[test]
    fn what_goes_wrong_is_told() {
        let plain = |text: &str| vec![text.as_bytes().to_vec()];
        let cases = [
            (plain("HTTP/1.1 429 Busy\r\nContent-Length: 2\r\n\r\n{}"), "status 429: {}"),
            (plain("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"), "closed in the middle"),
            (plain("garbage\r\n\r\n"), "not HTTP/1.1"),
            (stream(&[A, r#"data: {"error":{"message":"broken"}}"#]), "broken"),
            (stream(&[A]), "without token counts"),
            (vec![], "closed in the middle"),
        ];
        let (answers, words): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
        let address = server(answers);
        for words in words {
            let answer = asked(&address, Interface::Http);
            assert!(
                matches!(&answer.ended, AnswerEnd::Wrong(why) if why.contains(words)),
                "{words}: {answer:?}"
            );
        }
        let nobody = Address::Unix("/nowhere/at/all.sock".into());
        assert!(
            matches!(asked(&nobody, Interface::Lines).ended, AnswerEnd::Wrong(why) if why.contains("cannot connect"))
        );
    }
}
