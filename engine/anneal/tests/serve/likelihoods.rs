//! Tests of log-probabilities of prompts, of several prompts in one request, and of requests without an answer.

use build_info::Logits;
use serde_json::{Value, json};

use crate::client::{Server, greedy};
use crate::common::{anneal, parts, the_model, tiny};

const TEXT: &str = "The smith brings the steel slowly to a red heat.";

fn complete(server: &Server, body: &Value) -> Value {
    let (status, answer) = server.post("/v1/completions", body);
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Returns a request for the log-probabilities of `prompt` and nothing else.
fn scoring(prompt: &Value) -> Value {
    json!({ "prompt": prompt, "echo": true, "logprobs": 1, "max_tokens": 0, "temperature": 0 })
}

fn tokens_of(server: &Server, text: &str) -> Vec<i32> {
    let (_, answer) = server.post("/tokenize", &json!({ "content": text }));
    serde_json::from_value(answer["tokens"].clone()).expect("tokens")
}

/// Returns the log-probabilities of all tokens except the first, which has none.
fn logprobs(choice: &Value) -> Vec<f64> {
    let list =
        choice["logprobs"]["token_logprobs"].as_array().unwrap_or_else(|| panic!("no list in {choice}"));
    assert_eq!((&list[0], &choice["logprobs"]["top_logprobs"][0]), (&Value::Null, &Value::Null));
    list[1..].iter().map(|value| value.as_f64().expect("a number")).collect()
}

fn assert_near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    let far = found.iter().zip(expected).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
    assert!(far < 0.02, "{far}: {found:?} is not {expected:?}");
}

/// Computes the log-probabilities of `tokens` from the logits of `anneal logits`.
fn reference(tokens: &[i32]) -> Vec<f64> {
    let folder = tempfile::tempdir().expect("a folder");
    let [list, out] = ["tokens", "logits"].map(|name| folder.path().join(name).display().to_string());
    let words: Vec<String> = tokens.iter().map(i32::to_string).collect();
    std::fs::write(&list, words.join(" ")).expect("a file");
    let model = tiny().display().to_string();
    let (code, _, stderr) = parts(&anneal(["logits", "-m", &model, "--tokens", &list, "--out", &out]));
    assert_eq!(code, Some(0), "{stderr}");
    let logits = Logits::parse(&std::fs::read(&out).expect("the file")).expect("logits");
    let logprob = |(row, next): (&[f32], &i32)| {
        let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
        f64::from(row[*next as usize]) - sum.ln()
    };
    logits.rows().zip(&tokens[1..]).map(logprob).collect()
}

#[test]
fn a_prompt_is_as_likely_as_its_logits_say() {
    // The prompt is longer than a batch has rows of logits.
    let server = Server::start(&["--slots", "2"]);
    let text = [TEXT; 12].join(" ");
    let tokens = tokens_of(&server, &text);
    assert!(tokens.len() > 100, "{}", tokens.len());
    let expected = reference(&tokens);
    for prompt in [json!(text), json!(tokens)] {
        let answer = complete(&server, &scoring(&prompt));
        let choice = &answer["choices"][0];
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(text), &json!("length")));
        assert_near(&logprobs(choice), &expected);
        let usage = &answer["usage"];
        assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(tokens.len()), &json!(0)));
        // Cached tokens have no logits, so the second request evaluates all of them again.
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    }
}

#[test]
fn generated_tokens_are_as_likely_when_they_are_the_prompt() {
    let server = Server::start(&["--slots", "1"]);
    let body = json!({
        "prompt": TEXT, "max_tokens": 20, "temperature": 0, "ignore_eos": true, "logprobs": 1, "return_tokens": true,
    });
    let made = complete(&server, &body)["choices"][0].clone();
    let mut tokens = tokens_of(&server, TEXT);
    let before = tokens.len();
    tokens.extend(serde_json::from_value::<Vec<i32>>(made["tokens"].clone()).expect("tokens"));
    let expected: Vec<f64> =
        serde_json::from_value(made["logprobs"]["token_logprobs"].clone()).expect("numbers");
    let answer = complete(&server, &scoring(&json!(tokens)));
    let told = &answer["choices"][0]["logprobs"];
    assert_near(&logprobs(&answer["choices"][0])[before - 1..], &expected);
    // Each token was the most likely one. lm-evaluation-harness tests greedy answers in this way.
    for at in before..tokens.len() {
        let top = told["top_logprobs"][at].as_object().expect("an object");
        let best = top.values().filter_map(Value::as_f64).fold(f64::NEG_INFINITY, f64::max);
        assert!((best - told["token_logprobs"][at].as_f64().expect("a number")).abs() < 1e-2, "{told}");
    }
}

