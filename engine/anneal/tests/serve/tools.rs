//! Tests of tool calls: required calls, and calls that the server finds in the model's output.

use std::path::Path;

use serde_json::{Value, json};

use crate::client::{Server, tcp};
use crate::common::{tiny, with_text};

const PATH: &str = "/v1/chat/completions";

fn post(server: &Server, body: &Value) -> (u16, Value) {
    let (status, _, text) = tcp(server, "POST", PATH, &[], body.to_string().as_bytes());
    (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

/// Merges the deltas of a stream. Returns the content, the calls and the finish reason.
fn streamed(server: &Server, mut body: Value) -> (String, Vec<(String, String)>, Value) {
    body["stream"] = true.into();
    let (status, _, text) = tcp(server, "POST", PATH, &[], body.to_string().as_bytes());
    assert_eq!(status, 200, "{text}");
    let (mut content, mut calls, mut finish) = (String::new(), Vec::<(String, String)>::new(), Value::Null);
    for part in text.split_terminator("\n\n").filter(|part| *part != "data: [DONE]") {
        let part: Value = serde_json::from_str(part.strip_prefix("data: ").expect("an event")).expect("JSON");
        let choice = &part["choices"][0];
        content.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        for call in choice["delta"]["tool_calls"].as_array().unwrap_or(&Vec::new()) {
            if let Some(name) = call["function"]["name"].as_str() {
                assert_eq!(
                    (&call["index"], &call["type"]),
                    (&json!(calls.len()), &json!("function")),
                    "{call}"
                );
                assert_eq!(call["id"].as_str().map(str::len), Some(9), "{call}");
                calls.push((name.to_string(), String::new()));
            }
            let last = calls.len() - 1;
            assert_eq!(call["index"], last, "{call}");
            calls[last].1.push_str(call["function"]["arguments"].as_str().expect("a text"));
        }
        finish = choice["finish_reason"].clone();
    }
    (content, calls, finish)
}

fn tools() -> Value {
    let heat = json!({
        "type": "object",
        "properties": { "steel": { "$ref": "#/$defs/steel" }, "at": { "type": "integer", "minimum": 0, "maximum": 9 } },
        "required": ["steel", "at"],
        "additionalProperties": false,
        "$defs": { "steel": { "enum": ["red", "white"] } },
    });
    json!([
        { "type": "function", "function": { "name": "stop_fire" } },
        { "type": "function", "function": { "name": "get_heat", "parameters": heat } },
    ])
}

fn ask(more: Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "How hot is it?" }], "tools": tools(), "max_tokens": 200, "seed": 1,
    });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

fn check(name: &str, arguments: &str) {
    let read: Value = serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{error}: {arguments}"));
    match name {
        "stop_fire" => assert_eq!(read, json!({})),
        "get_heat" => {
            assert!(["red", "white"].contains(&read["steel"].as_str().expect("a text")), "{read}");
            assert!(read["at"].as_u64().is_some_and(|at| at < 10), "{read}");
        }
        other => panic!("{other} was not offered"),
    }
}

#[test]
fn a_demanded_call_is_always_one() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "--chat-template", "chatml"]);
    let named = json!({ "type": "function", "function": { "name": "get_heat" } });
    for seed in 0..3 {
        for choice in [json!("required"), named.clone()] {
            let body =
                ask(json!({ "tool_choice": choice, "temperature": 1, "seed": seed, "ignore_eos": true }));
            let (status, answer) = post(&server, &body);
            assert_eq!(status, 200, "{answer}");
            let (message, finish) =
                (&answer["choices"][0]["message"], &answer["choices"][0]["finish_reason"]);
            assert_eq!((finish, &message["content"]), (&json!("tool_calls"), &Value::Null), "{answer}");
            let function = &message["tool_calls"][0]["function"];
            let name = function["name"].as_str().expect("a name");
            check(name, function["arguments"].as_str().expect("a text"));
            assert!(choice == "required" || name == "get_heat", "{answer}");
            let (content, calls, finish) = streamed(&server, body);
            assert_eq!((content.as_str(), calls.len(), finish), ("", 1, json!("tool_calls")));
            check(&calls[0].0, &calls[0].1);
        }
    }
    // A tool call that is cut off has the finish reason `length`.
    let (_, cut) = post(&server, &ask(json!({ "tool_choice": named, "max_tokens": 12, "temperature": 0 })));
    assert_eq!(cut["choices"][0]["finish_reason"], "length", "{cut}");
    // The required call is combined with another constraint.
    for more in
        [json!({ "grammar": "root ::= \"a\"" }), json!({ "response_format": { "type": "json_object" } })]
    {
        let mut body = ask(more);
        body["tool_choice"] = json!("required");
        assert_eq!(post(&server, &body).0, 400, "{body}");
    }
    // In an answer of the line protocol, the call is part of the text.
    let line = server.ask(&ask(json!({ "tool_choice": "required", "temperature": 0 })));
    let text: Value = serde_json::from_str(line["text"].as_str().expect("a text")).expect("JSON");
    check(text["name"].as_str().expect("a name"), &text["arguments"].to_string());
}

