//! Tests of `/v1/embeddings`, and of embeddings in lines of JSON.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::client::{Server, greedy, tcp};

const PATH: &str = "/v1/embeddings";

fn start(more: &[&str]) -> Server {
    Server::start(&[&["--listen", "127.0.0.1:0"], more].concat())
}

fn post(server: &Server, body: &Value) -> (u16, Value) {
    let (status, _, text) = tcp(server, "POST", PATH, &[], body.to_string().as_bytes());
    (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|value| value.as_f64().expect("a number")).collect()
}

/// Returns the embeddings of `input`. Each embedding must have length 1.
fn embed(server: &Server, input: &Value) -> Vec<Vec<f64>> {
    let (status, answer) = post(server, &json!({ "input": input }));
    assert_eq!((status, &answer["object"]), (200, &json!("list")), "{answer}");
    let data = answer["data"].as_array().expect("a list");
    for (index, entry) in data.iter().enumerate() {
        assert_eq!((&entry["index"], &entry["object"]), (&json!(index), &json!("embedding")));
    }
    let found: Vec<Vec<f64>> = data.iter().map(|entry| numbers(&entry["embedding"])).collect();
    for embedding in &found {
        assert!((dot(embedding, embedding) - 1.0).abs() < 1e-5, "{embedding:?}");
    }
    found
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

#[test]
fn texts_and_their_tokens_have_the_same_embedding() {
    let server = start(&[]);
    let texts = ["hello", "The smith brings the steel slowly to a red heat", "漢字 🙂"];
    let alone: Vec<Vec<f64>> = texts.iter().flat_map(|text| embed(&server, &json!(text))).collect();
    let together = embed(&server, &json!(texts));
    let tokens: Vec<Value> = texts
        .iter()
        .map(|text| {
            let body = json!({ "content": text }).to_string();
            let (_, _, answer) = tcp(&server, "POST", "/tokenize", &[], body.as_bytes());
            serde_json::from_str::<Value>(&answer).expect("JSON")["tokens"].clone()
        })
        .collect();
    let of_tokens = embed(&server, &json!(tokens));
    let of_first = embed(&server, &tokens[0]);
    assert!(dot(&of_first[0], &alone[0]) > 0.9999);
    for at in 0..texts.len() {
        // Embeddings from different batches differ by rounding.
        assert!(dot(&alone[at], &together[at]) > 0.999, "{}", texts[at]);
        assert!(dot(&together[at], &of_tokens[at]) > 0.9999, "{}", texts[at]);
    }
    assert!(dot(&alone[0], &alone[1]) < 0.99, "different texts have different embeddings");
    assert!(server.metric("anneal_embedding_cache_bytes") > 0.0);
    let counted: usize = tokens.iter().map(|tokens| tokens.as_array().expect("a list").len()).sum();
    let (_, answer) = post(&server, &json!({ "input": texts }));
    assert_eq!(answer["usage"], json!({ "prompt_tokens": counted, "total_tokens": counted }));
}

#[test]
fn a_text_longer_than_a_batch_is_read_whole() {
    let server = start(&["-c", "2048"]);
    let long = "The smith brings the steel slowly to a red heat. ".repeat(12);
    let one = embed(&server, &json!(long));
    // The end of the text also has an effect.
    let other = embed(&server, &json!(format!("{long} 漢字 🙂 漢字 🙂 漢字 🙂 漢字 🙂")));
    let again = embed(&server, &json!(long));
    assert!(dot(&one[0], &other[0]) < 0.9999, "{}", dot(&one[0], &other[0]));
    assert!(dot(&one[0], &again[0]) > 0.99999);
}

#[test]
fn numbers_come_as_a_list_or_as_base64() {
    let server = start(&[]);
    let list = embed(&server, &json!("hello")).remove(0);
    let (status, answer) = post(&server, &json!({ "input": "hello", "encoding_format": "base64" }));
    assert_eq!(status, 200, "{answer}");
    let text = answer["data"][0]["embedding"].as_str().expect("a text");
    let bytes = unbase64(text);
    let decoded: Vec<f64> = bytes
        .chunks(4)
        .map(|four| f64::from(f32::from_le_bytes(four.try_into().expect("four bytes"))))
        .collect();
    assert!(dot(&list, &decoded) > 0.9999);
    let (status, answer) = post(&server, &json!({ "input": "hello", "dimensions": list.len() }));
    assert_eq!(status, 200, "{answer}");

    let line = server.ask(&json!({ "embed": ["hello", "b"], "id": 7 }));
    assert_eq!((&line["id"], &line["done"]), (&json!(7), &json!(true)), "{line}");
    assert!(dot(&numbers(&line["embeddings"][0]), &list) > 0.999);
    assert_eq!(line["embeddings"].as_array().map(Vec::len), Some(2));
    assert!(line["usage"]["prompt_tokens"].as_u64() > Some(1), "{line}");
}

fn unbase64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("{byte} is not a base64 digit"),
    };
    let digits: Vec<u8> = text.trim_end_matches('=').bytes().map(digit).collect();
    let mut bytes = Vec::new();
    for four in digits.chunks(4) {
        let number = (0..4).fold(0_u32, |sum, at| sum << 6 | u32::from(four.get(at).copied().unwrap_or(0)));
        bytes.extend(&number.to_be_bytes()[1..four.len()]);
    }
    bytes
}