#[test]
fn an_echo_comes_before_the_answer_with_offsets_into_the_text() {
    let server = Server::start(&[]);
    let body = json!({
        "prompt": TEXT, "max_tokens": 6, "temperature": 0, "ignore_eos": true, "logprobs": 0, "echo": true,
    });
    let whole = complete(&server, &body);
    let (choice, told) = (&whole["choices"][0], &whole["choices"][0]["logprobs"]);
    let text = choice["text"].as_str().expect("a text");
    assert!(text.starts_with(TEXT) && text.len() > TEXT.len(), "{text}");
    let count = tokens_of(&server, TEXT).len() + 6;
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(told[list].as_array().map(Vec::len), Some(count), "{list}");
    }
    let characters: Vec<char> = text.chars().collect();
    let mut checked = 0;
    for (token, offset) in told["tokens"]
        .as_array()
        .into_iter()
        .flatten()
        .zip(told["text_offset"].as_array().into_iter().flatten())
    {
        let at = offset.as_u64().expect("a number") as usize;
        assert!(at <= characters.len(), "{told}");
        let word = token.as_str().expect("a text").trim_start();
        let rest: String = characters[at..].iter().collect();
        if at < TEXT.len() && rest.trim_start().starts_with(word) && !word.is_empty() {
            checked += 1;
        }
    }
    assert!(checked + 2 >= count - 6, "{checked} of {count} offsets lead to their token: {told}");
    // A stream contains the same text and lists, split into parts.
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let (mut joined, mut tokens) = (String::new(), Vec::new());
    for part in server.events("/v1/completions", &streamed) {
        let choice = &part["choices"][0];
        joined.push_str(choice["text"].as_str().unwrap_or_default());
        tokens.extend(choice["logprobs"]["tokens"].as_array().cloned().unwrap_or_default());
    }
    assert_eq!((joined.as_str(), json!(tokens)), (text, told["tokens"].clone()));
    // Without logprobs, only the text changes.
    let mut plain = body;
    plain["logprobs"] = Value::Null;
    let plain = complete(&server, &plain);
    assert_eq!(
        (&plain["choices"][0]["text"], &plain["choices"][0]["logprobs"]),
        (&json!(text), &Value::Null)
    );
}

#[test]
fn each_of_several_prompts_is_answered_as_if_alone() {
    let server = Server::start(&["--slots", "4"]);
    let tokens = tokens_of(&server, TEXT);
    let prompts = [json!(TEXT), json!(tokens[..5]), json!("steel"), json!([tokens[0]])];
    let alone: Vec<Vec<f64>> = prompts
        .iter()
        .map(|prompt| logprobs(&complete(&server, &scoring(&json!([prompt])))["choices"][0]))
        .collect();
    assert_eq!(alone.last().map(Vec::len), Some(0), "a single token has no preceding token");
    let together = complete(&server, &scoring(&json!(prompts)));
    let choices = together["choices"].as_array().expect("a list");
    assert_eq!(choices.iter().map(|choice| &choice["index"]).collect::<Vec<_>>(), [0, 1, 2, 3]);
    for (choice, expected) in choices.iter().zip(&alone) {
        assert_near(&logprobs(choice), expected);
    }
    let sum: usize = alone.iter().map(|one| one.len() + 1).sum();
    assert_eq!(together["usage"]["prompt_tokens"], sum);
    // With n, the answers to a prompt are adjacent, and each prompt is counted once.
    let body = json!({ "prompt": ["red", "steel"], "n": 2, "max_tokens": 3, "seed": 5, "ignore_eos": true });
    let answer = complete(&server, &body);
    let seeds: Vec<&Value> =
        answer["choices"].as_array().into_iter().flatten().map(|one| &one["seed"]).collect();
    assert_eq!(seeds, [5, 6, 5, 6]);
    let sum = tokens_of(&server, "red").len() + tokens_of(&server, "steel").len();
    assert_eq!(
        (&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]),
        (&json!(sum), &json!(12))
    );
}

