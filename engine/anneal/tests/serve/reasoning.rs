//! Tests of channels, of the budget for thoughts, and of the fields that turn thoughts on and off.

use std::path::Path;

use serde_json::{Value, json};

use crate::client::Server;

const CHAT: &str = "/v1/chat/completions";

/// Template that shows whether thoughts are wanted, and opens them.
const THINK: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ enable_thinking }} \
                     {{ reasoning_effort }} assistant: <think>\n";

/// Template with the channels of gpt-oss.
const CHANNELS: &str = "{{ tools }}{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.thinking }}{{ m.content }}\
                        <|end|>{% endfor %}<|start|>assistant{# <|channel|> #}";

fn start(folder: &Path, template: &str, more: &[&str]) -> Server {
    let path = folder.join("template.jinja");
    std::fs::write(&path, template).expect("written");
    let path = path.to_str().expect("UTF-8");
    Server::start(&[&["--listen", "127.0.0.1:0", "--chat-template", path], more].concat())
}

/// Returns a request with the fields `more`.
fn ask(more: Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "What is two plus two?" }], "temperature": 0, "max_tokens": 40,
        "ignore_eos": true,
    });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

/// Returns a request to which the model answers with exactly `text`.
fn forced(text: &str, more: Value) -> Value {
    let mut body = ask(more);
    body["grammar"] = format!("root ::= {}", json!(text)).into();
    body["max_tokens"] = 400.into();
    body
}

