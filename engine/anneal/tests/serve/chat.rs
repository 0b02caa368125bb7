//! Tests of conversations: `/v1/chat/completions`, and `messages` in a line of JSON.

use std::path::Path;

use serde_json::{Value, json};

use crate::client::{Server, tcp};
use crate::common::{on_tiny, tiny, with_text};

const PATH: &str = "/v1/chat/completions";

/// Starts a server with one slot and without a cache, so that the tokens equal the tokens of `anneal run`.
fn start(more: &[&str]) -> Server {
    Server::start(&[&["--listen", "127.0.0.1:0", "--slots", "1"], more].concat())
}

fn post(server: &Server, body: &Value) -> (u16, Value) {
    let (status, _, text) = tcp(server, "POST", PATH, &[], body.to_string().as_bytes());
    (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

/// Returns the events of a stream, which must end normally.
fn stream(server: &Server, body: &Value) -> Vec<Value> {
    let (status, head, text) = tcp(server, "POST", PATH, &[], body.to_string().as_bytes());
    assert_eq!(status, 200, "{text}");
    assert!(head.to_ascii_lowercase().contains("content-type: text/event-stream"), "{head}");
    let mut parts: Vec<&str> = text.split_terminator("\n\n").collect();
    assert_eq!(parts.pop(), Some("data: [DONE]"));
    let read = |part: &str| serde_json::from_str(part.strip_prefix("data: ").expect("an event"));
    parts.into_iter().map(|part| read(part).expect("JSON")).collect()
}

fn with(mut body: Value, more: Value) -> Value {
    let more = more.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(more);
    body
}

/// Returns a greedy request.
fn ask(messages: Value) -> Value {
    json!({ "messages": messages, "max_tokens": 24, "temperature": 0, "ignore_eos": true, "cache_prompt": false })
}

fn smith() -> Value {
    let part = json!([{ "type": "text", "text": "Red heat," }, { "type": "text", "text": "漢字 🙂?" }]);
    json!([
        { "role": "system", "content": "You are a smith." },
        { "role": "user", "content": "hello" },
        { "role": "assistant", "content": "Good day." },
        { "role": "user", "content": part },
    ])
}

/// Prompt that `--chat-template chatml` produces for [`smith`].
const SMITH: &str = "<|im_start|>system\nYou are a smith.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n\
    <|im_start|>assistant\nGood day.<|im_end|>\n<|im_start|>user\nRed heat,\n漢字 🙂?<|im_end|>\n<|im_start|>assistant\n";

#[test]
fn an_answer_is_what_run_makes_of_the_rendered_prompt() {
    let arguments = ["--json", "--ignore-eos", "--greedy", "-t", "1", "-p", SMITH, "-n", "24"];
    let expected: Value = serde_json::from_str(&on_tiny("run", &arguments)).expect("one JSON object");
    let server = start(&["--chat-template", "chatml", "--name", "a model"]);

    let (status, answer) = post(&server, &with(ask(smith()), json!({ "model": "a model" })));
    assert_eq!(status, 200, "{answer}");
    assert_eq!((&answer["object"], &answer["model"]), (&json!("chat.completion"), &json!("a model")));
    assert!(answer["id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-")), "{answer}");
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["message"]["content"], expected["text"]);
    assert_eq!((&choice["finish_reason"], &choice["index"]), (&json!("length"), &json!(0)));
    assert_eq!(answer["usage"]["prompt_tokens"], expected["prompt_tokens"]);
    assert_eq!(answer["usage"]["completion_tokens"], 24);

    // The same request as a stream.
    let more = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let parts = stream(&server, &with(ask(smith()), more));
    assert!(
        parts.iter().all(|part| part["id"] == parts[0]["id"] && part["object"] == "chat.completion.chunk")
    );
    assert_eq!(parts[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    let told: String =
        parts.iter().filter_map(|part| part["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(json!(told), expected["text"]);
    let [before @ .., last, usage] = &parts[..] else { panic!("{parts:?}") };
    assert!(before.iter().all(|part| part["choices"][0]["finish_reason"].is_null()), "{before:?}");
    let choice = &last["choices"][0];
    assert_eq!((&choice["delta"], &choice["finish_reason"]), (&json!({}), &json!("length")));
    assert_eq!((&usage["choices"], &usage["usage"]), (&json!([]), &answer["usage"]));
    let parts = stream(&server, &with(ask(smith()), json!({ "stream": true })));
    assert!(parts.iter().all(|part| part.get("usage").is_none()), "no usage unless it is requested");

    // The same request as a line of JSON.
    let line = server.ask(&ask(smith()));
    assert_eq!((&line["text"], &line["tokens"]), (&expected["text"], &expected["tokens"]), "{line}");
}

#[test]
fn lengths_and_stops_hold() {
    let server = start(&["--chat-template", "chatml"]);
    let (_, most) = post(&server, &with(ask(smith()), json!({ "max_completion_tokens": 3 })));
    assert_eq!(most["usage"]["completion_tokens"], 3, "it overrides max_tokens: {most}");
    let (_, whole) = post(&server, &ask(smith()));
    let text = whole["choices"][0]["message"]["content"].as_str().expect("a text");
    let middle = text.char_indices().nth(text.chars().count() / 2).expect("a text").0;
    let stop: String = text[middle..].chars().take(3).collect();
    let expected = &text[..text.find(&stop).expect("the text contains it")];
    let (_, stopped) = post(&server, &with(ask(smith()), json!({ "stop": stop })));
    let choice = &stopped["choices"][0];
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(expected), &json!("stop")));
    let parts = stream(&server, &with(ask(smith()), json!({ "stop": stop, "stream": true })));
    let told: String =
        parts.iter().filter_map(|part| part["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(told, expected);
    assert_eq!(parts[parts.len() - 1]["choices"][0]["finish_reason"], "stop");
}

#[test]
fn a_response_format_is_kept() {
    let server = start(&["--chat-template", "chatml"]);
    let schema = json!({
        "type": "object",
        "properties": { "steel": { "type": "boolean" }, "heat": { "enum": ["red", "white"] } },
        "required": ["steel", "heat"],
        "additionalProperties": false,
    });
    let formats = [
        json!({ "type": "json_object" }),
        json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } }),
    ];
    let mut whole = 0;
    for format in &formats {
        for seed in 0..3 {
            let more =
                json!({ "response_format": format, "seed": seed, "temperature": 1, "max_tokens": 200 });
            let (status, answer) = post(&server, &with(ask(smith()), more));
            assert_eq!(status, 200, "{answer}");
            let choice = &answer["choices"][0];
            let text = choice["message"]["content"].as_str().expect("a text");
            assert!(text.trim_start().starts_with('{'), "{text}");
            if choice["finish_reason"] == "length" {
                continue;
            }
            whole += 1;
            let read: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(read.is_object(), "{text}");
            if format["type"] == "json_schema" {
                assert!(
                    read["steel"].is_boolean()
                        && ["red", "white"].contains(&read["heat"].as_str().unwrap_or(""))
                );
            }
        }
    }
    assert!(whole > 0, "every answer was cut");
    // Text completions accept the field too.
    let more =
        json!({ "prompt": "The smith", "response_format": formats[1], "max_tokens": 200, "temperature": 0 });
    let (status, answer) = server.post("/v1/completions", &more);
    assert_eq!(status, 200, "{answer}");
    let text = answer["choices"][0]["text"].as_str().expect("a text");
    assert!(text.trim_start().starts_with("{") && text.contains("\"steel\""), "{text}");
    let both = with(more, json!({ "grammar": "root ::= \"a\"" }));
    assert_eq!(server.post("/v1/completions", &both).0, 400);
}

#[test]
fn what_cannot_be_meant_is_refused_with_its_place() {
    let server = start(&["--chat-template", "chatml"]);
    let user = |content: Value| json!([{ "role": "user", "content": content }]);
    let more = |more: Value| with(ask(smith()), more);
    let cases = [
        (json!({}), "messages", "is missing"),
        (json!({ "prompt": "hello" }), "messages", "is missing"),
        (ask(json!([])), "messages", "is empty"),
        (ask(json!("hello")), "messages", "use a list of messages, not \"hello\""),
        (ask(json!(["hello"])), "messages[0]", "use an object"),
        (ask(json!([{ "content": "a" }])), "messages[0].role", "is missing"),
        (
            ask(json!([{ "role": "user", "content": "a" }, { "role": 7 }])),
            "messages[1].role",
            "use a string, not 7",
        ),
        (ask(user(json!(7))), "messages[0].content", "use a string or a list of parts, not 7"),
        (ask(user(json!(["x"]))), "messages[0].content[0]", "use an object, not \"x\""),
        (
            ask(user(json!([{ "type": "image_url", "image_url": { "url": "x" } }]))),
            "messages[0].content[0].type",
            "send parts of type \"text\", not \"image_url\"",
        ),
        (
            ask(json!([{ "role": "assistant", "tool_calls": [{}] }])),
            "messages[0].tool_calls[0].function",
            "use an object with a name and arguments",
        ),
        (more(json!({ "n": 9 })), "n", "use a whole number from 1 to 8"),
        (more(json!({ "logprobs": 1 })), "logprobs", "use true or false"),
        (more(json!({ "max_completion_tokens": 0 })), "max_completion_tokens", "use a whole number"),
        (more(json!({ "temperature": -1 })), "temperature", "use 0"),
        (more(json!({ "tools": {} })), "tools", "use a list of tools"),
        (more(json!({ "tool_choice": "required" })), "tool_choice", "needs tools"),
        (
            more(json!({ "response_format": { "type": "xml" } })),
            "response_format.type",
            "use text, json_object",
        ),
        (
            more(json!({ "response_format": { "type": "json_object" }, "grammar": "root ::= \"a\"" })),
            "response_format",
            "give only one of response_format",
        ),
    ];
    for (body, param, words) in cases {
        let (status, answer) = post(&server, &body);
        let error = &answer["error"];
        assert_eq!((status, error["param"].as_str()), (400, Some(param)), "{body}: {answer}");
        assert!(error["message"].as_str().is_some_and(|message| message.contains(words)), "{body}: {answer}");
    }
    let (status, answer) = post(&server, &more(json!({ "model": "another" })));
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("model_not_found")), "{answer}");
    let long = "word ".repeat(20_000);
    let (status, answer) = post(&server, &ask(user(json!(long))));
    let error = &answer["error"];
    assert_eq!((status, &error["code"]), (400, &json!("context_length_exceeded")), "{answer}");
    assert_eq!(error["param"], "messages");
    let both = server.ask(&with(ask(smith()), json!({ "prompt": "hello" })));
    assert_eq!(both["error"]["param"], "messages", "{both}");
    // The rejected requests had no effect on the server, and null is treated as a missing field.
    let nulls = json!({ "tools": null, "response_format": null, "stop": null, "n": 1, "logprobs": false, "user": "u" });
    assert_eq!(post(&server, &more(nulls)).0, 200);
}

