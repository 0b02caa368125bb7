//! Tests of `return_progress` and of `/apply-template`.

use serde_json::{Value, json};

use crate::client::{Server, tcp};

/// Returns the progress reports in the streamed answer to `body` at `path`.
fn reports(server: &Server, path: &str, mut body: Value) -> Vec<Value> {
    body["stream"] = true.into();
    let (status, _, text) = tcp(server, "POST", path, &[], body.to_string().as_bytes());
    assert_eq!(status, 200, "{text}");
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    events.map(|event| event["prompt_progress"].clone()).filter(|progress| !progress.is_null()).collect()
}

#[test]
fn a_stream_reports_how_much_of_the_prompt_is_evaluated() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "-b", "32", "--chat-template", "plain"]);
    let text = "steel and rivers ".repeat(60);
    let completion = json!({ "prompt": text, "max_tokens": 2, "return_progress": true });
    let first = reports(&server, "/v1/completions", completion.clone());
    let total = first[0]["total"].as_u64().expect("a count");
    let processed = |reports: &[Value]| {
        reports.iter().filter_map(|report| report["processed"].as_u64()).collect::<Vec<_>>()
    };
    assert!(first.len() as u64 >= total / 32, "{first:?}");
    assert!(processed(&first).is_sorted_by(|one, next| one < next), "{first:?}");
    assert_eq!((processed(&first).last(), &first[0]["cache"]), (Some(&total), &json!(0)));
    // The second request evaluates only the end of the prompt.
    let second = reports(&server, "/v1/completions", completion.clone());
    assert!(second.len() == 1 && second[0]["cache"].as_u64() > Some(total / 2), "{second:?}");
    // No reports are sent unless the request asks for them.
    let mut silent = completion;
    silent["return_progress"] = false.into();
    assert_eq!(reports(&server, "/v1/completions", silent), [] as [Value; 0]);

    let message = |text: &str| json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 2, "return_progress": true });
    let input = json!({ "input": text.to_uppercase(), "max_output_tokens": 2, "return_progress": true });
    assert!(reports(&server, "/v1/chat/completions", message(&text)).len() > 1);
    assert!(reports(&server, "/v1/messages", message(&text.replace('e', "o"))).len() > 1);
    assert!(reports(&server, "/v1/responses", input).len() > 1);
    let line = json!({ "prompt": "rivers and steel ".repeat(60), "max_tokens": 1, "stream": true, "return_progress": true });
    let mut lines = server.connect();
    lines.send(line.to_string().as_bytes());
    assert!(lines.next().expect("a line")["prompt_progress"]["processed"].as_u64() > Some(0));
}

#[test]
fn a_template_can_be_applied_without_generating() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "--chat-template", "chatml"]);
    let ask = |body: Value| {
        let (status, _, text) = tcp(&server, "POST", "/apply-template", &[], body.to_string().as_bytes());
        (status, serde_json::from_str::<Value>(&text).expect("JSON"))
    };
    let (status, answer) = ask(json!({ "messages": [{ "role": "user", "content": "hi" }] }));
    let expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!((status, &answer["prompt"]), (200, &json!(expected)), "{answer}");
    let (_, answer) = ask(json!({
        "messages": [{ "role": "user", "content": "hi" }, { "role": "assistant", "content": "Good" }],
        "add_generation_prompt": false,
    }));
    let expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nGood<|im_end|>\n";
    assert_eq!(answer["prompt"], expected, "{answer}");
    let (status, answer) = ask(json!({ "messages": [] }));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("messages")), "{answer}");
}