fn post(server: &Server, path: &str, body: &Value) -> Value {
    let (status, answer) = server.post(path, body);
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Returns the answer's message and the number of tokens in its thoughts.
fn message(server: &Server, body: &Value) -> (Value, u64) {
    let answer = post(server, CHAT, body);
    let count = &answer["usage"]["completion_tokens_details"]["reasoning_tokens"];
    (answer["choices"][0]["message"].clone(), count.as_u64().expect("a count"))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

#[test]
fn channels_are_thoughts_text_and_calls() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = start(folder.path(), CHANNELS, &[]);
    let thoughts = "<|channel|>analysis<|message|>two plus two<|end|>";
    let answer = format!("{thoughts}<|start|>assistant<|channel|>final<|message|>Four");
    let (found, count) = message(&server, &forced(&answer, json!({})));
    assert_eq!((text(&found, "reasoning_content"), text(&found, "content")), ("two plus two", "Four"));
    assert!(count > 0);
    let (found, _) = message(&server, &forced(&answer, json!({ "reasoning_format": "none" })));
    assert_eq!((found.get("reasoning_content"), text(&found, "content")), (None, answer.as_str()));

    let tools = json!([{ "type": "function", "function": { "name": "add" } }]);
    let call = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{\"a\": 2}";
    let both = format!("{thoughts}<|start|>assistant{call}");
    let answer = post(&server, CHAT, &forced(&both, json!({ "tools": tools })));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let function = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(function, &json!({ "name": "add", "arguments": "{\"a\": 2}" }));
    assert_eq!(choice["message"]["reasoning_content"], "two plus two");
    // A call within thoughts is part of the thoughts.
    let inner = forced(
        &format!("<|channel|>analysis<|message|>{}", "to=functions.add {}"),
        json!({ "tools": tools }),
    );
    let (found, _) = message(&server, &inner);
    assert_eq!((found.get("tool_calls"), text(&found, "reasoning_content")), (None, "to=functions.add {}"));
    // Calls stay text if thoughts stay text, and in JSON lines.
    let raw = forced(&both, json!({ "tools": tools, "reasoning_format": "none" }));
    let (found, _) = message(&server, &raw);
    assert_eq!((text(&found, "content"), found["tool_calls"].as_array().map(Vec::len)), (thoughts, Some(1)));
    let line = server.ask(&forced(&both, json!({ "tools": tools })));
    assert_eq!((text(&line, "reasoning_content"), text(&line, "text")), ("two plus two", call));

    // The model continues the answer in its channel, and sees earlier thoughts.
    let continued = json!({ "messages": [
        { "role": "user", "content": "a" },
        { "role": "assistant", "content": "b", "reasoning_content": "hm" },
        { "role": "user", "content": "c" },
        { "role": "assistant", "content": "Two and" },
    ]});
    let prompt = post(&server, "/apply-template", &continued);
    let expected = "<|start|>assistant<|message|>hmb<|end|><|start|>user<|message|>c<|end|><|start|>assistant<|channel|>final<|message|>Two and";
    assert!(text(&prompt, "prompt").ends_with(expected), "{prompt}");
    let (found, _) = message(&server, &forced(" two", continued.clone()));
    assert_eq!(text(&found, "content"), " two");
    // The thoughts of the continued message stay in front of it.
    let mut continued = continued;
    continued["messages"][3]["reasoning_content"] = "two plus two".into();
    let prompt = post(&server, "/apply-template", &continued);
    let expected =
        format!("c<|end|><|start|>assistant{thoughts}<|start|>assistant<|channel|>final<|message|>Two and");
    assert!(text(&prompt, "prompt").ends_with(&expected), "{prompt}");

    // The arguments of a call that was cut off.
    let open = call.trim_end_matches('}');
    let cut_off = forced(&format!("{open}, \"b\": \"x"), json!({ "tools": tools }));
    let (found, _) = message(&server, &cut_off);
    let function = &found["tool_calls"][0]["function"];
    assert_eq!(function, &json!({ "name": "add", "arguments": "{\"a\": 2, \"b\": \"x" }), "{found}");
    let mut body = cut_off;
    body["tools"] = json!([{ "name": "add", "input_schema": { "type": "object" } }]);
    let answer = post(&server, "/v1/messages", &body);
    let block = answer["content"].as_array().and_then(|blocks| blocks.last()).expect("a block");
    assert_eq!(block["input"], json!({ "INVALID_JSON": "{\"a\": 2, \"b\": \"x" }), "{answer}");
}

#[test]
fn a_budget_closes_the_thoughts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = start(folder.path(), THINK, &[]);
    // Without a budget, the random model never closes its thoughts.
    let (free, count) = message(&server, &ask(json!({})));
    assert_eq!((text(&free, "content"), count), ("", 40), "{free}");
    let (closed, closing) = message(&server, &ask(json!({ "thinking_budget_tokens": 0 })));
    assert_eq!(closed.get("reasoning_content"), None, "{closed}");
    assert!(!text(&closed, "content").is_empty() && closing > 0 && closing < 40, "{closed}");
    for more in [
        json!({ "thinking_budget_tokens": 5 }),
        json!({ "thinking_token_budget": 5 }),
        json!({ "thinking": { "type": "enabled", "budget_tokens": 5 } }),
        json!({ "reasoning": { "max_tokens": 5 } }),
    ] {
        let (found, count) = message(&server, &ask(more.clone()));
        assert_eq!(count, 5 + closing, "{more}");
        assert!(!text(&found, "content").is_empty(), "{found}");
        let thoughts = text(&found, "reasoning_content");
        let is_same_at_first = text(&free, "reasoning_content").starts_with(thoughts);
        assert!(more.get("thinking").is_some() || is_same_at_first, "{found}");
    }
    // A second request reuses the cache, and a stream has the same parts.
    let body = ask(json!({ "thinking_budget_tokens": 5 }));
    let (first, _) = message(&server, &body);
    assert_eq!(message(&server, &body).0, first);
    let lines = server.ask(&body);
    assert_eq!(lines["usage"]["reasoning_tokens"], 5 + closing);
    for key in [("reasoning_content", "reasoning_content"), ("content", "text")] {
        assert_eq!(text(&first, key.0), text(&lines, key.1));
    }
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let mut connection = server.connect();
    connection.send(streamed.to_string().as_bytes());
    let (mut thoughts, mut content) = (String::new(), String::new());
    while let Some(line) = connection.next() {
        thoughts += text(&line, "reasoning_content");
        content += text(&line, "text");
        if line["done"] == true {
            break;
        }
    }
    assert_eq!(
        (thoughts.as_str(), content.as_str()),
        (text(&first, "reasoning_content"), text(&first, "content"))
    );
    // The limit is inside the marker that the server inserts.
    for (budget, expected) in [(0, None), (5, first.get("reasoning_content"))] {
        for limit in budget + 1..budget + closing {
            let body = ask(json!({ "thinking_budget_tokens": budget, "max_tokens": limit }));
            let (cut, _) = message(&server, &body);
            assert_eq!(
                (cut.get("reasoning_content"), text(&cut, "content")),
                (expected, ""),
                "{limit}: {cut}"
            );
        }
    }
    let (status, refused) = server.post(CHAT, &ask(json!({ "thinking_budget_tokens": -2 })));
    assert!(status == 400 && refused.to_string().contains("thinking_budget_tokens"), "{refused}");
}

#[test]
fn a_grammar_decides_if_a_budget_can_close_the_thoughts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = start(folder.path(), THINK, &[]);
    let with = |grammar: &str, budget: i64| {
        let mut body = ask(json!({ "grammar": grammar, "thinking_budget_tokens": budget }));
        body["max_tokens"] = 300.into();
        message(&server, &body)
    };
    let (found, count) = with("root ::= [a-z]+ \"</think>\" \"Four\"", 2);
    assert_eq!(text(&found, "content"), "Four", "{found}");
    assert!(count < 30 && !text(&found, "reasoning_content").is_empty(), "{found}");
    let (found, _) = with("root ::= \"two plus two</think>Four\"", 0);
    assert_eq!((text(&found, "reasoning_content"), text(&found, "content")), ("two plus two", "Four"));
}

