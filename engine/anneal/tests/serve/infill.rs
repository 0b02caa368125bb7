//! Tests of `/infill` and of the field `suffix`, with a model of random weights whose vocabulary has the tokens of
//! Qwen2.5-Coder.

use gguf::synth::Preset;
use serde_json::{Value, json};

use crate::client::Server;
use crate::shapes::start;

const PREFIX: &str = "fn add(a: i32) -> i32 {\n    ";
const SUFFIX: &str = "\n}\n";

/// Returns the start of a greedy answer to `body` at `path`, as tokens.
fn tokens(server: &Server, path: &str, body: &Value) -> Value {
    let mut body = body.clone();
    let more = json!({ "max_tokens": 8, "temperature": 0, "ignore_eos": true, "return_tokens": true });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let (status, answer) = server.post(path, &body);
    assert_eq!(status, 200, "{answer}");
    answer["choices"][0]["tokens"].clone()
}

/// Names of special tokens in a prompt are converted to these tokens, so a prompt can be written as a text.
#[test]
fn the_gap_is_asked_for_in_the_order_of_the_training() {
    let server = start(Preset::FimTiny, &["--slots", "1"]);
    let plain =
        |text: &str| tokens(&server, "/v1/completions", &json!({ "prompt": text, "cache_prompt": false }));
    let infill = |body: Value| tokens(&server, "/infill", &body);
    let written = format!("<|fim_prefix|>{PREFIX}<|fim_suffix|>{SUFFIX}<|fim_middle|>");
    let expected = plain(&written);
    assert_eq!(
        infill(json!({ "input_prefix": PREFIX, "input_suffix": SUFFIX, "cache_prompt": false })),
        expected
    );
    assert_ne!(plain(PREFIX), expected, "the answer depends on the tokens around the texts");
    let body = json!({ "prompt": PREFIX, "suffix": SUFFIX, "cache_prompt": false });
    assert_eq!(tokens(&server, "/v1/completions", &body), expected);
    let begun =
        json!({ "input_prefix": PREFIX, "input_suffix": SUFFIX, "prompt": "a +", "cache_prompt": false });
    assert_eq!(infill(begun), plain(&format!("{written}a +")));
    let files = json!([{ "filename": "a.rs", "text": "mod b;" }, { "text": "// none" }]);
    let with_files = json!({ "input_prefix": PREFIX, "input_suffix": SUFFIX, "input_extra": files, "cache_prompt": false });
    let before =
        "<|repo_name|>project\n<|file_sep|>a.rs\nmod b;\n<|file_sep|>file\n// none\n<|file_sep|>file\n";
    assert_eq!(infill(with_files), plain(&format!("{before}{written}")));
}

/// The prompt has one token for each byte of a name, in addition to the tokens of the texts without the names.
#[test]
fn names_of_control_tokens_in_a_file_remain_text() {
    const NAME: &str = "<|fim_middle|>";
    let server = start(Preset::FimTiny, &[]);
    let count = |body: Value| {
        let (status, answer) = server.post("/infill", &body);
        assert_eq!(status, 200, "{answer}");
        answer["usage"]["prompt_tokens"].as_u64().expect("a number")
    };
    let with = |text: &str| {
        [
            json!({ "input_prefix": text, "n_predict": 0 }),
            json!({ "input_suffix": text, "n_predict": 0 }),
            json!({ "prompt": text, "n_predict": 0 }),
            json!({ "input_extra": [{ "text": text }], "n_predict": 0 }),
            json!({ "input_extra": [{ "filename": text, "text": "" }], "n_predict": 0 }),
        ]
    };
    for (plain, named) in with("a\n").into_iter().zip(with(&format!("a\n{NAME}"))) {
        let (shown, plain, named) = (named.to_string(), count(plain), count(named));
        assert!(named > plain + 5, "{shown}: {plain} and {named} tokens");
    }
}

#[test]
fn the_answer_has_the_text_under_both_names() {
    let server = start(Preset::FimTiny, &[]);
    let body = json!({
        "input_prefix": PREFIX, "input_suffix": SUFFIX, "n_predict": 6, "temperature": 0, "ignore_eos": true,
    });
    let (status, whole) = server.post("/infill", &body);
    assert_eq!((status, &whole["usage"]["completion_tokens"]), (200, &json!(6)), "{whole}");
    let text = whole["choices"][0]["text"].as_str().expect("a text");
    assert!(!text.is_empty() && whole["content"] == text, "{whole}");
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let parts = server.events("/infill", &streamed);
    let joined = |name: &dyn Fn(&Value) -> &Value| -> String {
        parts.iter().map(|part| name(part).as_str().expect("a text")).collect()
    };
    assert_eq!(
        (joined(&|part| &part["content"]), joined(&|part| &part["choices"][0]["text"])),
        (text.into(), text.into())
    );
    // Editors send requests for 0 tokens to fill the cache. `n_predict` overrides `max_tokens`.
    for (n_predict, max_tokens, expected) in [
        (json!(0), Value::Null, 0),
        (json!(0), json!(5), 0),
        (json!(5), json!(0), 5),
        (json!(5), json!(3), 5),
        (Value::Null, json!(0), 0),
        (Value::Null, json!(3), 3),
    ] {
        let mut warm = body.clone();
        warm["n_predict"] = n_predict;
        warm["max_tokens"] = max_tokens;
        let (status, answer) = server.post("/infill", &warm);
        assert_eq!(
            (status, &answer["usage"]["completion_tokens"]),
            (200, &json!(expected)),
            "{warm}: {answer}"
        );
        assert_eq!(answer["content"] == "", expected == 0, "{answer}");
    }
}

#[test]
fn what_cannot_be_filled_in_is_refused_in_words() {
    let server = start(Preset::FimTiny, &[]);
    let cases = [
        ("/infill", json!({ "input_extra": [{}] }), "input_extra[0].text: is missing"),
        ("/infill", json!({ "n_predict": "a" }), "n_predict: use a whole number"),
        ("/v1/completions", json!({ "prompt": [1], "suffix": "a" }), "suffix: needs a prompt that is a text"),
        (
            "/v1/completions",
            json!({ "prompt": "a", "suffix": "b", "echo": true }),
            "echo: cannot be used with suffix",
        ),
        ("/v1/completions", json!({ "prompt": "a", "suffix": 1 }), "suffix: use a string"),
    ];
    for (path, body, expected) in cases {
        let (status, answer) = server.post(path, &body);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.starts_with(expected), "{path}: {answer}");
    }
    // The first text is too long for any tokenizer, the second has too many tokens.
    for long in ["a b ".repeat(100_000), "~".repeat(5000)] {
        for (path, body, param) in [
            ("/infill", json!({ "input_prefix": long }), "input_prefix"),
            ("/infill", json!({ "input_suffix": long }), "input_prefix"),
            ("/v1/completions", json!({ "prompt": "a", "suffix": long }), "prompt"),
        ] {
            let (status, answer) = server.post(path, &body);
            assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{answer}");
        }
    }
    let plain = Server::start(&["--name", "smith"]);
    for (path, body) in [
        ("/infill", json!({ "input_prefix": "a", "input_suffix": "b" })),
        ("/v1/completions", json!({ "prompt": "a", "suffix": "b" })),
    ] {
        let (status, answer) = plain.post(path, &body);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(
            status == 400 && message.starts_with("the model \"smith\" cannot fill in the middle"),
            "{answer}"
        );
    }
}
