//! Tests of log-probabilities, and of several answers to one request.

use serde_json::{Value, json};

use crate::client::{Server, greedy, tcp};

fn post(server: &Server, path: &str, body: &Value) -> Value {
    let (status, _, text) = tcp(server, "POST", path, &[], body.to_string().as_bytes());
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

fn refused(server: &Server, path: &str, body: &Value) -> String {
    let (status, _, text) = tcp(server, "POST", path, &[], body.to_string().as_bytes());
    assert_eq!(status, 400, "{text}");
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    answer["error"]["message"].as_str().expect("a message").to_string()
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

const TEXT: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn start() -> Server {
    Server::start(&["--listen", "127.0.0.1:0", "--chat-template", "plain", "--slots", "4"])
}

#[test]
fn lines_tell_how_likely_each_token_was() {
    let server = start();
    let mut lines = server.connect();
    let plain = lines.ask(&greedy("red heat", 8));
    assert!(plain.get("logprobs").is_none(), "{plain}");
    let whole = lines.ask(&with(greedy("red heat", 8), json!({ "logprobs": 20 })));
    assert_eq!(whole["tokens"], plain["tokens"]);
    let told = whole["logprobs"].as_array().expect("a list");
    assert_eq!(told.len(), 8);
    for (entry, token) in told.iter().zip(whole["tokens"].as_array().expect("a list")) {
        let top = entry["top"].as_array().expect("a list");
        assert_eq!((&entry["token"], top.len()), (token, 20));
        // With greedy sampling, the best token is chosen, and the other tokens follow in descending order.
        assert_eq!((&top[0]["token"], &top[0]["logprob"]), (token, &entry["logprob"]));
        let all: Vec<f64> = top.iter().map(|likely| number(&likely["logprob"])).collect();
        assert!(all.is_sorted_by(|one, other| one >= other), "{all:?}");
        let sum: f64 = all.iter().map(|logprob| logprob.exp()).sum();
        assert!(sum > 0.0 && sum <= 1.0001, "{sum}");
    }
    // A stream has the same values. Samplers do not change them, because the probabilities are the model's own.
    let hot = json!({ "logprobs": 2, "stream": true, "temperature": 5, "top_k": 1 });
    lines.send(with(greedy("red heat", 8), hot).to_string().as_bytes());
    for entry in told {
        let line = lines.next().expect("a token");
        assert!((number(&line["logprob"]) - number(&entry["logprob"])).abs() < 0.05, "{line} {entry}");
        assert_eq!(line["top"].as_array().map(Vec::len), Some(2), "{line}");
    }
}

#[test]
fn both_endpoints_tell_it_in_openais_shape() {
    let server = start();
    let text = json!({ "prompt": "red heat", "max_tokens": 6, "temperature": 0, "ignore_eos": true });
    let none = post(&server, TEXT, &text);
    assert_eq!(none["choices"][0]["logprobs"], Value::Null);
    let whole = post(&server, TEXT, &with(text.clone(), json!({ "logprobs": 3 })));
    let told = &whole["choices"][0]["logprobs"];
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(told[list].as_array().map(Vec::len), Some(6), "{list}: {told}");
    }
    for (at, top) in told["top_logprobs"].as_array().expect("a list").iter().enumerate() {
        let token = told["tokens"][at].as_str().expect("a text");
        assert_eq!(top[token], told["token_logprobs"][at], "{told}");
        assert!((1..=4).contains(&top.as_object().map_or(0, |top| top.len())), "{top}");
    }
    // A stream contains the same lists, split into parts.
    let parts = server.events(TEXT, &with(text.clone(), json!({ "logprobs": 3, "stream": true })));
    let joined = |name: &str| -> Vec<Value> {
        let lists = parts.iter().filter_map(|part| part["choices"][0]["logprobs"][name].as_array());
        lists.flatten().cloned().collect()
    };
    assert_eq!((json!(joined("tokens")), json!(joined("text_offset"))), {
        (told["tokens"].clone(), told["text_offset"].clone())
    });

    let messages = json!([{ "role": "user", "content": "hello" }]);
    let chat = json!({ "messages": messages, "max_tokens": 6, "temperature": 0, "ignore_eos": true });
    assert_eq!(post(&server, CHAT, &chat)["choices"][0]["logprobs"], Value::Null);
    for top in [0, 2] {
        let asked = with(chat.clone(), json!({ "logprobs": true, "top_logprobs": top }));
        let told = post(&server, CHAT, &asked)["choices"][0]["logprobs"]["content"].clone();
        let told = told.as_array().expect("a list");
        assert_eq!(told.len(), 6);
        for entry in told {
            assert_eq!(entry["top_logprobs"].as_array().map(Vec::len), Some(top), "{entry}");
            assert!(number(&entry["logprob"]) <= 0.0 && entry["bytes"].is_array(), "{entry}");
        }
        let parts = server.events(CHAT, &with(asked, json!({ "stream": true })));
        let parts = parts.iter().filter_map(|part| part["choices"][0]["logprobs"]["content"].as_array());
        let tokens: Vec<&Value> = parts.flatten().map(|entry| &entry["token"]).collect();
        assert_eq!(tokens, told.iter().map(|entry| &entry["token"]).collect::<Vec<_>>());
    }
}

#[test]
fn more_than_is_offered_is_refused_in_words() {
    let server = start();
    let text = json!({ "prompt": "a", "max_tokens": 1 });
    let chat = json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 1 });
    let cases = [
        (TEXT, &text, json!({ "logprobs": 21 }), "logprobs: use a whole number from 0 to 20"),
        (TEXT, &text, json!({ "logprobs": -1 }), "logprobs: use a whole number from 0 to 20"),
        (TEXT, &text, json!({ "n": 0 }), "n: use a whole number from 1 to 8"),
        (TEXT, &text, json!({ "n": 9 }), "n: use a whole number from 1 to 8"),
        (TEXT, &text, json!({ "n": 2, "best_of": 3 }), "best_of: only 2 is supported"),
        (CHAT, &chat, json!({ "logprobs": 2 }), "logprobs: use true or false"),
        (CHAT, &chat, json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs: use a whole"),
        (CHAT, &chat, json!({ "top_logprobs": 2 }), "top_logprobs: needs \"logprobs\": true"),
        (CHAT, &chat, json!({ "n": "2" }), "n: use a whole number from 1 to 8"),
    ];
    for (path, body, more, expected) in cases {
        let message = refused(&server, path, &with(body.clone(), more.clone()));
        assert!(message.starts_with(expected), "{more}: {message}");
    }
    let small = Server::start(&["--listen", "127.0.0.1:0", "--queue", "2"]);
    let message = refused(&small, TEXT, &with(text, json!({ "n": 3 })));
    assert!(message.starts_with("n: 3 answers do not fit into the queue of 2"), "{message}");
}