#[test]
fn calls_are_found_by_the_marks_of_the_models_template() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = folder.path().join("model.gguf");
    let text = |written: &str| format!("root ::= {}", json!(written));
    let heat = r#"{"name": "get_heat", "arguments": {"at": 1}}"#;
    let cases = [
        ("<tool_call>", format!("<tool_call>\n{heat}\n</tool_call>"), None, 1),
        (
            "<tool_call>",
            format!("Look.\n<tool_call>{heat}</tool_call>\n<tool_call>{heat}</tool_call>"),
            Some("Look."),
            2,
        ),
        // A call that is invalid before its arguments stays text. Once the arguments begin, they are streamed, so the
        // call remains a call.
        (
            "<tool_call>",
            format!("<tool_call>{}</tool_call>", heat.replace(", ", ", , ")),
            Some("<tool_call>"),
            0,
        ),
        ("<tool_call>", format!("<tool_call>{heat}, </tool_call>"), None, 1),
        // The opening marker, the closing marker or the last brace is missing.
        ("<tool_call>", heat.to_string(), None, 1),
        ("<tool_call>", format!("<tool_call>{heat}"), None, 1),
        ("<tool_call>", format!("<tool_call>{}", &heat[..heat.len() - 1]), None, 1),
        ("<|python_tag|>", heat.replace("arguments", "parameters"), None, 1),
        ("[TOOL_CALLS]", format!("[TOOL_CALLS][{heat}]"), None, 1),
        (
            "<tool_call> <function= <parameter=",
            "<tool_call>\n<function=get_heat>\n<parameter=at>\n1\n</parameter>\n</function>\n</tool_call>"
                .to_string(),
            None,
            1,
        ),
        (
            "<tool_call> <arg_key> <arg_value>",
            "<tool_call>get_heat\n<arg_key>at</arg_key>\n<arg_value>1</arg_value>\n</tool_call>".to_string(),
            None,
            1,
        ),
        (
            "<tool_call> <function= <parameter=",
            "Look.\n\n<function=get_heat>\n<parameter=at>\n1\n</parameter>\n</function>\n</tool_call>"
                .to_string(),
            Some("Look."),
            1,
        ),
        // This template shows tools, but defines no tool calls.
        ("", format!("<tool_call>{heat}</tool_call>"), Some("<tool_call>"), 0),
    ];
    for (mark, written, content, n_calls) in cases {
        let template = format!(
            "{{{{ tools }}}}{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}{{# {mark} #}}"
        );
        with_text(tiny(), &model, &[("tokenizer.chat_template", &template)]);
        let server = of_model(&model);
        // The grammar makes the model write tool calls, for which it was not trained.
        let body = ask(json!({ "grammar": text(&written), "temperature": 0, "max_tokens": 400 }));
        let (status, answer) = post(&server, &body);
        assert_eq!(status, 200, "{answer}");
        let message = &answer["choices"][0]["message"];
        let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
        let finish = if n_calls > 0 { "tool_calls" } else { "stop" };
        assert_eq!(
            (calls.len(), &answer["choices"][0]["finish_reason"]),
            (n_calls, &json!(finish)),
            "{answer}"
        );
        match content {
            Some(begin) => {
                assert!(message["content"].as_str().is_some_and(|text| text.starts_with(begin)), "{answer}")
            }
            None => assert_eq!(message["content"], Value::Null, "{answer}"),
        }
        for call in &calls {
            assert_eq!(
                call["function"],
                json!({ "name": "get_heat", "arguments": "{\"at\": 1}" }),
                "{answer}"
            );
        }
        let (told, told_calls, told_finish) = streamed(&server, body);
        assert_eq!(told, message["content"].as_str().unwrap_or_default(), "{written}");
        assert_eq!((told_calls.len(), told_finish), (n_calls, json!(finish)), "{written}");
        assert!(
            told_calls.iter().all(|(name, json)| name == "get_heat" && json == "{\"at\": 1}"),
            "{told_calls:?}"
        );
        // Without tools in the request, calls are part of the text.
        let mut body = ask(json!({ "grammar": text(&written), "temperature": 0, "max_tokens": 400 }));
        body["tool_choice"] = json!("none");
        assert_eq!(post(&server, &body).1["choices"][0]["message"]["content"], json!(written));
    }
}

