//! Tests that one client cannot delay other clients, whatever it sends and even if it stops reading.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::json;

use crate::client::{PATIENCE, Server, command, greedy, http, tcp};

const ABANDONED: &str = "anneal_requests_total{end=\"abandoned\"}";

/// Reads the rest of `stream`.
fn rest(mut stream: impl Read) -> String {
    let mut text = Vec::new();
    stream.read_to_end(&mut text).expect("it is closed");
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn blank_lines_are_skipped_in_one_go() {
    let server = Server::start(&["-c", "16384"]);
    let mut lines = server.connect();
    lines.send(greedy("red heat", 4000).to_string().as_bytes());
    server.wait_for("anneal_slots_busy", 1.0);
    // These blank lines are read while the request runs, and precede the next request.
    lines.stream.write_all("\r\n \n".repeat(1_000_000).as_bytes()).expect("sent");
    lines.send(greedy("hello", 2).to_string().as_bytes());
    assert_eq!(lines.next().expect("an answer")["usage"]["completion_tokens"], 4000);
    assert_eq!(server.ask(&greedy("hello", 3))["usage"]["completion_tokens"], 3);
    assert_eq!(lines.next().expect("an answer")["usage"]["completion_tokens"], 2);
}

#[test]
fn lines_that_come_together_are_answered_one_by_one() {
    let server = Server::start(&[]);
    let mut lines = server.connect();
    let mut together = b"x\n\n{}\n".repeat(300);
    together.extend(greedy("hello", 2).to_string().as_bytes());
    lines.stream.write_all(&together).expect("sent");
    lines.stream.shutdown(std::net::Shutdown::Write).expect("the write side is closed");
    for _ in 0..600 {
        assert_eq!(lines.next().expect("an answer")["error"]["code"], "invalid_value");
    }
    assert_eq!(lines.next().expect("an answer")["usage"]["completion_tokens"], 2);
    assert_eq!(lines.next(), None);
    assert_eq!(server.metric("anneal_requests_total{end=\"invalid\"}"), 600.0);
}

#[test]
fn schemas_that_would_take_for_ever_are_refused_and_slow_ones_are_overdue() {
    let server = Server::start(&["--listen", "127.0.0.1:0"]);
    let mut lines = server.connect();
    let mut request = greedy("hello", 4);
    // The first request waits for the preparation of the vocabulary.
    request["json_schema"] = json!({ "type": "object" });
    request["timeout_s"] = 0.001.into();
    assert_eq!(lines.ask(&request)["error"]["code"], "deadline");
    assert_eq!(server.metric("anneal_requests_total{end=\"deadline\"}"), 1.0);
    request["timeout_s"] = 60.into();
    request["json_schema"] = json!({ "type": "integer", "multipleOf": 99_999_989 });
    let body = request.to_string();
    let answer = lines.ask(&request);
    assert_eq!(answer["error"]["code"], "invalid_value", "{answer}");
    let (status, _, text) = tcp(&server, "POST", "/v1/completions", &[], body.as_bytes());
    assert_eq!(status, 400, "{text}");
    assert!(text.contains("multipleOf"), "{text}");
    request["json_schema"] = json!({ "type": "integer", "multipleOf": 7 });
    assert!(lines.ask(&request)["done"].is_boolean());
}

#[test]
fn no_more_are_prepared_than_may_wait_and_run() {
    let server = Server::start(&["--slots", "1", "--queue", "1"]);
    let property = |at: u64| {
        let range = json!({ "type": "integer", "multipleOf": 9973, "minimum": 123_456 + at, "maximum": 98_765_432_123_u64 + at });
        (at.to_string(), range)
    };
    let mut slow = greedy("hello", 1);
    slow["json_schema"] =
        json!({ "type": "object", "properties": (0..5).map(property).collect::<serde_json::Map<_, _>>() });
    let mut busy = false;
    // The requests are short. If the third request comes too late, all requests are sent again.
    for _ in 0..20 {
        let mut first: Vec<_> = (0..2).map(|_| server.connect()).collect();
        first.iter_mut().for_each(|lines| lines.send(slow.to_string().as_bytes()));
        busy |= server.ask(&slow)["error"]["code"] == "busy";
        for lines in &mut first {
            lines.next().expect("an answer");
        }
        if busy {
            break;
        }
    }
    assert!(busy, "a third request was prepared at the same time as two others");
    assert_eq!(server.ask(&greedy("hello", 2))["usage"]["completion_tokens"], 2);
}

#[test]
fn a_short_request_goes_before_one_that_does_not_fit() {
    let server = Server::start(&["--slots", "4", "-c", "16384"]);
    let long = |tokens: usize, most: u32| {
        let mut request = greedy("", most);
        request["prompt"] = json!(vec![1000; tokens]);
        request
    };
    // A request whose answer is not read pauses, and keeps its cells.
    let mut holds = server.connect();
    let mut request = long(2000, 13_000);
    request["stream"] = true.into();
    holds.send(request.to_string().as_bytes());
    server.wait_for("anneal_slots_busy", 1.0);
    let mut waits = server.connect();
    waits.send(long(15_000, 2).to_string().as_bytes());
    server.wait_for("anneal_requests_waiting", 1.0);
    let mut short = server.connect();
    assert_eq!(short.ask(&greedy("hello", 2))["usage"]["completion_tokens"], 2);
    assert_eq!(server.metric("anneal_requests_waiting"), 1.0);
    drop(holds);
    let answer = waits.next().expect("an answer");
    assert_eq!(answer["usage"]["completion_tokens"], 2, "{answer}");
}

#[test]
fn connections_to_the_address_leave_room_at_the_socket() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = folder.path().join("server_config.toml");
    std::fs::write(&config, "max_connections = 2\n").expect("written");
    let mut command = command(&["--listen", "127.0.0.1:0", "--config", config.to_str().expect("UTF-8")]);
    command.arg("--socket").arg(folder.path().join("a.sock"));
    let server = Server::with(command, folder);
    let taken: Vec<TcpStream> =
        (0..2).map(|_| TcpStream::connect(server.address()).expect("it listens")).collect();
    server.wait_for("anneal_connections", 3.0);
    assert_eq!(server.ask(&greedy("hello", 2))["usage"]["completion_tokens"], 2);
    drop(taken);
}

