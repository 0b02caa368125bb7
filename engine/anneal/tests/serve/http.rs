//! Tests of the HTTP endpoints.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

use crate::client::{Server, greedy, http, tcp};

fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let (status, _, text) = tcp(server, "POST", path, &[], body.to_string().as_bytes());
    (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

#[test]
fn completions_are_what_the_socket_gives() {
    let server = Server::start(&["--listen", "127.0.0.1:0"]);
    let expected = server.ask(&greedy("The smith", 24));
    let (status, answer) = post(&server, "/v1/completions", &greedy("The smith", 24));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["choices"][0]["text"], expected["text"]);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    let usage = &answer["usage"];
    assert_eq!(usage["total_tokens"].as_u64(), usage["prompt_tokens"].as_u64().map(|prompt| prompt + 24));

    // The same request as a stream, with the usage at the end.
    let mut request = greedy("The smith", 24);
    request["stream"] = true.into();
    request["stream_options"] = json!({ "include_usage": true });
    let (status, head, text) = tcp(&server, "POST", "/v1/completions", &[], request.to_string().as_bytes());
    assert_eq!(status, 200, "{text}");
    assert!(head.to_ascii_lowercase().contains("content-type: text/event-stream"), "{head}");
    let mut parts: Vec<&str> = text.split_terminator("\n\n").collect();
    assert_eq!(parts.pop(), Some("data: [DONE]"));
    let parts: Vec<Value> = parts
        .iter()
        .map(|part| serde_json::from_str(part.strip_prefix("data: ").expect("an event")).expect("JSON"))
        .collect();
    let told: String = parts.iter().filter_map(|part| part["choices"][0]["text"].as_str()).collect();
    assert_eq!(json!(told), expected["text"]);
    let (usage, last) = (&parts[parts.len() - 1], &parts[parts.len() - 2]);
    assert_eq!((&usage["choices"], &usage["usage"]["completion_tokens"]), (&json!([]), &json!(24)));
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert!(parts.iter().all(|part| part["id"] == parts[0]["id"]));
}

#[test]
fn the_other_endpoints_answer() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "--name", "a model"]);
    let get = |path: &str| tcp(&server, "GET", path, &[], b"");
    let models: Value = serde_json::from_str(&get("/v1/models").2).expect("JSON");
    assert_eq!(models["data"][0]["id"], "a model");
    assert_eq!((get("/v1/models/a%20model").0, get("/v1/models/another").0), (200, 404));
    assert_eq!((get("/health").0, get("/metrics").0, get("/none").0), (200, 200, 404));
    assert_eq!(get("/v1/completions").0, 405);

    let text = "naïve café, 漢字 🙂";
    let (_, tokens) = post(&server, "/tokenize", &json!({ "content": text }));
    let (_, back) = post(&server, "/detokenize", &tokens);
    assert_eq!(back["content"], text);
    // The tokenizer of the tiny model adds no special tokens to a text, but converts the names of special tokens.
    let (_, own) = post(&server, "/tokenize", &json!({ "prompt": text, "add_special_tokens": false }));
    let info: Value = serde_json::from_str(&get("/tokenizer_info").2).expect("JSON");
    assert_eq!((&info["add_bos_token"], &own), (&json!(false), &tokens));
    for name in ["bos_token", "eos_token"] {
        let (_, token) = post(&server, "/tokenize", &json!({ "prompt": info[name] }));
        assert_eq!(token["tokens"].as_array().map(Vec::len), Some(1), "{name}: {info}");
    }
    for (path, body) in [
        ("/tokenize", json!({})),
        ("/tokenize", json!({ "content": 5 })),
        ("/detokenize", json!({ "tokens": [-1] })),
        ("/detokenize", json!({ "tokens": [1e9] })),
        ("/detokenize", json!({ "tokens": "a" })),
        ("/v1/completions", json!({ "prompt": "a", "n": 9 })),
        ("/v1/completions", json!({ "prompt": "a", "logprobs": 21 })),
        ("/v1/completions", json!({ "prompt": "a", "echo": "yes" })),
        ("/tokenize", json!({ "content": "a", "prompt": "b" })),
        ("/tokenize", json!({ "content": "a", "add_special_tokens": 1 })),
    ] {
        let (status, answer) = post(&server, path, &body);
        assert_eq!(status, 400, "{path} {body}: {answer}");
        assert!(answer["error"]["param"].is_string(), "{answer}");
    }
    let (status, answer) = post(&server, "/v1/completions", &json!({ "prompt": "a", "model": "another" }));
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("model_not_found")), "{answer}");
}

