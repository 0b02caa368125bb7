//! Tests of the log: its contents, and data that it must never contain.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use serde_json::{Value, json};

use crate::client::{Server, command, greedy, http, tcp};

/// Secret in every prompt and in all other data from clients. The tiny model never writes these letters by itself.
const SECRET: &str = "XyzzySecretPlugh";

/// Secret in a field name, or in a word of a field name.
const SECRET_NAME: &str = "xyzzy_secret_plugh";

/// Server whose log is read as it is written.
struct Logged {
    server: Server,
    log: JoinHandle<String>,
}

impl Logged {
    fn of(mut server: Server) -> Self {
        let mut stderr = server.child.stderr.take().expect("piped");
        let read = move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).expect("UTF-8");
            text
        };
        Logged { server, log: std::thread::spawn(read) }
    }

    fn start(more: &[&str]) -> Self {
        let all = ["--listen", "127.0.0.1:0", "--log-format", "json"];
        Logged::of(Server::start(&[&all[..], more].concat()))
    }

    /// Ends the server and returns the whole log.
    fn end(mut self) -> String {
        self.server.signal("TERM");
        assert_eq!(self.server.code(), Some(0));
        self.log.join().expect("a log")
    }
}

/// Parses the lines as JSON.
fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}")))
        .collect()
}

/// Returns the logged requests in order. A request's line is written when the last part of the request ends.
fn requests(text: &str) -> Vec<Value> {
    let mut found: Vec<Value> = lines(text).into_iter().filter(|line| line["message"] == "request").collect();
    found.sort_by_key(|line| line["request"].as_u64());
    found
}

/// Returns a request body with the secret for every endpoint.
fn bodies() -> Vec<(&'static str, Value)> {
    let message = json!([{ "role": "user", "content": SECRET }]);
    let nothing = json!([{ "role": SECRET, "content": SECRET }]);
    vec![
        ("/v1/completions", json!({ "prompt": SECRET, "max_tokens": 3, "user": SECRET })),
        ("/v1/completions", json!({ "prompt": SECRET, "max_tokens": 3, "stream": true, "stop": [SECRET] })),
        ("/v1/completions", json!({ "prompt": SECRET, "max_tokens": 2, "n": 2, "logprobs": 2 })),
        ("/v1/completions", json!({ "prompt": { SECRET: SECRET } })),
        ("/v1/completions", json!({ "prompt": SECRET, "max_tokens": SECRET })),
        ("/v1/completions", json!({ "prompt": SECRET, SECRET: 1 })),
        ("/v1/completions", json!({ "prompt": SECRET, SECRET_NAME: 1 })),
        ("/v1/completions", json!({ "prompt": SECRET, "model": SECRET })),
        (
            "/v1/completions",
            json!({ "prompt": SECRET, "timeout_s": 0.001, "max_tokens": 4000, "ignore_eos": true }),
        ),
        ("/v1/completions", json!({ "prompt": SECRET.repeat(2000) })),
        ("/v1/completions", json!({ "prompt": SECRET, "logit_bias": { SECRET: SECRET } })),
        ("/v1/completions", json!({ "prompt": SECRET, "grammar": format!("root ::= {SECRET}") })),
        (
            "/v1/completions",
            json!({ "prompt": SECRET, "max_tokens": 4, "grammar": format!("root ::= \"{SECRET}\"") }),
        ),
        ("/v1/completions", json!({ "prompt": SECRET, "json_schema": { "type": SECRET } })),
        ("/v1/completions", json!({ "prompt": SECRET, "regex": format!("({SECRET}") })),
        ("/v1/chat/completions", json!({ "messages": message, "max_tokens": 3 })),
        ("/v1/chat/completions", json!({ "messages": message, "max_tokens": 3, "stream": true })),
        ("/v1/chat/completions", json!({ "messages": nothing })),
        ("/v1/chat/completions", json!({ "messages": SECRET })),
        (
            "/v1/chat/completions",
            json!({ "messages": message, "tools": [{ "type": "function", "function": { "name": SECRET, "description": SECRET } }], "max_tokens": 3 }),
        ),
        ("/v1/chat/completions", json!({ "messages": message, "tool_choice": SECRET })),
        ("/v1/chat/completions", json!({ "messages": message, "response_format": { "type": SECRET } })),
        ("/v1/embeddings", json!({ "input": SECRET })),
        ("/v1/embeddings", json!({ "input": [SECRET, ""] })),
        ("/v1/embeddings", json!({ "input": { SECRET: 1 }, "encoding_format": SECRET })),
        ("/tokenize", json!({ "content": SECRET })),
        ("/tokenize", json!({ "content": [SECRET] })),
        ("/detokenize", json!({ "tokens": [SECRET] })),
        ("/detokenize", json!({ "tokens": SECRET })),
        ("/health", json!(SECRET)),
        ("/nothing", json!(SECRET)),
    ]
}