#[test]
fn who_does_not_say_what_it_wants_is_closed() {
    let server = Server::start(&["--listen", "127.0.0.1:0"]);
    let silent = UnixStream::connect(server.socket()).expect("it listens");
    let mut half = UnixStream::connect(server.socket()).expect("it listens");
    half.write_all(b"GET /health HTTP/1.1\r\n").expect("sent");
    let over_tcp = || {
        let stream = TcpStream::connect(server.address()).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        stream
    };
    let (nothing, mut second, mut resting) = (over_tcp(), over_tcp(), over_tcp());
    let whole = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for stream in [&mut second, &mut resting] {
        let mut first = [0; 12];
        stream.write_all(whole).and_then(|()| stream.read_exact(&mut first)).expect("an answer");
        assert_eq!(&first, b"HTTP/1.1 200");
    }
    second.write_all(b"GET /hea").expect("sent");
    let mut lines = server.connect();
    assert_eq!(lines.ask(&greedy("hello", 2))["usage"]["completion_tokens"], 2);
    for stream in [&silent, &half] {
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    }
    assert_eq!(rest(silent), "");
    assert!(!rest(half).contains("200 OK"));
    assert_eq!(rest(nothing), "");
    assert!(!rest(second).contains("HTTP/1.1"));
    // A client whose request was answered may be idle for longer.
    assert_eq!(lines.ask(&greedy("hello", 2))["usage"]["completion_tokens"], 2);
    resting.write_all(b"GET /none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("sent");
    assert!(rest(resting).contains("HTTP/1.1 404"));
}

#[test]
fn a_client_that_goes_behind_its_next_request_is_seen() {
    let server = Server::start(&["--slots", "1", "-c", "65536", "--listen", "127.0.0.1:0"]);
    let body = greedy("red heat", 60_000).to_string();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n\
         {body}GET /health HTTP/1.1\r\n",
        body.len()
    );
    for over_tcp in [false, true] {
        let before = server.metric(ABANDONED);
        let mut stream: Box<dyn Write> = match over_tcp {
            true => Box::new(TcpStream::connect(server.address()).expect("it listens")),
            false => Box::new(UnixStream::connect(server.socket()).expect("it listens")),
        };
        stream.write_all(request.as_bytes()).expect("sent");
        server.wait_for("anneal_slots_busy", 1.0);
        // The bytes of the next request are read before the answer ends.
        std::thread::sleep(Duration::from_millis(200));
        drop(stream);
        assert_eq!(server.ask(&greedy("hello", 2))["usage"]["completion_tokens"], 2);
        assert_eq!(server.metric(ABANDONED), before + 1.0, "{over_tcp}");
    }
}