#[test]
fn what_cannot_be_meant_is_refused_in_words() {
    let server = start(&["-c", "256"]);
    let long = "red heat ".repeat(300);
    let cases = [
        (json!({}), 400, "input: is missing"),
        (json!({ "input": "" }), 400, "input: a text must not be empty"),
        (json!({ "input": [] }), 400, "input: use 1 to 2048 texts, not 0"),
        (json!({ "input": [99999999] }), 400, "input: use tokens from 0 to"),
        (json!({ "input": [-1] }), 400, "input: use tokens from 0 to"),
        (json!({ "input": { "a": 1 } }), 400, "input: use a string"),
        (json!({ "input": long }), 400, "input: a text has"),
        (json!({ "input": "a", "encoding_format": "hex" }), 400, "encoding_format: use float or base64"),
        (json!({ "input": "a", "dimensions": 3 }), 400, "dimensions: this model's embeddings have"),
        (json!({ "input": "a", "model": "other" }), 404, "unknown model"),
        (json!({ "input": "a", "timeout_s": -1 }), 400, "timeout_s: use a number"),
    ];
    for (body, expected, words) in cases {
        let (status, answer) = post(&server, &body);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(status == expected && message.starts_with(words), "{body}: {status} {answer}");
    }
    let line = server.ask(&json!({ "embed": "a", "stream": true }));
    let message = line["error"]["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("stream: unknown field"), "{line}");
}

#[test]
fn generating_goes_on_beside() {
    let server = start(&["-c", "4096"]);
    let mut lines = server.connect();
    let expected = lines.ask(&greedy("red heat", 200))["tokens"].clone();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let embedding = scope.spawn(|| {
            let mut rounds = 0;
            while !over.load(Ordering::Relaxed) {
                embed(
                    &server,
                    &json!(vec!["The smith brings the steel slowly to a red heat. ".repeat(6); 4]),
                );
                rounds += 1;
            }
            rounds
        });
        // Waits until the request is in progress.
        while server.metric("anneal_embeddings_total") == 0.0 {
            std::thread::yield_now();
        }
        for _ in 0..3 {
            let answer = lines.ask(&greedy("red heat", 200));
            assert_eq!(answer["usage"]["completion_tokens"], 200, "{answer}");
            assert_eq!(answer["tokens"], expected);
        }
        over.store(true, Ordering::Relaxed);
        assert!(embedding.join().expect("no panic") > 0);
    });
}

#[test]
fn a_full_queue_and_the_end_are_told() {
    let mut server = start(&["--queue", "1", "-c", "4096", "--drain", "0"]);
    let much = json!({ "embed": vec!["The smith brings the steel slowly to a red heat. ".repeat(60); 90] });
    let mut connections: Vec<_> = (0..4).map(|_| server.connect()).collect();
    let (first, others) = connections.split_first_mut().expect("four");
    first.send(much.to_string().as_bytes());
    // The request has its context, so it is no longer waiting.
    while server.metric("anneal_embedding_cache_bytes") == 0.0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    for lines in others {
        lines.send(much.to_string().as_bytes());
    }
    server.wait_for("anneal_embedding_requests_waiting", 1.0);
    let small = server.ask(&json!({ "embed": "a" }));
    assert_eq!(small["error"]["code"], "busy", "{small}");
    assert!(small["error"]["retry_after"].as_u64() >= Some(1), "{small}");
    server.signal("TERM");
    assert_eq!(server.code(), Some(0));
    for lines in &mut connections {
        // Either the client receives an error, or the connection closes.
        if let Some(line) = lines.next() {
            assert!(line.get("error").is_some(), "{}", line["error"]);
        }
    }
}

/// Hundreds of texts from one client do not delay a single text from another client.
#[test]
fn a_long_job_lets_others_go_before_it() {
    let server = start(&["-c", "512"]);
    let long: Vec<String> =
        (0..500).map(|number| format!("{number} {}", "red heat of the steel ".repeat(8))).collect();
    std::thread::scope(|scope| {
        let job = scope.spawn(|| post(&server, &json!({ "input": long })));
        // The job has its context, so it is in progress.
        while server.metric("anneal_embedding_cache_bytes") == 0.0 && !job.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let answer = server.ask(&json!({ "embed": "hello" }));
        assert_eq!(answer["done"], true, "{answer}");
        // Texts are counted when all texts of their request are done.
        assert_eq!(server.metric("anneal_embeddings_total"), 1.0);
        let (status, answer) = job.join().expect("no panic");
        assert_eq!((status, answer["data"].as_array().map(Vec::len)), (200, Some(500)));
        // Each text has its own embedding, even if the request is processed in pieces.
        let first = numbers(&answer["data"][0]["embedding"]);
        let last = numbers(&answer["data"][499]["embedding"]);
        assert!(dot(&first, &embed(&server, &json!(long[0]))[0]) > 0.9999);
        assert!(dot(&last, &embed(&server, &json!(long[499]))[0]) > 0.9999);
    });
}