#[test]
fn a_limit_or_a_stop_string_may_cut_off_a_call() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = folder.path().join("model.gguf");
    let template = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}{# <tool_call> <function= <parameter= #}";
    with_text(tiny(), &model, &[("tokenizer.chat_template", template)]);
    let server = of_model(&model);
    let call = "<tool_call>\n<function=get_heat>\n<parameter=at>\n1\n</parameter>\n<parameter=steel>\nred\n</parameter>\n\
                </function>\n</tool_call>";
    let answer = |more: Value| {
        let mut body = ask(
            json!({ "grammar": format!("root ::= {}", json!(call)), "temperature": 0, "max_tokens": 400 }),
        );
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let (status, answer) = post(&server, &body);
        assert_eq!(status, 200, "{answer}");
        let choice = &answer["choices"][0];
        let (content, calls, finish) = streamed(&server, body);
        assert_eq!(
            (content.as_str(), &finish),
            (choice["message"]["content"].as_str().unwrap_or_default(), &choice["finish_reason"])
        );
        let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str();
        assert_eq!(arguments, calls.first().map(|(_, arguments)| arguments.as_str()), "{answer}");
        (arguments.map(str::to_string), finish, answer)
    };
    let complete = r#"{"at": 1, "steel": "red"}"#;
    let (arguments, finish, whole) = answer(json!({}));
    assert_eq!((arguments.as_deref(), &finish), (Some(complete), &json!("tool_calls")));
    // The limit is inside the closing markers, and then inside the arguments.
    let n_tokens = whole["usage"]["completion_tokens"].as_u64().expect("a number");
    let mut n_cut = 0;
    for limit in (1..n_tokens - 1).rev() {
        let (arguments, finish, answer) = answer(json!({ "max_tokens": limit }));
        assert_eq!(finish, "length", "{answer}");
        let arguments = arguments.unwrap_or_else(|| panic!("{answer}"));
        if arguments != complete {
            assert!(complete.starts_with(&arguments), "{answer}");
            n_cut += 1;
        }
        if !arguments.contains("steel") {
            break;
        }
    }
    assert!(n_cut > 0);
    for (stop, arguments, finish) in [
        ("ed\n", r#"{"at": 1, "steel": "r"#, "stop"),
        ("\n</function>", complete, "tool_calls"),
        ("</tool_call>", complete, "tool_calls"),
    ] {
        let found = answer(json!({ "stop": [stop] }));
        assert_eq!((found.0.as_deref(), found.1), (Some(arguments), json!(finish)), "{stop:?}");
    }
}

fn of_model(model: &Path) -> Server {
    let mut command = crate::common::command();
    command.args(["serve", "--json", "-t", "1", "--listen", "127.0.0.1:0", "-m"]).arg(model);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    Server::with(command, tempfile::tempdir().expect("a temporary folder"))
}