#[test]
fn an_answer_that_ends_at_once_has_an_entry_for_its_end() {
    let server = Server::start(&[]);
    let end =
        (0..the_model().n_vocab() as i32).find(|token| the_model().is_end(*token)).expect("an end token");
    let body =
        json!({ "prompt": TEXT, "max_tokens": 1, "echo": true, "logprobs": 1, "logit_bias": [[end, 1000]] });
    let answer = complete(&server, &body);
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(TEXT), &json!("stop")));
    assert_eq!(logprobs(choice).len(), tokens_of(&server, TEXT).len());
    assert_eq!(answer["usage"]["completion_tokens"], 0);
}

#[test]
fn a_request_without_tokens_evaluates_its_prompt_for_the_next() {
    let server = Server::start(&["--slots", "1"]);
    let (status, refusal) = server.post("/v1/completions", &json!({ "prompt": TEXT, "max_tokens": -2 }));
    assert_eq!(status, 400, "{refusal}");
    let message = refusal["error"]["message"].as_str().expect("a message");
    assert!(message.contains("use a whole number from 0 to 4294967295, or -1"), "{message}");
    let first = complete(&server, &json!({ "prompt": TEXT, "max_tokens": 0 }));
    let choice = &first["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(""), &json!("length")));
    assert_eq!(first["timings"]["time_to_first_token_ms"], Value::Null);
    let next = complete(&server, &json!({ "prompt": TEXT, "max_tokens": 1 }));
    let cached = next["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
    assert_eq!(cached + 1, first["usage"]["prompt_tokens"].as_u64().expect("a number"));
}

#[test]
fn what_would_be_too_much_is_refused() {
    let server = Server::start(&["--queue", "4"]);
    let many = vec!["a"; 65];
    let long = vec![5; 900];
    let cases = [
        (json!({ "prompt": many }), "prompt: use at most 64 prompts, not 65"),
        (json!({ "prompt": ["a", "b", "c"], "n": 2 }), "prompt: 6 answers do not fit into the queue of 4"),
        (json!({ "prompt": "a", "echo": 1 }), "echo: use true or false"),
        (json!({ "prompt": [[1, "a"]] }), "prompt: use token numbers in a list"),
        (json!({ "prompt": ["a", []] }), "prompt: is empty"),
        (json!({ "prompt": [[1], [9_999_999]] }), "prompt: use tokens from 0 to"),
        (json!({ "prompt": [[9_999_999]], "echo": true }), "prompt: use tokens from 0 to"),
        (json!({ "prompt": "a", "max_tokens": -2 }), "max_tokens: use a whole number from 0"),
        (json!({ "prompt": [long, long], "echo": true, "logprobs": 20, "n": 8 }), "prompt: 16 answers"),
    ];
    for (body, expected) in cases {
        let (status, answer) = server.post("/v1/completions", &body);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.starts_with(expected), "{status} {message}");
    }
    let large = Server::start(&["--queue", "64"]);
    let body = json!({ "prompt": vec![long; 8], "echo": true, "logprobs": 20, "n": 8 });
    let (status, answer) = large.post("/v1/completions", &body);
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(
        status == 400 && message.starts_with("logprobs: the log-probabilities of the prompts"),
        "{answer}"
    );
}

#[test]
fn a_preempted_request_has_each_prompt_token_once() {
    let server = Server::start(&["--slots", "2", "-c", "512"]);
    let tokens: Vec<i32> = tokens_of(&server, &[TEXT; 30].join(" ")).into_iter().take(150).collect();
    let alone = logprobs(&complete(&server, &scoring(&json!(tokens)))["choices"][0]);
    let mut older = server.connect();
    let mut request = greedy("hello", 320);
    request["stream"] = json!(true);
    older.send(request.to_string().as_bytes());
    assert!(older.next().expect("a token").get("error").is_none());
    let body = json!({
        "prompt": tokens, "echo": true, "logprobs": 1, "max_tokens": 200, "temperature": 0, "ignore_eos": true,
    });
    std::thread::scope(|scope| {
        let newer = scope.spawn(|| complete(&server, &body));
        let last =
            std::iter::from_fn(|| older.next()).find(|line| line.get("done").is_some()).expect("an end");
        assert_eq!(last["stop"], "length", "{last}");
        let answer = newer.join().expect("an answer");
        let found = logprobs(&answer["choices"][0]);
        assert_eq!(
            (found.len() + 1, &answer["usage"]["completion_tokens"]),
            (tokens.len() + 200, &json!(200))
        );
        assert_near(&found[..alone.len()], &alone);
    });
    assert!(server.metric("anneal_requests_parked_total") > 0.0);
}