#[test]
fn no_word_of_a_client_is_in_the_log() {
    for level in ["info", "trace"] {
        let more = ["--log-level", level, "--chat-template", "chatml", "-c", "16384"];
        let logged = Logged::start(&more);
        let server = &logged.server;
        let bodies = bodies();
        for (path, body) in &bodies {
            let _ = tcp(server, "POST", path, &[], body.to_string().as_bytes());
            // The body is also sent as a line, valid or not.
            let mut line = body.clone();
            if let Some(fields) = line.as_object_mut() {
                fields.insert("id".to_string(), json!(SECRET));
                if *path == "/v1/embeddings" {
                    let input = fields.remove("input");
                    fields.insert("embed".to_string(), json!(input));
                }
            }
            let _ = server.ask(&line);
        }
        for broken in [format!("{{\"prompt\": \"{SECRET}"), SECRET.to_string(), format!("[\"{SECRET}\"]")] {
            let (status, ..) = tcp(server, "POST", "/v1/completions", &[], broken.as_bytes());
            assert_eq!(status, 400);
            let mut stream = server.connect();
            // A line that starts with a capital letter is parsed as HTTP.
            stream.send(format!("x{broken}").as_bytes());
            assert!(stream.next().expect("an answer")["error"].is_object());
        }
        for path in
            [&format!("/{SECRET}"), &format!("/v1/models/{SECRET}"), &format!("/health?{SECRET}={SECRET}")]
        {
            let key = format!("Authorization: Bearer {SECRET}");
            let _ = tcp(server, "GET", path, &[&key], b"");
            let _ = tcp(server, SECRET, path, &[&key], b"");
        }
        let foreign = format!("Host: {SECRET}");
        let _ = tcp(server, "GET", "/metrics", &[&foreign, &format!("Origin: {SECRET}")], b"");
        // The client sends input that is not HTTP, and disconnects.
        let mut stream = std::net::TcpStream::connect(server.address()).expect("it listens");
        stream.write_all(format!("{SECRET}\r\n\r\n").as_bytes()).expect("sent");
        let _ = stream.read_to_end(&mut Vec::new());
        let mut leaves = server.connect();
        leaves.send(greedy(SECRET, 12_000).to_string().as_bytes());
        server.wait_for("anneal_slots_busy", 1.0);
        drop(leaves);
        server.wait_for("anneal_slots_busy", 0.0);

        let text = logged.end();
        assert!(!text.contains("Xyzzy") && !text.contains("Plugh") && !text.contains("xyzzy"), "{text}");
        let found = requests(&text);
        let ends: Vec<&str> = found.iter().filter_map(|line| line["end"].as_str()).collect();
        assert!(ends.len() >= 2 * bodies.len(), "{}", ends.len());
        for end in ["length", "refused", "answered", "abandoned"] {
            assert!(ends.contains(&end), "no {end}: {text}");
        }
        let of_llama = lines(&text).into_iter().filter(|line| line["target"] == "llama.cpp");
        let detailed = of_llama.filter(|line| line["level"] == "DEBUG" || line["level"] == "TRACE").count();
        assert_eq!(detailed > 0, level == "trace", "{text}");
    }
}

