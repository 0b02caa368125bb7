//! Tests of the server's answers.

use std::io::Read;
use std::net::Shutdown;

use serde_json::{Value, json};

use crate::client::{Server, greedy};
use crate::common::on_tiny;

/// Returns the result of `anneal run` for a prompt.
fn run(prompt: &str, n: &str) -> Value {
    let arguments = ["--json", "--ignore-eos", "--greedy", "-t", "1", "-p", prompt, "-n", n];
    serde_json::from_str(&on_tiny("run", &arguments)).expect("one JSON object")
}

#[test]
fn tokens_are_those_of_run() {
    let server = Server::start(&[]);
    let mut lines = server.connect();
    for prompt in ["hello", "The smith brings the steel slowly to a red heat", "naïve café, 漢字 🙂"] {
        let expected = run(prompt, "24");
        let answer = lines.ask(&greedy(prompt, 24));
        assert_eq!(answer["tokens"], expected["tokens"], "{prompt}");
        assert_eq!(answer["text"], expected["text"], "{prompt}");
        assert_eq!(answer["usage"]["prompt_tokens"], expected["prompt_tokens"]);
        assert_eq!(answer["usage"]["completion_tokens"], 24);
        assert_eq!(answer["stop"], "length");
        for timing in ["time_to_first_token_ms", "prefill_tokens_per_second", "decode_tokens_per_second"] {
            assert!(answer["timings"][timing].as_f64() > Some(0.0), "{timing}: {answer}");
        }
    }
}

#[test]
fn a_stream_is_the_whole_answer_in_parts() {
    let server = Server::start(&[]);
    let mut lines = server.connect();
    let whole = lines.ask(&greedy("red heat 漢字", 32));
    let mut request = greedy("red heat 漢字", 32);
    request["stream"] = true.into();
    request["id"] = "a stream".into();
    request["cache_prompt"] = false.into();
    lines.send(request.to_string().as_bytes());
    let (mut text, mut tokens) = (String::new(), Vec::new());
    loop {
        let line = lines.next().expect("an answer");
        assert_eq!(line["id"], "a stream", "{line}");
        text.push_str(line["text"].as_str().expect("a text"));
        if line["done"] == true {
            break;
        }
        tokens.push(line["token"].clone());
    }
    assert_eq!((json!(tokens), json!(text)), (whole["tokens"].clone(), whole["text"].clone()));
}

#[test]
fn the_same_seed_gives_the_same_tokens_and_another_others() {
    let server = Server::start(&[]);
    let ask = |seed: Value| {
        let request = json!({
            "prompt": "The smith", "max_tokens": 24, "temperature": 1.5, "top_k": 0, "seed": seed,
            "ignore_eos": true, "cache_prompt": false,
        });
        server.ask(&request)
    };
    let (first, second, other) = (ask(json!(7)), ask(json!(7)), ask(json!(8)));
    assert_eq!(first["tokens"], second["tokens"]);
    assert_ne!(first["tokens"], other["tokens"]);
    assert_eq!(first["seed"], 7);
    // The answer has the seed that the client sent, so that the client can repeat it.
    for seed in [json!(u64::MAX), json!(1_u64 << 32)] {
        let first = ask(seed.clone());
        assert_eq!(first["seed"], seed);
        assert_eq!(first["tokens"], ask(first["seed"].clone())["tokens"]);
    }
}

#[test]
fn a_prompt_that_goes_on_finds_what_was_evaluated() {
    let server = Server::start(&["--slots", "2"]);
    let mut lines = server.connect();
    let first = lines.ask(&greedy("The smith brings the steel", 8));
    assert_eq!(first["usage"]["cached_tokens"], 0);
    let prompt = format!("The smith brings the steel{}", first["text"].as_str().expect("a text"));
    let second = lines.ask(&greedy(&prompt, 8));
    let cached = second["usage"]["cached_tokens"].as_u64().expect("a number");
    let evaluated = first["usage"]["prompt_tokens"].as_u64().expect("a number");
    assert!(cached >= evaluated, "{second}");
    assert!(cached < second["usage"]["prompt_tokens"].as_u64().expect("a number"), "{second}");
    // Without reuse, the result is the same.
    let mut anew = greedy(&prompt, 8);
    anew["cache_prompt"] = false.into();
    let anew = lines.ask(&anew);
    assert_eq!((&anew["usage"]["cached_tokens"], &anew["tokens"]), (&json!(0), &second["tokens"]));
}

