//! Invalid and abusive client behaviour.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use load::http::Decoder;
use load::request::http;
use load::{Address, Ask, Interface, Wire};

use super::known::{Known, PATIENCE};
use crate::serving::prompts::Random;
use crate::serving::server::Server;

/// Maximum size in bytes of a request that the server accepts. The size is small, so that longer requests are cheap
/// to send.
pub const LONGEST: usize = 64 << 10;

/// Chooses an address and its interface at random.
fn place(server: &Server, random: &mut Random) -> (Address, Interface) {
    server.address(if random.below(2) == 0 { Interface::Http } else { Interface::Lines })
}

fn long_request(known: &Known, interface: Interface) -> Vec<u8> {
    Ask { prompt: known.prompt.clone(), tokens: 200, cache_prompt: true }.bytes(interface)
}

fn open(address: &Address) -> Result<Wire, String> {
    Wire::open(address, PATIENCE).map_err(|why| format!("cannot connect: {why}"))
}

/// Reads part of an answer and disconnects.
pub fn cancel(server: &Server, known: &Known, random: &mut Random) -> Result<(), String> {
    let (address, interface) = place(server, random);
    let mut wire = open(&address)?;
    wire.write_all(&long_request(known, interface)).map_err(|why| why.to_string())?;
    for _ in 0..=random.below(4) {
        match wire.read(&mut [0; 512]) {
            Ok(0) => return Err("the server closed the connection before the client did".to_string()),
            Ok(_) => {}
            Err(why) => return Err(why.to_string()),
        }
    }
    Ok(())
}

/// Disconnects without reading.
pub fn leave(server: &Server, known: &Known, random: &mut Random) -> Result<(), String> {
    let (address, interface) = place(server, random);
    let mut wire = open(&address)?;
    wire.write_all(&long_request(known, interface)).map_err(|why| why.to_string())?;
    std::thread::sleep(Duration::from_micros(random.below(3000) as u64));
    Ok(())
}

/// Disconnects in the middle of sending a request.
pub fn cut_off(server: &Server, known: &Known, random: &mut Random) -> Result<(), String> {
    let (address, interface) = place(server, random);
    let request = long_request(known, interface);
    let mut wire = open(&address)?;
    // Never send the whole request: a JSON line is complete only with its line feed.
    wire.write_all(&request[..random.below(request.len() - 1)]).map_err(|why| why.to_string())
}

/// Sends a prompt that exceeds every context of this server.
pub fn long_prompt(server: &Server, random: &mut Random) -> Result<(), String> {
    let (address, interface) = place(server, random);
    let request = Ask { prompt: vec![300; 2500], tokens: 4, cache_prompt: false }.bytes(interface);
    expect_refusal(&address, interface, &request, "a prompt beyond the context")
}

/// Sends more bytes than the server accepts.
pub fn too_large(server: &Server, random: &mut Random) -> Result<(), String> {
    let (address, interface) = place(server, random);
    let text = format!("{{\"prompt\": \"{}\"}}\n", "a".repeat(LONGEST + 1 + random.below(LONGEST)));
    let request = match interface {
        Interface::Http => http("POST", "/v1/completions", text.as_bytes()),
        Interface::Lines => text.into_bytes(),
    };
    expect_refusal(&address, interface, &request, "a request that is too large")
}

/// Invalid request bodies.
const BODIES: [&[u8]; 16] = [
    b"{",
    b"[]",
    b"null",
    b"\"prompt\"",
    b"{\"prompt\": }",
    b"{\"prompt\": \"a\", \"max_tokens\": -2}",
    b"{\"prompt\": \"a\", \"max_tokens\": 1e300}",
    b"{\"prompt\": \"a\", \"max_tokens\": \"many\"}",
    b"{\"prompt\": \"a\", \"temperature\": -5}",
    b"{\"prompt\": [99999999]}",
    b"{\"prompt\": [-1, {}, null]}",
    b"{\"prompt\": {\"a\": [[[[[[[[]]]]]]]]}}",
    b"{\"prompt\": \"a\", \"stop\": [1]}",
    b"{\"prompt\": \"\xff\xfe\"}",
    b"{\"prompt\": \"\\ud800\"}",
    b"\0\0\0\0",
];

/// Requests with an invalid head.
const HEADS: [&str; 4] = [
    "GET /none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "DELETE /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: nine\r\n\r\n",
    "\u{1}\u{2}\u{3} garbage\r\n\r\n",
];

/// Sends a request that cannot be parsed.
pub fn malformed(server: &Server, random: &mut Random) -> Result<(), String> {
    let number = random.below(BODIES.len() + HEADS.len());
    if let Some(head) = number.checked_sub(BODIES.len()) {
        return expect_refusal(&server.http, Interface::Http, HEADS[head].as_bytes(), HEADS[head]);
    }
    let (address, interface) = place(server, random);
    let body = BODIES[number];
    let request = match interface {
        Interface::Http => http("POST", "/v1/completions", body),
        Interface::Lines => [body, b"\n"].concat(),
    };
    expect_refusal(&address, interface, &request, &String::from_utf8_lossy(body))
}

/// Sends `request` and checks that the server refuses it with an error message or by closing the connection.
fn expect_refusal(address: &Address, interface: Interface, request: &[u8], what: &str) -> Result<(), String> {
    let mut wire = open(address)?;
    // A server may refuse a request and close the connection before reading the whole request.
    let sent = wire.write_all(request);
    let _ = wire.finish_writing();
    let (mut decoder, mut text, mut buffer) = (Decoder::default(), Vec::new(), [0; 8 << 10]);
    loop {
        let count = match wire.read(&mut buffer) {
            Ok(count) => count,
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(format!("{what}: the response timed out"));
            }
            // After a reset, bytes in transit to the client are lost.
            Err(_) => return Ok(()),
        };
        match interface {
            Interface::Http => {
                decoder.feed(&buffer[..count], &mut text).map_err(|why| format!("{what}: {why}"))?
            }
            Interface::Lines => text.extend_from_slice(&buffer[..count]),
        }
        let over = match interface {
            Interface::Http => decoder.is_over() || decoder.status() >= 400,
            Interface::Lines => text.contains(&b'\n'),
        };
        if !over && count > 0 {
            continue;
        }
        let refused = match interface {
            Interface::Http => decoder.status() >= 400 && decoder.status() < 500,
            Interface::Lines => text.windows(7).any(|part| part == b"\"error\""),
        };
        let nothing = text.is_empty() && decoder.status() == 0;
        return if refused || nothing || (sent.is_err() && text.is_empty()) {
            Ok(())
        } else {
            let said: String = String::from_utf8_lossy(&text).chars().take(200).collect();
            Err(format!("{what} was not refused: status {}, {said}", decoder.status()))
        };
    }
}
