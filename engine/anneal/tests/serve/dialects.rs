//! Tests of the Messages API and of the Responses API.

use std::path::Path;

use serde_json::{Value, json};

use crate::client::{Server, configured, greedy, tcp};

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

/// Answer with thoughts, text and a call, as a model writes it.
const ANSWER: &str = "<think>\nI look.\n</think>\n\nWait.<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\"}}\n</tool_call>";

fn start(folder: &Path) -> Server {
    let template = folder.join("template.jinja");
    let source = "{% if tools %}{{ tools }}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.tool_calls }}\n{% endfor %}\
                  assistant: {# <think> </think> <tool_call> #}";
    std::fs::write(&template, source).expect("written");
    Server::start(&["--listen", "127.0.0.1:0", "--chat-template", template.to_str().expect("UTF-8")])
}

/// Returns `body` with a grammar that makes the model answer with exactly `text`.
fn answered_by(mut body: Value, text: &str) -> Value {
    body["grammar"] = format!("root ::= {}", json!(text)).into();
    body["temperature"] = 0.into();
    body["max_tokens"] = 300.into();
    body
}

fn post(server: &Server, path: &str, body: &Value) -> Value {
    let (status, _, text) = tcp(server, "POST", path, &[], body.to_string().as_bytes());
    let answer = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Returns the data of the events of a streamed answer, after a check of their names.
fn events(server: &Server, path: &str, mut body: Value) -> Vec<Value> {
    body["stream"] = true.into();
    let (status, _, text) = tcp(server, "POST", path, &[], body.to_string().as_bytes());
    assert_eq!(status, 200, "{text}");
    let event = |part: &str| {
        let (name, data) = part.strip_prefix("event: ")?.split_once("\ndata: ")?;
        let data: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(data["type"], name);
        Some(data)
    };
    let events: Vec<Value> = text.split_terminator("\n\n").filter_map(event).collect();
    assert!(!events.is_empty(), "{text}");
    events
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().expect("a type")).collect();
    kinds.dedup();
    kinds
}

/// Returns the texts of the key `key` in the events of type `kind`, joined.
fn joined(events: &[Value], kind: &str, of: fn(&Value) -> &Value) -> String {
    let events = events.iter().filter(|event| event["type"] == kind);
    events.filter_map(|event| of(event).as_str()).collect()
}

fn weather(parameters: &str) -> Value {
    let mut tool = json!({ "type": "function", "name": "weather", "description": "Tells the weather." });
    tool[parameters] = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    if parameters == "input_schema" {
        tool["type"] = "custom".into();
    }
    tool
}