#[test]
fn without_a_template_it_says_what_to_do() {
    let server = start(&[]);
    let (status, answer) = post(&server, &ask(smith()));
    assert_eq!(status, 400, "{answer}");
    let message = |answer: &Value| answer["error"]["message"].as_str().unwrap_or_default().to_string();
    assert!(message(&answer).contains("--chat-template"), "{answer}");
    assert!(message(&server.ask(&ask(smith()))).contains("--chat-template"));
    let (status, _, text) =
        tcp(&server, "POST", "/v1/completions", &[], br#"{"prompt": "a", "max_tokens": 2}"#);
    assert_eq!(status, 200, "{text}");
}

#[test]
fn a_template_that_is_broken_or_endless_spoils_nothing_else() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = folder.path().join("model.gguf");
    for (template, words) in [
        ("{% for m in messages %}", "tokenizer.chat_template"),
        ("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "did not finish"),
    ] {
        with_text(tiny(), &model, &[("tokenizer.chat_template", template)]);
        let server = of_model(&model);
        let (status, answer) = post(&server, &ask(smith()));
        assert_eq!(status, 400, "{template}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(words) && message.contains("--chat-template"), "{template}: {message}");
        let prompt = br#"{"prompt": "a", "max_tokens": 2}"#;
        assert_eq!(tcp(&server, "POST", "/v1/completions", &[], prompt).0, 200, "{template}");
    }
}

/// The template in the model's file receives the tools, and rejects a role.
#[test]
fn the_template_of_the_model_gets_tools_and_may_refuse() {
    let template = "{% for m in messages %}{% if m.role == 'owl' %}{{ raise_exception('no owls') }}{% endif %}\
        {{ m.content }}{% endfor %}{{ tools | tojson if tools }}{{ mood }}";
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = folder.path().join("model.gguf");
    with_text(tiny(), &model, &[("tokenizer.chat_template", template)]);
    let server = of_model(&model);

    let tools =
        json!([{ "type": "function", "function": { "name": "f", "description": "d", "arguments": {} } }]);
    let hello = json!([{ "role": "user", "content": "hello" }]);
    let prompt_tokens = |body: &Value| {
        let (status, answer) = post(&server, body);
        assert_eq!(status, 200, "{answer}");
        answer["usage"]["prompt_tokens"].as_u64().expect("a count")
    };
    let plain = prompt_tokens(&ask(hello.clone()));
    let with_tools = prompt_tokens(&with(ask(hello.clone()), json!({ "tools": tools })));
    assert!(with_tools > plain + 10, "{with_tools} and {plain}");
    let unwanted = json!({ "tools": tools, "tool_choice": "none" });
    assert_eq!(prompt_tokens(&with(ask(hello.clone()), unwanted)), plain);
    let mood = json!({ "chat_template_kwargs": { "mood": "a happy one, and then some" } });
    assert!(prompt_tokens(&with(ask(hello), mood)) > plain);

    let (status, answer) = post(&server, &ask(json!([{ "role": "owl", "content": "hello" }])));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("messages")), "{answer}");
    assert!(
        answer["error"]["message"].as_str().is_some_and(|message| message.contains("no owls")),
        "{answer}"
    );
}