#[test]
fn a_stop_string_ends_it_and_is_not_told() {
    let server = Server::start(&[]);
    let mut lines = server.connect();
    let whole = lines.ask(&greedy("hello", 32));
    let text = whole["text"].as_str().expect("a text").to_string();
    // The stop text is within the generated text, and contains parts of several tokens.
    let stop: String = text.chars().skip(7).take(9).collect();
    let expected = text.split(&stop).next().expect("a part");
    for stream in [false, true] {
        let mut request = greedy("hello", 32);
        request["stop"] = json!(["no such text", stop]);
        request["stream"] = stream.into();
        lines.send(request.to_string().as_bytes());
        let mut told = String::new();
        let last = loop {
            let line = lines.next().expect("an answer");
            told.push_str(line["text"].as_str().expect("a text"));
            if line["done"] == true {
                break line;
            }
        };
        assert_eq!(
            (told.as_str(), &last["stop"], &last["stop_string"]),
            (expected, &json!("stop_string"), &json!(stop))
        );
    }
}

#[test]
fn a_full_context_and_a_deadline_end_it_in_words() {
    let server = Server::start(&["-c", "256"]);
    let full = server.ask(&greedy("red heat", 1000));
    assert_eq!(full["stop"], "context_full", "{full}");
    let usage = |name: &str| full["usage"][name].as_u64().expect("a number");
    // As in `anneal run`, the last token needs no cell.
    assert_eq!(usage("prompt_tokens") + usage("completion_tokens"), 257);

    let server = Server::start(&["-c", "65536"]);
    let mut late = greedy("red heat", 60_000);
    late["timeout_s"] = 0.3.into();
    let late = server.ask(&late);
    assert_eq!(late["stop"], "deadline", "{late}");
    assert!(late["usage"]["completion_tokens"].as_u64() < Some(60_000), "{late}");
}

#[test]
fn a_client_that_only_stops_writing_gets_its_answer() {
    let server = Server::start(&[]);
    let mut lines = server.connect();
    // The last line of the input need not end with a newline.
    std::io::Write::write_all(&mut lines.stream, greedy("hello", 8).to_string().as_bytes()).expect("sent");
    lines.stream.shutdown(Shutdown::Write).expect("the write side is closed");
    let answer = lines.next().expect("an answer");
    assert_eq!(answer["usage"]["completion_tokens"], 8, "{answer}");
    let mut rest = Vec::new();
    lines.stream.read_to_end(&mut rest).expect("the end");
    assert!(rest.is_empty());
}

#[test]
fn a_schema_says_what_the_answer_is_like() {
    let server = Server::start(&[]);
    let mut lines = server.connect();
    let schema = json!({
        "type": "object", "required": ["a", "b"], "additionalProperties": false,
        "properties": { "a": { "enum": ["x", "y"] }, "b": { "type": "boolean" } },
    });
    for temperature in [0.0, 1.5] {
        let request = json!({
            "prompt": "hello", "max_tokens": 200, "temperature": temperature, "ignore_eos": true, "json_schema": schema,
        });
        let answer = lines.ask(&request);
        assert_eq!(answer["stop"], "end", "{answer}");
        let made: Value = serde_json::from_str(answer["text"].as_str().expect("a text")).expect("JSON");
        assert!(["x", "y"].contains(&made["a"].as_str().expect("a text")), "{made}");
        assert!(made["b"].is_boolean(), "{made}");
    }
}
