//! Tests of invalid requests. An invalid request must only affect the client that sends it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use serde_json::json;

use crate::client::{Server, greedy, http};

/// Returns invalid requests, with a part of the expected error.
fn wrong() -> Vec<(Vec<u8>, &'static str)> {
    let mut cases: Vec<(Vec<u8>, &'static str)> = [
        ("{", "not JSON"),
        ("[1, 2]", "must be a JSON object"),
        ("\"text\"", "must be a JSON object"),
        ("null", "must be a JSON object"),
        ("{\"prompt\": \"a\"} trailing", "trailing characters"),
        ("{}", "prompt: is missing"),
        ("{\"prompt\": null}", "prompt: is missing"),
        ("{\"prompt\": 5}", "prompt: use a string"),
        ("{\"prompt\": {}}", "prompt: use a string"),
        ("{\"prompt\": [1, \"a\"]}", "prompt: use token numbers in a list"),
        ("{\"prompt\": [-1]}", "use tokens from 0 to"),
        ("{\"prompt\": [2000000000]}", "use tokens from 0 to"),
        ("{\"prompt\": \"\\ud800\"}", "not JSON"),
        ("{\"prompt\": \"a\", \"stream\": \"yes\"}", "stream: use true or false"),
        ("{\"prompt\": \"a\", \"stop\": 5}", "stop: use a string"),
        ("{\"prompt\": \"a\", \"grammar\": \"root ::= (\"}", "grammar"),
        ("{\"prompt\": \"a\", \"json_schema\": {\"type\": \"no such type\"}}", "schema"),
        (
            "{\"prompt\": \"a\", \"json_schema\": {}, \"grammar\": \"\"}",
            "json_schema: give json_schema or grammar",
        ),
        ("{\"prompt\": \"a\", \"logit_bias\": {\"999999999\": 1}}", "logit_bias"),
        ("{\"prompt\": \"a\", \"stop\": [\"\"]}", "stop: a stop string must not be empty"),
    ]
    .map(|(request, expected)| (request.as_bytes().to_vec(), expected))
    .into();
    cases.push((b"{\"prompt\": \"\xff\xfe\"}".to_vec(), "not valid UTF-8: byte 12"));
    cases.push(("[".repeat(100_000).into_bytes(), "nested more than 127 levels deep"));
    // The first prompt is rejected because of its tokens, the second because of its bytes.
    for (count, expected) in
        [(6_000, "the context of this server"), (20_000, "a context of 4096 tokens holds at most")]
    {
        cases.push((json!({ "prompt": "steel ".repeat(count) }).to_string().into_bytes(), expected));
    }
    cases.push((
        json!({ "prompt": vec![1; 5000] }).to_string().into_bytes(),
        "the context of this server holds only 4096",
    ));
    for field in
        ["max_tokens", "top_k", "seed", "temperature", "top_p", "min_p", "timeout_s", "mirostat", "dry_base"]
    {
        for value in ["-1", "1e300", "-1e300", "99999999999999999999999999", "\"1\"", "[1]", "{}", "true"] {
            // As in llama.cpp, -1 means a random seed, and no limit on the tokens.
            if ["seed", "max_tokens"].contains(&field) && value == "-1" {
                continue;
            }
            let request = format!("{{\"prompt\": \"a\", \"{field}\": {value}}}");
            cases.push((request.into_bytes(), field));
        }
    }
    cases
}

#[test]
fn lines_that_are_wrong_are_refused_and_the_next_is_answered() {
    let server = Server::start(&[]);
    let mut lines = server.connect();
    let cases = wrong();
    for (request, expected) in &cases {
        lines.send(request);
        let answer = lines.next().expect("an answer");
        let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert!(message.contains(expected), "{message} for {}", String::from_utf8_lossy(request));
        assert!(message.len() < 500, "{message}");
    }
    lines.send(b"{\"prompt\": \"a\", \"id\": \"mine\", \"max_token\": 4}");
    let answer = lines.next().expect("an answer");
    assert_eq!(answer["id"], "mine");
    assert_eq!(answer["error"]["message"], "max_token: unknown field; did you mean max_tokens?");
    let mut request = greedy("hello", 2);
    request["id"] = "x".repeat(1025).into();
    let message = lines.ask(&request)["error"]["message"].to_string();
    assert!(message.contains("id: must have at most 1024 bytes"), "{message}");
    assert_eq!(lines.ask(&greedy("hello", 2))["usage"]["completion_tokens"], 2);
}

#[test]
fn bodies_that_are_wrong_are_refused_in_openais_shape() {
    let server = Server::start(&[]);
    for (request, expected) in wrong() {
        let stream = UnixStream::connect(server.socket()).expect("it listens");
        let (status, _, body) = http(stream, "POST", "/v1/completions", &[], &request);
        assert_eq!(status, 400, "{body}");
        let answer: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert!(message.contains(expected), "{message} for {}", String::from_utf8_lossy(&request));
        assert_eq!(answer["error"]["type"], "invalid_request_error");
    }
    assert_eq!(server.ask(&greedy("hello", 2))["usage"]["completion_tokens"], 2);
}