fn of_model(model: &Path) -> Server {
    let mut command = crate::common::command();
    command.args(["serve", "--json", "-t", "1", "--listen", "127.0.0.1:0", "-m"]).arg(model);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    Server::with(command, tempfile::tempdir().expect("a temporary folder"))
}

#[test]
fn a_template_that_is_asked_for_must_be_there() {
    let (code, _, stderr) = crate::common::parts(
        &crate::client::command(&["--listen", "127.0.0.1:0", "--chat-template", "/none.jinja"])
            .output()
            .expect("the executable runs"),
    );
    assert!(code.is_some_and(|code| code != 0), "{stderr}");
    assert!(stderr.contains("/none.jinja"), "{stderr}");
}

#[test]
fn a_stream_that_waits_gets_comments() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = folder.path().join("server.toml");
    std::fs::write(&config, "keep_alive_s = 0.05\n").expect("written");
    let server =
        start(&["--chat-template", "chatml", "--config", config.to_str().expect("UTF-8"), "-c", "8192"]);
    let request = |count: u32| {
        with(
            ask(json!([{ "role": "user", "content": "hi" }])),
            json!({ "max_tokens": count, "ignore_eos": true, "stream": true }),
        )
    };
    std::thread::scope(|scope| {
        let long = scope.spawn(|| tcp(&server, "POST", PATH, &[], request(4000).to_string().as_bytes()).2);
        server.wait_for("anneal_slots_busy", 1.0);
        let (status, _, text) = tcp(&server, "POST", PATH, &[], request(2).to_string().as_bytes());
        // The request waited for the slot. Without the comments, the stream is an ordinary one.
        assert!(status == 200 && text.contains(": waiting\n\n"), "{text}");
        let parts = text.split_terminator("\n\n").filter(|part| !part.starts_with(':'));
        assert!(parts.clone().all(|part| part.starts_with("data: ")), "{text}");
        assert_eq!(parts.last(), Some("data: [DONE]"));
        assert!(long.join().expect("no panic").ends_with("data: [DONE]\n\n"));
    });
}