#[test]
fn no_web_page_of_another_place_is_answered() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "--name", "a/model"]);
    let body = greedy("hello", 2).to_string();
    let post = |headers: &[&str]| {
        let mut headers = headers.to_vec();
        let length = format!("Content-Length: {}", body.len());
        headers.push(&length);
        let head = format!("POST /v1/completions HTTP/1.1\r\n{}\r\n\r\n{body}", headers.join("\r\n"));
        let mut stream = TcpStream::connect(server.address()).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        stream.write_all(head.as_bytes()).expect("sent");
        rest(stream).split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    };
    let (host, json, close) = ("Host: localhost:8080", "Content-Type: application/json", "Connection: close");
    let cases: [(&[&str], u16); 9] = [
        (&[host, json, close], 200),
        (&[host, "Content-Type: application/ld+json; charset=utf-8", close], 200),
        (&[host, "Content-Type: text/plain; x=json", close], 415),
        (&[host, "Content-Type: text/plain; application/json", close], 415),
        (&[host, json, close, "Origin: http://localhost:8080"], 200),
        (&[host, json, close, "Origin: http://evil.example"], 403),
        (&[host, json, close, "Origin: null"], 403),
        (&[host, json, close, "Sec-Fetch-Site: cross-site"], 403),
        (&["Host: evil.example", json, close], 403),
    ];
    for (headers, expected) in cases {
        assert_eq!(post(headers), expected, "{headers:?}");
    }
    assert_eq!(server.metric("anneal_requests_total{end=\"invalid\"}"), 6.0);
    // A browser cannot connect to the socket.
    let unix = |path: &str| {
        let stream = UnixStream::connect(server.socket()).expect("it listens");
        http(stream, "GET", path, &["Origin: http://evil.example"], b"")
    };
    assert_eq!(
        (unix("/v1/models/a/model").0, unix("/v1/models/a%2Fmodel").0, unix("/v1/models/b").0),
        (200, 200, 404)
    );
    let (status, _, text) = unix("/v1/models/%ff");
    assert_eq!(status, 400, "{text}");
    assert!(text.contains("\"type\":\"invalid_request_error\""), "{text}");
}

/// Every token with the grammar takes a long time, but less than the limit per token. All other requests wait for
/// each token, so the request with the grammar is ended.
#[test]
fn a_slow_grammar_ends_alone() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "--slots", "2", "-c", "8192"]);
    // The number of parses grows with each token. The text cannot end before a character that this model almost never
    // writes.
    let slow = "root ::= all \"\\U0001F600\"\nall ::= one all one | one\none ::= [a-z ]";
    let asked = json!({ "prompt": "a", "grammar": slow, "temperature": 0, "max_tokens": 4000 });
    let mut others = server.connect();
    let mut other = greedy("red heat", 7000);
    other["stream"] = true.into();
    others.send(other.to_string().as_bytes());
    assert!(others.next().is_some_and(|line| line.get("token").is_some()));
    let (status, _, text) = tcp(&server, "POST", "/v1/completions", &[], asked.to_string().as_bytes());
    // On a loaded machine, a single token may exceed its own limit before the client's limit is exceeded.
    let reasons = ["delayed other requests for too long", "a token took more than"];
    assert!(status == 500 && reasons.iter().any(|reason| text.contains(reason)), "{status}: {text}");
    // The other request continues: it receives further tokens.
    let line = std::iter::from_fn(|| others.next()).nth(500);
    assert!(line.as_ref().is_some_and(|line| line.get("token").is_some()), "{line:?}");
}