#[test]
fn a_request_is_a_line_of_numbers() {
    let logged = Logged::start(&[]);
    let server = &logged.server;
    let (status, _) = server.post("/v1/completions", &greedy("hello", 5));
    assert_eq!(status, 200);
    // The second client belongs to the same user, so its prefix is in the cache.
    server.ask(&greedy("hello", 4));
    server.ask(&json!({ "prompt": "x", "max_tokens": -2 }));
    let (status, ..) =
        http(UnixStream::connect(server.socket()).expect("it listens"), "GET", "/v1/models/none", &[], b"");
    assert_eq!(status, 404);
    let text = logged.end();
    let first = &lines(&text)[0];
    assert!(first["level"].is_string() && first["timestamp"].is_string(), "{first}");
    let messages: Vec<Value> = lines(&text).iter().map(|line| line["message"].clone()).collect();
    for expected in ["loaded", "ready", "request", "ended"] {
        assert!(messages.contains(&json!(expected)), "{text}");
    }
    let found = requests(&text);
    let of = |key: &str| found.iter().map(|line| line[key].clone()).collect::<Vec<_>>();
    assert_eq!(
        of("route"),
        [json!("/v1/completions"), json!("lines"), json!("lines"), json!("/v1/models/NAME")]
    );
    assert_eq!(of("end"), ["length", "length", "refused", "refused"]);
    // Scripts filter by this target: docs/src/run/serving.md.
    assert_eq!(of("target"), ["engine::serve::ticket"; 4]);
    assert_eq!(of("status"), [json!(200), Value::Null, json!(400), json!(404)]);
    assert_eq!(of("tokens"), [5, 4, 0, 0]);
    let loaded = lines(&text).into_iter().find(|line| line["message"] == "loaded").expect("a line");
    let name = &loaded["model"];
    assert_eq!(of("model"), [name.clone(), name.clone(), name.clone(), Value::Null]);
    assert_eq!(of("error"), [Value::Null, Value::Null, json!("invalid_value"), json!("model_not_found")]);
    assert_eq!(of("field"), [Value::Null, Value::Null, json!("max_tokens"), json!("model")]);
    assert!(found[1]["cached_tokens"].as_u64() > Some(0), "{}", found[1]);
    for key in ["queue_ms", "first_token_ms", "decode_ms", "tokens_per_second", "total_ms", "prompt_tokens"] {
        assert!(found[0][key].as_f64() > Some(0.0), "{key}: {}", found[0]);
    }
}

#[test]
fn prompts_and_answers_are_there_where_that_is_asked_for() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = folder.path().join("server_config.toml");
    std::fs::write(&config, "log_prompts = true\nlog_format = \"json\"\n").expect("written");
    let mut command = command(&["--config", config.to_str().expect("UTF-8")]);
    command.arg("--socket").arg(folder.path().join("a.sock"));
    let logged = Logged::of(Server::with(command, folder));
    let answer = logged.server.ask(&greedy(SECRET, 4));
    let text = logged.end();
    let said = lines(&text).into_iter().find(|line| line["message"] == "said").expect("a line");
    assert!(said["prompt"].as_str().is_some_and(|prompt| prompt.contains(SECRET)), "{said}");
    assert_eq!(said["answer"], answer["text"]);
}

#[test]
fn refused_keys_have_one_line_a_minute() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "0123456789abcdef\n").expect("a file");
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).expect("a mode");
    let logged = Logged::start(&["--log-level", "info", "--api-key-file", keys.to_str().expect("UTF-8")]);
    for _ in 0..20 {
        assert_eq!(tcp(&logged.server, "GET", "/v1/models", &[], b"").0, 401);
    }
    let text = logged.end();
    let refused = requests(&text).into_iter().filter(|line| line["status"] == 401).count();
    // The log has two lines if a minute ends between the requests.
    assert!((1..=2).contains(&refused), "{text}");
}

#[test]
fn as_text_it_is_a_line_each_and_without_it_nothing() {
    let logged = Logged::of(Server::start(&["--log-level", "info"]));
    logged.server.ask(&greedy(SECRET, 4));
    let text = logged.end();
    assert!(!text.contains(SECRET), "{text}");
    let line = text.lines().find(|line| line.contains("route=\"lines\"")).expect("a line");
    assert!(
        line.contains(" INFO ") && line.contains("tokens=4") && line.contains("end=\"length\""),
        "{line}"
    );
    // Without the log, only messages for the user are printed.
    let logged = Logged::of(Server::start(&[]));
    logged.server.ask(&greedy(SECRET, 4));
    assert_eq!(logged.end(), "");
}

#[test]
fn a_log_that_nobody_reads_holds_up_nobody() {
    let server = Server::start(&["--log-level", "trace"]);
    // The number of lines exceeds the capacity of the pipe and the queue.
    for _ in 0..20 {
        let mut lines = server.connect();
        let body = b"x\n".repeat(500);
        lines.stream.write_all(&body).expect("sent");
        for _ in 0..500 {
            lines.next().expect("an answer");
        }
    }
    assert_eq!(server.ask(&greedy("hello", 3))["usage"]["completion_tokens"], 3);
}

#[test]
fn what_is_no_log_is_told() {
    for (flags, expected) in
        [(["--log-format", "xml"], "use text or json"), (["--log-level", "loud"], "use error, warn")]
    {
        let output = command(&flags).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && text.contains(expected), "{text}");
    }
}
