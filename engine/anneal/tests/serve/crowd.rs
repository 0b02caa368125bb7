//! Tests of many concurrent requests.

use std::process::Stdio;
use std::sync::Barrier;
use std::time::Instant;

use engine_core::model;
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{Requested, Settings};
use llama::Token;
use serde_json::{Value, json};

use crate::client::{PATIENCE, Server, greedy};
use crate::common::{command, has_exact_kernels, quantised, tiny};

/// Returns a prompt for `client`. Prompts of different clients have no common prefix.
fn prompt(client: usize) -> String {
    let words = ["iron", "copper", "lead and tin", "silver", "gold", "zinc oxide", "nickel", "mercury"];
    format!("{} number {client} is {}", words[client % words.len()], "worked cold ".repeat(client % 8))
}

/// Asserts that each of `tokens` is the most likely token after `prompt` and the tokens before it, or equally likely
/// within rounding. Batches of different sizes sum in a different order, which may decide between two equally likely
/// tokens.
fn assert_greedy(prompt: &str, tokens: &Value) {
    /// Logits of this model differ by integers, and rounding errors are a thousandth of the difference.
    const ROUNDING: f32 = 0.02;
    let runtime_host = RuntimeHost::read();
    let requested = Requested { n_ctx: Some(1024), decode_threads: Some(1), ..Requested::default() };
    let settings = Settings::resolve(&requested, &runtime_host).expect("valid settings");
    let model = model::open(tiny(), &settings, &runtime_host).expect("the tiny model");
    let mut context = model::context(&model, &settings, &runtime_host, false).expect("a context");
    context.decode(&model.tokenize(prompt).expect("tokens")).expect("a prefill");
    for (at, token) in tokens.as_array().expect("tokens").iter().enumerate() {
        let token = token.as_i64().expect("a token") as Token;
        let logits = context.logits().expect("logits");
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let less = best - logits[token as usize];
        assert!(
            less <= ROUNDING,
            "token {at} after {prompt:?} is {less} less likely than the best: {tokens}"
        );
        context.decode(&[token]).expect("a decode");
    }
}

#[test]
fn eight_clients_get_what_each_would_get_alone() {
    const CLIENTS: usize = 8;
    let server = Server::start(&["--slots", "8"]);
    let alone = Server::start(&["--slots", "1"]);
    let begin = Barrier::new(CLIENTS);
    let (server_ref, begin_ref) = (&server, &begin);
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                scope.spawn(move || {
                    let mut lines = server_ref.connect();
                    begin_ref.wait();
                    lines.ask(&greedy(&prompt(client), 32))
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("an answer")).collect()
    });
    assert!(server.metric("anneal_batches_total") < 8.0 * 33.0, "they were not batched");
    let mut same = 0;
    for (client, answer) in answers.iter().enumerate() {
        assert_eq!(answer["usage"]["completion_tokens"], 32, "{answer}");
        let single = alone.ask(&greedy(&prompt(client), 32));
        same += usize::from(single["text"] == answer["text"]);
        // If the two texts differ, both must still be greedy choices, so neither contains text of another sequence.
        assert_greedy(&prompt(client), &answer["tokens"]);
        assert_greedy(&prompt(client), &single["tokens"]);
    }
    let least = if server.is_batch_invariant() { CLIENTS } else { CLIENTS / 2 };
    assert!(same >= least, "only {same} of {CLIENTS} texts are the same");
}

/// Compares texts and log-probabilities of answers over HTTP. The requests arrive at the same moment or one after the
/// other.
#[test]
fn sixteen_clients_get_the_same_bits_as_one() {
    const CLIENTS: usize = 16;
    const ROUNDS: usize = 4;
    if !has_exact_kernels() {
        return;
    }
    let model = quantised("Q4_K_M");
    let start = |more: &[&str]| {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = command();
        command.args(["serve", "--json", "--ctx-size", "4096", "--socket"]).arg(folder.path().join("a.sock"));
        command.arg("-m").arg(&model).args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        Server::with(command, folder)
    };
    // Answers of different lengths free their cells at different times, and later answers reuse the free cells.
    let ask = |server: &Server, round: usize, client: usize| {
        let body = json!({
            "prompt": format!("{round}: {}", prompt(client)), "max_tokens": 8 + 37 * (client + round) % 60,
            "temperature": 0, "ignore_eos": true, "logprobs": 5, "cache_prompt": false,
        });
        let (status, answer) = server.post("/v1/completions", &body);
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0].clone()
    };
    let alone = start(&["--slots", "1", "-t", "1"]);
    let of_all = |ask: &dyn Fn(usize) -> Value| -> Vec<Value> { (0..ROUNDS).map(ask).collect() };
    let expected: Vec<Vec<Value>> =
        (0..CLIENTS).map(|client| of_all(&|round| ask(&alone, round, client))).collect();
    let server = start(&["--slots", "16", "-t", "2"]);
    let begin = Barrier::new(CLIENTS);
    let answers: Vec<Vec<Value>> = std::thread::scope(|scope| {
        let (begin, server, ask, of_all) = (&begin, &server, &ask, &of_all);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                scope.spawn(move || {
                    begin.wait();
                    of_all(&|round| ask(server, round, client))
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("answers")).collect()
    });
    assert!(
        server.metric("anneal_batches_total") < 0.5 * alone.metric("anneal_batches_total"),
        "they were not batched"
    );
    for (client, (answers, expected)) in answers.iter().zip(&expected).enumerate() {
        assert_eq!(answers, expected, "client {client}");
    }
    assert!(server.is_batch_invariant() && alone.is_batch_invariant());
}