#[test]
fn web_pages_are_kept_out() {
    let server = Server::start(&["--listen", "127.0.0.1:0"]);
    let body = greedy("hello", 2).to_string();
    let (status, _, text) = tcp(&server, "POST", "/v1/completions", &["Host: evil.example"], body.as_bytes());
    // A request with two Host headers, and a request with another host name, are refused.
    assert!(matches!(status, 400 | 403), "{text}");
    let stream = std::net::TcpStream::connect(server.address()).expect("it listens");
    let plain = ["Content-Length: 2", "Content-Type: text/plain"];
    let (status, _, text) = http(stream, "POST", "/v1/completions", &plain, b"");
    assert_eq!(status, 415, "{text}");
}

#[test]
fn a_key_is_asked_for_over_tcp_and_not_at_the_socket() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "0123456789abcdef\n").expect("a file");
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).expect("a mode");
    let server = Server::start(&["--listen", "0.0.0.0:0", "--api-key-file", keys.to_str().expect("UTF-8")]);
    let models = |headers: &[&str]| tcp(&server, "GET", "/v1/models", headers, b"").0;
    assert_eq!(models(&[]), 401);
    assert_eq!(models(&["Authorization: Bearer 0123456789abcdeX"]), 401);
    assert_eq!(models(&["Authorization: Basic 0123456789abcdef"]), 401);
    assert_eq!(models(&["Authorization: Bearer 0123456789abcdef"]), 200);
    assert_eq!(models(&["Authorization: bearer 0123456789abcdef"]), 200);
    assert_eq!(tcp(&server, "GET", "/health", &[], b"").0, 200);
    assert_eq!(tcp(&server, "GET", "/metrics", &[], b"").0, 401);
    let stream = UnixStream::connect(server.socket()).expect("it listens");
    assert_eq!(http(stream, "GET", "/v1/models", &[], b"").0, 200);
}

#[test]
fn pages_of_allowed_origins_may_use_the_server() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (config, keys) = (folder.path().join("server.toml"), folder.path().join("keys"));
    std::fs::write(
        &config,
        "allowed_origins = \"http://localhost:5173\"\nallowed_hosts = \"host.docker.internal\"\n",
    )
    .expect("written");
    std::fs::write(&keys, "secret-of-the-test\n").expect("written");
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).expect("private");
    let (config, keys) = (config.to_str().expect("UTF-8"), keys.to_str().expect("UTF-8"));
    const ORIGIN: &str = "Origin: http://localhost:5173";
    const FOREIGN: &str = "Origin: http://evil.example";
    const ASK: &[&str] = &[
        "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: authorization,content-type",
    ];
    let allowed =
        |head: &str| head.to_ascii_lowercase().contains("access-control-allow-origin: http://localhost:5173");
    for more in [&["--config", config][..], &["--config", config, "--api-key-file", keys]] {
        let server = Server::start(&[&["--listen", "127.0.0.1:0"], more].concat());
        let path = "/v1/completions";
        let (status, head, _) = tcp(&server, "OPTIONS", path, &[&[ORIGIN], ASK].concat(), b"");
        assert!(status == 204 && allowed(&head), "{head}");
        let lower = head.to_ascii_lowercase();
        assert!(lower.contains("access-control-allow-headers: authorization,content-type"), "{head}");
        assert!(lower.contains("access-control-allow-methods: get, post"), "{head}");
        let (status, head, text) = tcp(&server, "OPTIONS", path, &[&[FOREIGN], ASK].concat(), b"");
        assert!(status == 403 && !head.to_ascii_lowercase().contains("access-control-"), "{head}{text}");
        assert!(text.contains("allowed_origins"), "{text}");

        // Pages can read answers and errors.
        let body = br#"{"prompt": "a", "max_tokens": 1}"#;
        let key = "Authorization: Bearer secret-of-the-test";
        for (headers, expected) in
            [(&[ORIGIN, key, "Sec-Fetch-Site: cross-site"][..], 200), (&[ORIGIN, key], 200)]
        {
            let (status, head, text) = tcp(&server, "POST", path, headers, body);
            assert!(status == expected && allowed(&head), "{head}{text}");
        }
        let (status, head, _) = tcp(&server, "POST", path, &[ORIGIN, key], b"{}");
        assert!(status == 400 && allowed(&head), "{head}");
        // A page of another origin cannot read the answer, even with a key.
        let (_, head, _) = tcp(&server, "POST", path, &[FOREIGN, key], body);
        assert!(!head.to_ascii_lowercase().contains("access-control-"), "{head}");
    }
    let server = Server::start(&["--listen", "127.0.0.1:0", "--config", config]);
    let (status, _, text) =
        tcp(&server, "POST", "/v1/completions", &[FOREIGN], br#"{"prompt": "a", "max_tokens": 1}"#);
    assert!(status == 403 && text.contains("allowed_origins"), "{text}");
}
