//! Tests of models that are not plain decoders: one with a sliding window, and one for embeddings only.

use std::path::Path;
use std::process::Stdio;

use gguf::synth::{self, Preset, SynthOptions};
use serde_json::{Value, json};

use crate::client::{Server, greedy, http};
use crate::common;

/// Starts a server of `preset` on one thread.
pub fn start(preset: Preset, more: &[&str]) -> Server {
    start_changed(preset, more, |_| ())
}

/// Starts a server like [`start`] does, after `change` has changed the model file.
pub fn start_changed(preset: Preset, more: &[&str], change: impl FnOnce(&Path)) -> Server {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = folder.path().join("model.gguf");
    synth::write(&model, &SynthOptions::new(preset)).expect("a model");
    change(&model);
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
        assert!(!answer.to_string().contains(folder), "{path} reveals a path to clients: {answer}");
    }
    let answer = server.ask(&greedy("a", 3));
    assert!(
        answer["error"]["message"].as_str().is_some_and(|why| why.contains("does not generate text")),
        "{answer}"
    );
    assert!(!answer.to_string().contains(".gguf"), "the answer reveals a path to clients: {answer}");
    // The server continues to run.
    assert_eq!(post(&server, "/v1/embeddings", &json!({ "input": "a cat" })).0, 200);
    let longer = "word ".repeat(600);
    assert_eq!(post(&server, "/v1/embeddings", &json!({ "input": longer })).0, 400);
}

#[test]
fn one_with_a_sliding_window_reuses_prompts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cache = folder.path().join("prompts");
    let caching = ["-c", "4096", "--slots", "2", "--prompt-cache", cache.to_str().expect("UTF-8")];
    let mut server = start(Preset::SwaTiny, &caching);
    // Each prompt is longer than the window of 128 tokens.
    let long = |word: &str| format!("Once upon a time there was a {word} ").repeat(40);
    let ask = |server: &Server, prompt: &str| {
        let answer = server.ask(&greedy(prompt, 12));
        let number =
            |name: &str| answer["usage"][name].as_u64().unwrap_or_else(|| panic!("{name}: {answer}"));
        (
            answer["text"].as_str().expect("a text").to_string(),
            number("prompt_tokens"),
            number("cached_tokens"),
        )
    };
    let alone = |prompt: &str| ask(&start(Preset::SwaTiny, &["-c", "4096"]), prompt).0;

    let mut prompt = long("word");
    let (mut text, first, cached) = ask(&server, &prompt);
    assert_eq!(cached, 0);
    for turn in 0..3 {
        // Other conversations take both slots in between, so the prompt comes back from the disk.
        let others: Vec<String> = (0..2).map(|other| long(&format!("thing {turn} {other}"))).collect();
        std::thread::scope(|scope| others.iter().for_each(|other| drop(scope.spawn(|| ask(&server, other)))));
        prompt += &format!("{text} and then {turn}");
        let (tokens, cached);
        (text, tokens, cached) = ask(&server, &prompt);
        assert!((first - 1..tokens).contains(&cached), "turn {turn}: {cached} of {tokens}");
        if server.is_batch_invariant() {
            assert_eq!(text, alone(&prompt), "turn {turn}");
        }
        // The next turn finds the prompt in its slot.
        let (_, tokens, cached) = ask(&server, &prompt);
        assert_eq!(cached, tokens - 1);
    }
    // If a prompt differs from the cached text far before the last window, only the common beginning is reused.
    let (text, tokens, cached) = ask(&server, &(long("word")[..600].to_string() + "another end"));
    assert!(cached > 50 && cached < tokens, "{cached} of {tokens}");
    if server.is_batch_invariant() {
        assert_eq!(text, alone(&(long("word")[..600].to_string() + "another end")));
    }
    // After a restart, the prompt comes from the disk.
    server.signal("TERM");
    assert_eq!(server.code(), Some(0));
    let again = start(Preset::SwaTiny, &caching);
    let (text, tokens, cached) = ask(&again, &prompt);
    assert!((first - 1..tokens).contains(&cached), "{cached} of {tokens} after a restart");
    if again.is_batch_invariant() {
        assert_eq!(text, alone(&prompt), "after a restart");
    }
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