/// A server must not report batch invariance if llama.cpp's kernels compute a product or attention.
#[test]
fn operations_of_other_kernels_are_noted() {
    for flags in [&["--kernels", "ggml"][..], &["--flash-attn", "off"], &["--no-repack"]] {
        let server = Server::start(flags);
        let answer = server.ask(&greedy("iron", 2));
        assert_eq!(answer["usage"]["completion_tokens"], 2, "{answer}");
        assert!(!server.is_batch_invariant(), "{flags:?}");
    }
}

#[test]
fn a_hundred_connections_are_all_answered() {
    let server = Server::start(&["--slots", "4", "--queue", "100"]);
    let mut connections: Vec<_> = (0..100).map(|_| server.connect()).collect();
    for (client, lines) in connections.iter_mut().enumerate() {
        let mut request = greedy(&prompt(client), 4);
        request["id"] = client.into();
        lines.send(request.to_string().as_bytes());
    }
    for (client, lines) in connections.iter_mut().enumerate() {
        let answer = lines.next().expect("an answer");
        assert_eq!(
            (&answer["id"], &answer["usage"]["completion_tokens"]),
            (&json!(client), &json!(4)),
            "{answer}"
        );
    }
    drop(connections);
    server.wait_for("anneal_slots_busy", 0.0);
    // The remaining connection is the one that requests the metrics.
    server.wait_for("anneal_connections", 1.0);
}

#[test]
fn who_comes_when_the_queue_is_full_is_told_when_to_come_back() {
    let server = Server::start(&["--slots", "1", "--queue", "1", "-c", "65536", "--listen", "127.0.0.1:0"]);
    let mut long = greedy("red heat", 60_000);
    long["stream"] = true.into();
    let (mut running, mut waiting) = (server.connect(), server.connect());
    running.send(long.to_string().as_bytes());
    running.next().expect("a token");
    waiting.send(greedy("hello", 2).to_string().as_bytes());
    server.wait_for("anneal_requests_waiting", 1.0);
    let refused = server.ask(&greedy("hello", 2));
    assert_eq!(refused["error"]["code"], "busy", "{refused}");
    assert!(refused["error"]["retry_after"].as_u64() >= Some(1), "{refused}");
    let body = greedy("hello", 2).to_string();
    let (status, head, body) = crate::client::tcp(&server, "POST", "/v1/completions", &[], body.as_bytes());
    assert_eq!(status, 429, "{body}");
    assert!(head.to_ascii_lowercase().contains("\r\nretry-after: "), "{head}");
    // The waiting request runs as soon as the other request has ended.
    drop(running);
    let answer = waiting.next().expect("an answer");
    assert_eq!(answer["usage"]["completion_tokens"], 2, "{answer}");
}

#[test]
fn a_client_that_goes_away_frees_its_slot() {
    let server = Server::start(&["--slots", "1", "-c", "65536"]);
    for (stream, read) in [(true, 2), (false, 0)] {
        let before = server.metric("anneal_generated_tokens_total");
        let mut lines = server.connect();
        let mut request = greedy("red heat", 60_000);
        request["stream"] = stream.into();
        lines.send(request.to_string().as_bytes());
        (0..read).for_each(|_| drop(lines.next().expect("a token")));
        server.wait_for("anneal_slots_busy", 1.0);
        drop(lines);
        let begin = Instant::now();
        // The answer comes immediately, not after the 60,000 tokens.
        let answer = server.ask(&greedy("hello", 2));
        assert_eq!(answer["usage"]["completion_tokens"], 2, "{answer}");
        assert!(begin.elapsed() < PATIENCE);
        assert_eq!(server.metric("anneal_generated_tokens_total"), before + 2.0);
    }
    assert_eq!(server.metric("anneal_requests_total{end=\"abandoned\"}"), 2.0);
}

#[test]
fn requests_that_need_more_cells_than_there_are_take_turns() {
    let server = Server::start(&["--slots", "4", "-c", "512"]);
    // Four requests of about 200 prompt tokens and 100 answer tokens each do not fit into 512 tokens.
    let long = |client: usize| format!("{client} {}", "steel ".repeat(90));
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let server = &server;
        let clients: Vec<_> =
            (0..4).map(|client| scope.spawn(move || server.ask(&greedy(&long(client), 100)))).collect();
        clients.into_iter().map(|client| client.join().expect("an answer")).collect()
    });
    for (client, answer) in answers.iter().enumerate() {
        assert_eq!(answer["usage"]["completion_tokens"], 100, "{answer}");
        assert_greedy(&long(client), &answer["tokens"]);
    }
}
