//! Tests of the thoughts of reasoning models, which chat answers return as `reasoning_content`.

use std::path::Path;

use serde_json::{Value, json};

use crate::client::{Server, tcp};

const PATH: &str = "/v1/chat/completions";

/// Starts a server whose template writes `end` at the end of a prompt.
fn start(folder: &Path, end: &str) -> Server {
    let template = folder.join("template.jinja");
    let source = format!(
        "{{{{ tools }}}}{{% for m in messages %}}{{{{ m.role }}}}: {{{{ m.content }}}}\n{{% endfor %}}assistant: {end}{{# </think> <tool_call> #}}"
    );
    std::fs::write(&template, source).expect("written");
    Server::start(&["--listen", "127.0.0.1:0", "--chat-template", template.to_str().expect("UTF-8")])
}

/// Returns a request to which the model answers with exactly `text`.
fn ask(text: &str, more: Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "What is two plus two?" }],
        "grammar": format!("root ::= {}", json!(text)), "temperature": 0, "max_tokens": 300,
    });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

/// Returns the message and the finish reason.
fn whole(server: &Server, body: &Value) -> (Value, Value) {
    let (status, _, text) = tcp(server, "POST", PATH, &[], body.to_string().as_bytes());
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(status, 200, "{answer}");
    (answer["choices"][0]["message"].clone(), answer["choices"][0]["finish_reason"].clone())
}

/// Returns the thoughts and the content of a streamed answer.
fn streamed(server: &Server, mut body: Value) -> (String, String) {
    body["stream"] = true.into();
    let (_, _, text) = tcp(server, "POST", PATH, &[], body.to_string().as_bytes());
    let (mut thoughts, mut content) = (String::new(), String::new());
    for event in text.split_terminator("\n\n").filter_map(|part| part.strip_prefix("data: ")) {
        let Ok(event) = serde_json::from_str::<Value>(event) else { continue };
        let delta = &event["choices"][0]["delta"];
        thoughts += delta["reasoning_content"].as_str().unwrap_or_default();
        content += delta["content"].as_str().unwrap_or_default();
    }
    (thoughts, content)
}

#[test]
fn thoughts_are_not_part_of_the_answer() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (end, text) in
        [("<think>\n", "two plus two\n</think>\n\nFour"), ("", "<think>\ntwo plus two\n</think>\n\nFour")]
    {
        let server = start(folder.path(), end);
        let body = ask(text, json!({}));
        let (message, finish) = whole(&server, &body);
        assert_eq!(
            (&message["reasoning_content"], &message["content"]),
            (&json!("two plus two"), &json!("Four"))
        );
        assert_eq!(finish, "stop");
        assert_eq!(streamed(&server, body), ("two plus two".to_string(), "Four".to_string()));
        // On request, the answer stays as the model wrote it.
        let (message, _) = whole(&server, &ask(text, json!({ "reasoning_format": "none" })));
        assert_eq!((message.get("reasoning_content"), &message["content"]), (None, &json!(text)));
        // An answer without thoughts, or one that is cut off within its thoughts.
        if end.is_empty() {
            let (message, _) = whole(&server, &ask("Four", json!({})));
            assert_eq!((message.get("reasoning_content"), &message["content"]), (None, &json!("Four")));
        } else {
            let (message, finish) = whole(&server, &ask(text, json!({ "max_tokens": 2 })));
            assert_eq!((&message["content"], &finish), (&json!(""), &json!("length")), "{message}");
            assert!(!message["reasoning_content"].as_str().expect("a text").is_empty());
        }
        let (status, _, text) = tcp(
            &server,
            "POST",
            PATH,
            &[],
            ask("a", json!({ "reasoning_format": "xml" })).to_string().as_bytes(),
        );
        assert!(status == 400 && text.contains("reasoning_format"), "{text}");
    }
}

#[test]
fn a_schema_leaves_no_room_for_thoughts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = start(folder.path(), "<think>\n");
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": { "const": "Four" } } });
    let mut body = ask("", json!({ "response_format": format }));
    body.as_object_mut().expect("an object").remove("grammar");
    let (message, _) = whole(&server, &body);
    assert_eq!((message.get("reasoning_content"), &message["content"]), (None, &json!("\"Four\"")));
}

#[test]
fn a_call_within_thoughts_is_not_a_call() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = start(folder.path(), "<think>\n");
    let tools = json!([{ "type": "function", "function": { "name": "add" } }]);
    let call = "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>";
    let body = ask(&format!("Perhaps {call}?\n</think>\n\n{call}"), json!({ "tools": tools }));
    let (message, finish) = whole(&server, &body);
    assert_eq!(message["reasoning_content"], json!(format!("Perhaps {call}?")));
    assert_eq!(
        (message["tool_calls"].as_array().map(Vec::len), finish),
        (Some(1), json!("tool_calls")),
        "{message}"
    );
    let body = ask(&format!("Perhaps {call}?\n</think>\n\nFour"), json!({ "tools": tools }));
    let (message, finish) = whole(&server, &body);
    assert_eq!(
        (message.get("tool_calls"), &message["content"], finish),
        (None, &json!("Four"), json!("stop"))
    );
}