#[test]
fn a_message_has_blocks_of_thoughts_text_and_calls() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = start(folder.path());
    let body = json!({
        "system": "Be brief.", "messages": [{ "role": "user", "content": "weather?" }],
        "tools": [weather("input_schema")],
    });
    let body = answered_by(body, ANSWER);
    let answer = post(&server, MESSAGES, &body);
    assert_eq!((&answer["type"], &answer["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    let content = answer["content"].as_array().expect("blocks");
    assert_eq!(content.len(), 3, "{answer}");
    assert_eq!(content[0], json!({ "type": "thinking", "thinking": "I look.", "signature": "" }));
    assert_eq!(content[1], json!({ "type": "text", "text": "Wait." }));
    assert_eq!((&content[2]["name"], &content[2]["input"]), (&json!("weather"), &json!({ "city": "Bonn" })));
    let usage = &answer["usage"];
    let prompt = usage["input_tokens"].as_u64().zip(usage["cache_read_input_tokens"].as_u64());
    let prompt = prompt.map(|(new, cached)| new + cached).expect("counts");
    assert!(prompt > 0 && usage["output_tokens"].as_u64() > Some(0), "{usage}");
    assert_eq!(post(&server, "/v1/messages/count_tokens", &body), json!({ "input_tokens": prompt }));

    let events = events(&server, MESSAGES, body);
    let block = ["content_block_start", "content_block_delta", "content_block_stop"];
    let expected =
        [&["message_start"][..], &block, &block, &block, &["message_delta", "message_stop"]].concat();
    assert_eq!(kinds(&events), expected);
    let delta = "content_block_delta";
    assert_eq!(joined(&events, delta, |event| &event["delta"]["thinking"]), "I look.");
    assert_eq!(joined(&events, delta, |event| &event["delta"]["text"]), "Wait.");
    let arguments = joined(&events, delta, |event| &event["delta"]["partial_json"]);
    assert_eq!(serde_json::from_str::<Value>(&arguments).ok(), Some(json!({ "city": "Bonn" })));
    let starts: Vec<u64> = events
        .iter()
        .filter(|event| event["type"] == "content_block_start")
        .filter_map(|event| event["index"].as_u64())
        .collect();
    assert_eq!(starts, [0, 1, 2]);
    let end = events.iter().find(|event| event["type"] == "message_delta").expect("an end");
    assert_eq!(end["delta"]["stop_reason"], "tool_use");
}

#[test]
fn a_message_says_why_it_ends() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = start(folder.path());
    let body = answered_by(json!({ "messages": [{ "role": "user", "content": "a" }] }), "one two three");
    assert_eq!(post(&server, MESSAGES, &body)["stop_reason"], "end_turn");
    let stopped = |more: Value| {
        let mut body = body.clone();
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let answer = post(&server, MESSAGES, &body);
        (answer["stop_reason"].clone(), answer["stop_sequence"].clone(), answer["content"][0]["text"].clone())
    };
    assert_eq!(
        stopped(json!({ "stop_sequences": [" two"] })),
        (json!("stop_sequence"), json!(" two"), json!("one"))
    );
    assert_eq!(stopped(json!({ "max_tokens": 1 })).0, "max_tokens");
}

#[test]
fn the_results_of_tools_are_part_of_the_next_prompt() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = start(folder.path());
    let count =
        |messages: Value| post(&server, "/v1/messages/count_tokens", &json!({ "messages": messages }));
    let question = json!({ "role": "user", "content": "weather?" });
    let call = json!({ "role": "assistant", "content": [{ "type": "tool_use", "id": "t1", "name": "weather", "input": {} }] });
    let result = |text: &str| json!({ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t1", "content": text }] });
    let tokens = |messages: Value| count(messages)["input_tokens"].as_u64().expect("a count");
    let short = tokens(json!([question, call, result("rain")]));
    let long = tokens(json!([question, call, result("rain and more rain until the evening")]));
    assert!(tokens(json!([question])) < short && short < long);
}

/// The template writes "assistant: " before an answer.
#[test]
fn the_assistants_last_message_is_continued() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = start(folder.path());
    let messages =
        json!([{ "role": "user", "content": "count" }, { "role": "assistant", "content": "One, two" }]);
    let text = |path: &str, body: &Value, place: &str| {
        post(&server, path, body).pointer(place).and_then(Value::as_str).expect("a text").to_string()
    };
    let greedy = |more: Value| {
        let mut body = json!({ "temperature": 0, "max_tokens": 8, "ignore_eos": true });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    let expected = greedy(json!({ "prompt": "user: count\nassistant: One, two" }));
    let expected = text("/v1/completions", &expected, "/choices/0/text");
    let chat = |more: Value| {
        let mut body = greedy(json!({ "messages": messages, "reasoning_format": "none" }));
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        text("/v1/chat/completions", &body, "/choices/0/message/content")
    };
    assert_eq!(chat(json!({})), expected);
    assert_eq!(chat(json!({ "continue_final_message": true })), expected);
    let tokens = |more: Value| {
        let mut body = json!({ "messages": messages, "max_tokens": 1 });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        post(&server, "/v1/chat/completions", &body)["usage"]["prompt_tokens"].as_u64().expect("a count")
    };
    assert!(tokens(json!({ "continue_final_message": false })) > tokens(json!({})));
    let body = json!({ "messages": [{ "role": "user", "content": "a" }], "continue_final_message": true });
    let (status, _, answer) = tcp(&server, "POST", "/v1/chat/completions", &[], body.to_string().as_bytes());
    assert!(status == 400 && answer.contains("continue_final_message"), "{status}: {answer}");
    // No limit on the tokens.
    let body = json!({ "messages": messages, "max_tokens": -1, "stop": [" "], "seed": u64::MAX });
    assert!(post(&server, "/v1/chat/completions", &body)["usage"]["completion_tokens"].as_u64() > Some(0));
}

#[test]
fn errors_have_the_form_that_each_client_expects() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = start(folder.path());
    for (path, body, field, kind) in [
        (MESSAGES, json!({ "messages": [] }), "messages", "invalid_request_error"),
        (MESSAGES, json!({ "model": "none", "messages": [] }), "model", "not_found_error"),
        (
            RESPONSES,
            json!({ "input": "a", "tools": [{ "type": "web_search" }] }),
            "tools[0].type",
            "invalid_request_error",
        ),
    ] {
        let (status, _, text) = tcp(&server, "POST", path, &[], body.to_string().as_bytes());
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        assert!((400..500).contains(&status), "{status}: {answer}");
        assert_eq!(
            (&answer["error"]["param"], &answer["error"]["type"]),
            (&json!(field), &json!(kind)),
            "{answer}"
        );
        assert_eq!(answer["type"] == "error", path == MESSAGES, "{answer}");
    }
    // Errors before a request is read.
    for (method, path, headers, expected) in [
        ("GET", MESSAGES, &[][..], (405, "invalid_request_error")),
        ("POST", "/v1/messages/other", &[], (404, "not_found_error")),
        ("POST", MESSAGES, &["Origin: http://evil.example"], (403, "permission_error")),
    ] {
        let (status, _, text) = tcp(&server, method, path, headers, b"");
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((status, answer["error"]["type"].as_str()), (expected.0, Some(expected.1)), "{answer}");
        assert_eq!(answer["type"], "error", "{answer}");
    }
    // A prompt that is longer than the context.
    let text = "red ".repeat(10_000);
    let messages = json!([{ "role": "user", "content": text }]);
    for (path, body, field) in [
        (MESSAGES, json!({ "messages": messages }), "messages"),
        (RESPONSES, json!({ "input": text }), "input"),
    ] {
        let (status, _, text) = tcp(&server, "POST", path, &[], body.to_string().as_bytes());
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        let error = &answer["error"];
        let found = (status, &error["param"], &error["code"]);
        assert_eq!(found, (400, &json!(field), &json!("context_length_exceeded")), "{answer}");
    }
    // The error contains the path of the keyword in the request.
    let mut tool = weather("parameters");
    tool["parameters"]["properties"]["city"] = json!({ "$ref": "#/none" });
    let body = json!({ "input": "a", "tools": [tool], "tool_choice": "required" });
    let (status, _, text) = tcp(&server, "POST", RESPONSES, &[], body.to_string().as_bytes());
    assert!(status == 400 && text.contains("tools[0].parameters.properties.city"), "{status}: {text}");
}

#[test]
fn an_error_after_the_start_of_a_stream_is_an_event_that_each_client_expects() {
    let flags = ["--listen", "127.0.0.1:0", "--chat-template", "chatml", "--slots", "1", "-c", "65536"];
    let server = Server::start(&flags);
    let mut running = server.connect();
    let mut request = greedy("red heat", 60_000);
    request["stream"] = true.into();
    running.send(request.to_string().as_bytes());
    running.next().expect("a token");

    let messages = json!([{ "role": "user", "content": "a" }]);
    let failed = |path: &str, mut body: Value| {
        // The request times out in the queue, after the head of its answer has been sent.
        body["stream"] = true.into();
        body["timeout_s"] = 0.3.into();
        let (status, _, text) = tcp(&server, "POST", path, &[], body.to_string().as_bytes());
        assert_eq!(status, 200, "{text}");
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter_map(|data| serde_json::from_str(data).ok()).collect::<Vec<Value>>()
    };
    let message = "the request timed out before its first token (timeout_s)";
    let error = |kind: &str| json!({ "message": message, "type": kind, "param": null, "code": "deadline" });
    for (path, body) in [
        ("/v1/chat/completions", json!({ "messages": messages })),
        ("/v1/completions", json!({ "prompt": "a" })),
    ] {
        let events = failed(path, body);
        assert_eq!(events.last(), Some(&json!({ "error": error("server_error") })), "{path}");
    }
    let events = failed(MESSAGES, json!({ "messages": messages }));
    assert_eq!(events.last(), Some(&json!({ "type": "error", "error": error("timeout_error") })));

    // Some clients of this API read only the event `error`, with or without its key `error`; others read only the last
    // event.
    let events = failed(RESPONSES, json!({ "input": "a" }));
    assert_eq!(kinds(&events)[2..], ["error", "response.failed"]);
    assert_eq!(events[2]["error"], error("server_error"));
    assert_eq!((&events[2]["message"], &events[2]["code"]), (&json!(message), &json!("deadline")));
    let response = &events[3]["response"];
    assert_eq!(response["status"], "failed");
    assert_eq!(response["error"], json!({ "code": "deadline", "message": message }));
}

#[test]
fn a_response_has_items_of_thoughts_text_and_calls() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = start(folder.path());
    let body = json!({ "instructions": "Be brief.", "input": "weather?", "tools": [weather("parameters")] });
    let body = answered_by(body, ANSWER);
    let answer = post(&server, RESPONSES, &body);
    assert_eq!((&answer["object"], &answer["status"]), (&json!("response"), &json!("completed")), "{answer}");
    let output = answer["output"].as_array().expect("items");
    let kinds_of = |items: &[Value]| items.iter().map(|item| item["type"].clone()).collect::<Vec<_>>();
    assert_eq!(kinds_of(output), ["reasoning", "message", "function_call"]);
    assert_eq!(output[0]["content"][0]["text"], "I look.");
    assert_eq!(output[1]["content"][0]["text"], "Wait.");
    assert_eq!(output[2]["name"], "weather");
    let arguments = output[2]["arguments"].as_str().expect("a text");
    assert_eq!(serde_json::from_str::<Value>(arguments).ok(), Some(json!({ "city": "Bonn" })));
    assert!(answer["usage"]["input_tokens"].as_u64() > Some(0), "{answer}");

    let events = events(&server, RESPONSES, body);
    let numbers: Vec<u64> = events.iter().filter_map(|event| event["sequence_number"].as_u64()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    assert_eq!(kinds(&events)[..2], ["response.created", "response.in_progress"]);
    assert_eq!(joined(&events, "response.reasoning_text.delta", |event| &event["delta"]), "I look.");
    assert_eq!(joined(&events, "response.output_text.delta", |event| &event["delta"]), "Wait.");
    assert_eq!(joined(&events, "response.function_call_arguments.delta", |event| &event["delta"]), arguments);
    let last = events.last().expect("events");
    assert_eq!(last["type"], "response.completed");
    assert_eq!(
        kinds_of(last["response"]["output"].as_array().expect("items")),
        ["reasoning", "message", "function_call"]
    );

    // The output of one response is the input of the next.
    let mut input = vec![json!({ "role": "user", "content": "weather?" })];
    input.extend(output.iter().cloned());
    input.push(json!({ "type": "function_call_output", "call_id": output[2]["call_id"], "output": "rain" }));
    let next = answered_by(json!({ "input": input }), "Rain.");
    assert_eq!(post(&server, RESPONSES, &next)["output"][0]["content"][0]["text"], "Rain.");
}

#[test]
fn a_response_that_is_cut_off_is_incomplete() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = start(folder.path());
    let mut body = answered_by(json!({ "input": "a" }), "one two three");
    body["max_output_tokens"] = 1.into();
    let answer = post(&server, RESPONSES, &body);
    assert_eq!(answer["status"], "incomplete");
    assert_eq!(answer["incomplete_details"], json!({ "reason": "max_output_tokens" }));
    assert_eq!(events(&server, RESPONSES, body).last().expect("events")["type"], "response.incomplete");
    // A schema constrains the text.
    let schema = json!({ "type": "object", "properties": { "n": { "const": 3 } }, "required": ["n"], "additionalProperties": false });
    let body = json!({ "input": "a", "text": { "format": { "type": "json_schema", "name": "x", "schema": schema } } });
    let answer = post(&server, RESPONSES, &body);
    let text = answer["output"][0]["content"][0]["text"].as_str().expect("a text");
    assert_eq!(serde_json::from_str::<Value>(text).ok(), Some(json!({ "n": 3 })), "{answer}");
}

#[test]
fn clients_with_fixed_names_and_headers_are_served() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "0123456789abcdef\n").expect("written");
    std::fs::set_permissions(&keys, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
    let text = format!(
        "model = \"a.gguf\"\nlisten = \"127.0.0.1:0\"\naccept_any_model = true\nchat_template = \"plain\"\n\
         api_key_file = {keys:?}\n"
    );
    let server = configured(&text, &["a.gguf"]);
    let body =
        json!({ "model": "claude-x", "max_tokens": 2, "messages": [{ "role": "user", "content": "a" }] });
    for (path, key, expected) in [
        ("/v1/messages", "0123456789abcdef", 200),
        ("/v1/messages/", "0123456789abcdef", 200),
        ("/v1/chat/completions/", "0123456789abcdef", 200),
        ("/v1/messages", "wrong", 401),
    ] {
        let header = format!("x-api-key: {key}");
        let (status, _, text) = tcp(&server, "POST", path, &[header.as_str()], body.to_string().as_bytes());
        assert_eq!(status, expected, "{path}: {text}");
    }
}
