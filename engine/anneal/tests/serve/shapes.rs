//! Tests of models that are not plain decoders: one with a sliding window, and one for embeddings only.

use std::process::Stdio;

use gguf::synth::{self, Preset, SynthOptions};
use serde_json::{Value, json};

use crate::client::{Server, greedy, http};
use crate::common;

/// Starts a server of `preset` on one thread.
fn start(preset: Preset, more: &[&str]) -> Server {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = folder.path().join("model.gguf");
    synth::write(&model, &SynthOptions::new(preset)).expect("a model");
    let mut command = common::command();
    command.args(["serve", "--json", "-t", "1", "-m"]).arg(&model).args(more);
    command.arg("--socket").arg(folder.path().join("a.sock"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Server::with(command, folder)
}

fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let stream = std::os::unix::net::UnixStream::connect(server.socket()).expect("it listens");
    let (status, _, text) = http(stream, "POST", path, &[], body.to_string().as_bytes());
    (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|value| value.as_f64().expect("a number")).collect()
}

fn cosine(one: &Value, other: &Value) -> f64 {
    numbers(&one["embedding"]).iter().zip(numbers(&other["embedding"])).map(|(one, other)| one * other).sum()
}

#[test]
fn one_that_makes_embeddings_alone_makes_them_and_no_text() {
    let server = start(Preset::BertTiny, &[]);
    let (status, answer) = post(&server, "/v1/embeddings", &json!({ "input": ["a cat", "a ship", "a cat"] }));
    assert_eq!(status, 200, "{answer}");
    let data = answer["data"].as_array().expect("a list");
    assert!(cosine(&data[0], &data[2]) > 0.9999 && cosine(&data[0], &data[1]) < 0.999, "{answer}");
    // The result does not depend on the batch. A batch contains several texts, and no text attends to another.
    let (_, alone) = post(&server, "/v1/embeddings", &json!({ "input": "a ship" }));
    assert!(cosine(&alone["data"][0], &data[1]) > 0.9999, "{alone}");
    for (path, body) in [
        ("/v1/completions", json!({ "prompt": "a", "max_tokens": 3 })),
        ("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": "a" }] })),
    ] {
        let (status, answer) = post(&server, path, &body);
        assert_eq!(status, 400, "{path}: {answer}");
        let folder = server.folder.path().to_str().expect("UTF-8");
        assert!(!answer.to_string().contains(folder), "{path} tells clients a path: {answer}");
    }
    let answer = server.ask(&greedy("a", 3));
    assert!(
        answer["error"]["message"].as_str().is_some_and(|why| why.contains("does not generate text")),
        "{answer}"
    );
    assert!(!answer.to_string().contains(".gguf"), "it tells clients a path: {answer}");
    // The server continues to run.
    assert_eq!(post(&server, "/v1/embeddings", &json!({ "input": "a cat" })).0, 200);
    let longer = "word ".repeat(600);
    assert_eq!(post(&server, "/v1/embeddings", &json!({ "input": longer })).0, 400);
}

#[test]
fn one_with_a_sliding_window_answers_as_alone() {
    let server = start(Preset::SwaTiny, &["-c", "1024"]);
    // The prompt is longer than the window.
    let prompt = "Once upon a time there was a word ".repeat(12);
    let first = server.ask(&greedy(&prompt, 12));
    assert!(first["text"].as_str().is_some_and(|text| !text.is_empty()), "{first}");
    for _ in 0..2 {
        assert_eq!(server.ask(&greedy(&prompt, 12))["text"], first["text"]);
    }
    let (status, answer) = post(&server, "/v1/embeddings", &json!({ "input": ["a cat", "a ship", "a cat"] }));
    assert_eq!(status, 200, "{answer}");
    let data = answer["data"].as_array().expect("a list");
    assert!(cosine(&data[0], &data[2]) > 0.9999 && cosine(&data[0], &data[1]) < 0.9999, "{answer}");
}