/// Template whose tool calls have one tag per argument.
const TAGS: &str = r#"{% for tool in tools or [] %}{{ tool | tojson }}{% endfor -%}
{% for message in messages %}[{{ message.role }}]{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
<function={{ call.function.name }}>
{% for key, value in call.function.arguments | items %}<parameter={{ key }}>
{{ value }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"#;

#[test]
fn a_stream_gets_comments_while_a_call_is_held_back_or_a_schema_is_compiled() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    std::fs::write(path("server.toml"), "keep_alive_s = 0.02\n").expect("written");
    std::fs::write(path("tags.jinja"), TAGS).expect("written");
    let server =
        start(&["--chat-template", &path("tags.jinja"), "--config", &path("server.toml"), "-c", "4096"]);
    let send = |more: Value| {
        let request = with(ask(json!([{ "role": "user", "content": "hi" }])), json!({ "stream": true }));
        let (status, _, text) = tcp(&server, "POST", PATH, &[], with(request, more).to_string().as_bytes());
        assert_eq!(status, 200, "{text}");
        text
    };
    let call = format!(
        "<tool_call>\n<function=write>\n<parameter=text>\n{}</parameter>\n</function>\n</tool_call>",
        "a line of a long file\n".repeat(90)
    );
    let parameters = json!({ "type": "object", "properties": { "text": { "type": "string" } } });
    let text = send(json!({
        "tools": [{ "type": "function", "function": { "name": "write", "parameters": parameters } }],
        "grammar": format!("root ::= {}", json!(call)), "max_tokens": 3000,
    }));
    let (before, _) = text.split_once("\"tool_calls\"").unwrap_or_else(|| panic!("{text}"));
    let (_, held) = before.split_once("data: ").expect("the role");
    assert!(held.contains(": waiting\n\n"), "{text}");
    // The head and the first comment do not wait for the schema.
    let slow = |at: u64| {
        let range = json!({ "type": "integer", "multipleOf": 9973, "minimum": 123_456 + at, "maximum": 98_765_432_123_u64 });
        (at.to_string(), range)
    };
    let schema = |count| {
        let properties: serde_json::Map<_, _> = (0..count).map(slow).collect();
        json!({ "json_schema": { "type": "object", "properties": properties }, "max_tokens": 1 })
    };
    let text = send(schema(9));
    assert!(text.starts_with(": waiting\n\n") && text.ends_with("data: [DONE]\n\n"), "{text}");
    // An error that comes after the head is an event.
    let text = send(with(schema(9), json!({ "timeout_s": 0.06 })));
    assert!(text.starts_with(": waiting\n\n") && text.contains("timed out during preparation"), "{text}");
}