#[test]
fn what_is_too_long_is_refused_before_it_is_read() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = folder.path().join("server_config.toml");
    std::fs::write(&config, "max_request_bytes = 5000\n").expect("a file");
    let server = Server::start(&["--config", config.to_str().expect("UTF-8")]);
    let long = json!({ "prompt": "a".repeat(10_000) }).to_string();
    let mut lines = server.connect();
    lines.send(long.as_bytes());
    let answer = lines.next().expect("an answer");
    assert_eq!(answer["error"]["code"], "request_too_large", "{answer}");
    // The end of the line that is too long is unknown, so the connection is closed.
    assert_eq!(lines.next(), None);
    // The input never ends and contains no newline.
    let mut endless = UnixStream::connect(server.socket()).expect("it listens");
    let _ = (0..100).try_for_each(|_| endless.write_all(&[b' '; 1000]));
    let mut said = String::new();
    let _ = endless.read_to_string(&mut said);
    assert!(said.contains("request_too_large"), "{said}");
    for header in [None, Some("Transfer-Encoding: chunked")] {
        let stream = UnixStream::connect(server.socket()).expect("it listens");
        let (status, _, body) = match header {
            None => http(stream, "POST", "/v1/completions", &[], long.as_bytes()),
            Some(header) => {
                let kind = "Content-Type: application/json";
                let mut stream = stream;
                let chunk = format!("{:x}\r\n{long}\r\n0\r\n\r\n", long.len());
                let head = format!(
                    "POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{kind}\r\n{header}\r\n\r\n"
                );
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(chunk.as_bytes()));
                let mut text = String::new();
                let _ = stream.read_to_string(&mut text);
                let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
                (status, String::new(), text)
            }
        };
        assert_eq!(status, 413, "{body}");
    }
    assert_eq!(server.ask(&greedy("hello", 2))["usage"]["completion_tokens"], 2);
}

#[test]
fn what_speaks_neither_is_told_so() {
    let server = Server::start(&[]);
    for bytes in [&b"GET nonsense\r\n\r\n"[..], b"\x16\x03\x01\x02\x00\x01\n", b"\0\0\0\n"] {
        let mut stream = UnixStream::connect(server.socket()).expect("it listens");
        stream.set_read_timeout(Some(crate::client::PATIENCE)).expect("a limit");
        stream.write_all(bytes).expect("sent");
        stream.shutdown(std::net::Shutdown::Write).expect("closed");
        let mut said = Vec::new();
        stream.read_to_end(&mut said).expect("it is closed");
        let said = String::from_utf8_lossy(&said);
        assert!(said.starts_with("HTTP/1.1 400") || said.contains("\"error\""), "{bytes:?}: {said}");
    }
    assert_eq!(server.ask(&greedy("hello", 2))["usage"]["completion_tokens"], 2);
}

/// Returns status and text of the answer to `bytes` over TCP.
fn raw(server: &Server, bytes: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(server.address()).expect("it listens");
    stream.set_read_timeout(Some(crate::client::PATIENCE)).expect("a limit");
    let _ = stream.write_all(bytes);
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    (text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0), text)
}

#[test]
fn a_head_has_at_most_64_kib() {
    let server = Server::start(&["--listen", "127.0.0.1:0"]);
    for (length, expected) in [(64 << 10, 200), ((64 << 10) + 1, 431), (70_000, 431), (200_000, 431)] {
        let (begin, end) =
            ("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: ", "\r\n\r\n");
        let filler = "x".repeat(length - begin.len() - end.len());
        let (status, text) = raw(&server, format!("{begin}{filler}{end}").as_bytes());
        assert_eq!(status, expected, "{length} bytes: {text}");
    }
}

#[test]
fn deviations_from_http_are_refused_in_words() {
    let server = Server::start(&["--listen", "127.0.0.1:0"]);
    let body = greedy("hello", 1).to_string();
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let plain = format!("Content-Length: {}", body.len());
    let cases = [
        (vec![&*plain], &*body, 400, "Host is missing"),
        (vec!["Host: localhost", "Host: localhost", &plain], &body, 400, "more than one Host"),
        (vec!["Host: localhost", "Transfer-Encoding: gzip, chunked"], &chunked, 400, "Transfer-Encoding"),
        (vec!["Host: localhost", &plain, "Content-Encoding: gzip"], &body, 415, "Content-Encoding"),
        (vec!["Host: localhost", "Transfer-Encoding: chunked"], "ffffffffffffffffff\r\n", 400, "the body"),
        (vec!["Host: localhost", "Transfer-Encoding: chunked"], &chunked, 200, "choices"),
    ];
    for (headers, body, expected, words) in cases {
        let headers = headers.join("\r\n");
        let head = "POST /v1/completions HTTP/1.1\r\nConnection: close\r\nContent-Type: application/json\r\n";
        let (status, text) = raw(&server, format!("{head}{headers}\r\n\r\n{body}").as_bytes());
        assert_eq!(status, expected, "{headers}: {text}");
        assert!(text.contains(words), "{headers}: {text}");
    }
}

#[test]
fn a_client_that_writes_all_of_a_body_first_reads_the_refusal() {
    let server = Server::start(&["--listen", "127.0.0.1:0"]);
    for header in ["Content-Length: 20000000", "Transfer-Encoding: chunked"] {
        let mut stream = TcpStream::connect(server.address()).expect("it listens");
        stream.set_read_timeout(Some(crate::client::PATIENCE)).expect("a limit");
        let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
        let chunk = if header.starts_with('T') { "1312d00\r\n" } else { "" };
        write!(stream, "{head}\r\n{header}\r\n\r\n{chunk}").expect("sent");
        stream.write_all(&vec![b' '; 20_000_000]).expect("all of the body is sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer and its end");
        assert!(text.starts_with("HTTP/1.1 413 ") && text.contains("request_too_large"), "{header}: {text}");
    }
}