#[test]
fn thoughts_are_turned_off_by_every_name() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = start(folder.path(), THINK, &[]);
    for (more, variables) in [
        (json!({ "reasoning_effort": "none" }), "False "),
        (json!({ "enable_thinking": false }), "False "),
        (json!({ "thinking": { "type": "disabled" } }), "False "),
        (json!({ "reasoning": { "enabled": false } }), "False "),
    ] {
        let (found, _) = message(&server, &ask(more.clone()));
        assert!(found.get("reasoning_content").is_none() && !text(&found, "content").is_empty(), "{found}");
        let prompt = post(&server, "/apply-template", &ask(more));
        assert!(text(&prompt, "prompt").contains(&format!("\n{variables}")), "{prompt}");
    }
    let prompt = post(&server, "/apply-template", &ask(json!({ "reasoning_effort": "high" })));
    assert!(text(&prompt, "prompt").contains("\nTrue high assistant"), "{prompt}");
    // An answer with a schema must not contain thoughts, so the prompt closes them.
    let prompt =
        post(&server, "/apply-template", &ask(json!({ "response_format": { "type": "json_object" } })));
    assert!(text(&prompt, "prompt").ends_with("<think>\n</think>\n\n"), "{prompt}");
}

#[test]
fn drafts_do_not_change_where_the_thoughts_end() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = start(folder.path(), THINK, &["--speculative", "lookup"]);
    let body = |drafts: &str| {
        let more =
            json!({ "thinking_budget_tokens": 24, "max_tokens": 120, "speculative": { "drafts": drafts } });
        ask(more)
    };
    let expected = message(&server, &body("off"));
    assert!(expected.1 > 24 && !text(&expected.0, "content").is_empty(), "{expected:?}");
    assert_eq!(message(&server, &body("lookup")), expected);
}

#[test]
fn the_server_has_a_default_budget() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = start(folder.path(), THINK, &["--reasoning-budget", "3"]);
    let (found, _) = message(&server, &ask(json!({})));
    assert!(!text(&found, "content").is_empty(), "{found}");
    let (found, count) = message(&server, &ask(json!({ "thinking_budget_tokens": -1 })));
    assert_eq!((text(&found, "content"), count), ("", 40));
    let line = server.ask(&ask(json!({})));
    assert!(!text(&line, "text").is_empty() && !text(&line, "reasoning_content").is_empty(), "{line}");
    // A plain text has no thoughts.
    let line = server.ask(&json!({ "prompt": "<think>", "max_tokens": 9, "temperature": 0 }));
    assert_eq!((&line["usage"]["reasoning_tokens"], line.get("reasoning_content")), (&json!(0), None));
}

#[test]
fn thoughts_are_counted_in_every_format() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = start(folder.path(), THINK, &[]);
    let answer = "two plus two\n</think>\n\nFour";
    let whole = post(&server, CHAT, &forced(answer, json!({ "return_tokens": true })));
    let tokens = whole["choices"][0]["tokens"].as_array().expect("tokens").clone();
    let count = whole["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().expect("a count");
    // The tokens up to the closing marker are counted.
    let thoughts = post(&server, "/detokenize", &json!({ "tokens": tokens[..count as usize] }));
    assert!(text(&thoughts, "content").contains("</think>"), "{thoughts}");
    let before = post(&server, "/detokenize", &json!({ "tokens": tokens[..count as usize - 1] }));
    assert!(!text(&before, "content").contains("</think>"), "{before}");
    let mut response = forced(answer, json!({}));
    response["input"] = "What is two plus two?".into();
    let response = post(&server, "/v1/responses", &response);
    assert_eq!(response["usage"]["output_tokens_details"]["reasoning_tokens"], count);
    let line = server.ask(&forced(answer, json!({})));
    assert_eq!(line["usage"]["reasoning_tokens"], count);
    assert_eq!((text(&line, "reasoning_content"), text(&line, "text")), ("two plus two", "Four"));
    let line = server.ask(&forced(answer, json!({ "reasoning_format": "none" })));
    assert_eq!((line.get("reasoning_content"), text(&line, "text")), (None, answer));
    assert_eq!(line["usage"]["reasoning_tokens"], count);
}