#[test]
fn several_answers_share_the_prompt() {
    let server = start();
    let prompt = "The smith brings the steel slowly to a red heat. ".repeat(20);
    let body = json!({
        "prompt": prompt, "max_tokens": 12, "temperature": 1.5, "top_k": 0, "seed": 7, "ignore_eos": true,
    });
    let several = post(&server, TEXT, &with(body.clone(), json!({ "n": 3 })));
    let choices = several["choices"].as_array().expect("a list");
    let seeds: Vec<&Value> = choices.iter().map(|choice| &choice["seed"]).collect();
    assert_eq!(seeds, [7, 8, 9]);
    assert_eq!(choices.iter().map(|choice| &choice["index"]).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(choices[0]["text"] != choices[1]["text"] && choices[1]["text"] != choices[2]["text"]);
    let usage = &several["usage"];
    assert_eq!(usage["completion_tokens"], 36);
    let prompt_tokens = number(&usage["prompt_tokens"]);
    assert_eq!(number(&usage["total_tokens"]), prompt_tokens + 36.0);
    // The prompt is evaluated once. The other answers reuse all its tokens except the last.
    let cached = server.metric("anneal_prompt_tokens_cached_total");
    assert_eq!(cached, 2.0 * (prompt_tokens - 1.0));

    // In a stream, each part has the number of its choice.
    let more = json!({ "n": 3, "stream": true, "stream_options": { "include_usage": true } });
    let mut parts = server.events(TEXT, &with(body, more));
    let last = parts.pop().expect("the usage");
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(36)));
    for index in 0..3 {
        let mut of = parts.iter().map(|part| &part["choices"][0]).filter(|choice| choice["index"] == index);
        assert_eq!(of.clone().filter(|choice| choice["finish_reason"] == "length").count(), 1);
        assert!(of.any(|choice| choice["text"] != ""), "choice {index}");
    }
}

#[test]
fn the_first_of_several_is_what_one_alone_is() {
    // The server has a single slot and no cache, so that rounding is the same for all requests.
    let server = Server::start(&["--listen", "127.0.0.1:0", "--slots", "1", "--chat-template", "plain"]);
    let messages = json!([{ "role": "user", "content": "hello" }]);
    let body = json!({
        "messages": messages, "max_tokens": 12, "temperature": 1.5, "top_k": 0, "seed": 7, "ignore_eos": true,
        "cache_prompt": false,
    });
    let alone = |seed: u32| {
        let one = post(&server, CHAT, &with(body.clone(), json!({ "seed": seed })));
        one["choices"][0]["message"].clone()
    };
    let several = post(&server, CHAT, &with(body.clone(), json!({ "n": 2 })));
    assert_eq!(several["choices"][0]["message"], alone(7));
    assert_eq!(several["choices"][1]["message"], alone(8));
}

/// The text alone does not determine its tokens, because several tokenizations have the same text.
#[test]
fn both_endpoints_tell_the_numbers_of_tokens_where_asked() {
    let server = start();
    let tokens_of = |choice: &Value| choice["tokens"].as_array().cloned();
    let text = json!({ "prompt": "red heat", "max_tokens": 9, "temperature": 0, "ignore_eos": true });
    let messages = json!([{ "role": "user", "content": "hello" }]);
    let chat = json!({ "messages": messages, "max_tokens": 9, "temperature": 0, "ignore_eos": true });
    for (path, body) in [(TEXT, &text), (CHAT, &chat)] {
        assert_eq!(tokens_of(&post(&server, path, body)["choices"][0]), None);
        let asked = with(body.clone(), json!({ "return_tokens": true }));
        let told = tokens_of(&post(&server, path, &asked)["choices"][0]).expect("tokens");
        assert_eq!(told.len(), 9, "{path}: {told:?}");
        let parts = server.events(path, &with(asked, json!({ "stream": true })));
        let parts = parts.iter().filter_map(|part| tokens_of(&part["choices"][0])).flatten();
        assert_eq!(parts.collect::<Vec<_>>(), told, "{path}");
        if path == TEXT {
            assert_eq!(json!(told), server.connect().ask(&greedy("red heat", 9))["tokens"]);
        }
    }
    let message = refused(&server, TEXT, &with(text, json!({ "return_tokens": 1 })));
    assert_eq!(message, "return_tokens: use true or false, not 1");
}
