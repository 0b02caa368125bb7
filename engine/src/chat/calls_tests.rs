use super::*;
use CallFormat::{Hermes, Llama, Mistral};

/// Text as it is, a call as `name(arguments)`.
fn shown(parts: Vec<Part>) -> Vec<String> {
    let mut shown: Vec<String> = Vec::new();
    let mut texts = false;
    for part in parts {
        match part {
            Part::Text(text) if std::mem::replace(&mut texts, true) => {
                shown.last_mut().expect("there is one").push_str(&text);
            }
            Part::Text(text) => shown.push(text),
            Part::Call(name) => shown.push(format!("{name}(")),
            Part::Arguments(json) => shown.last_mut().expect("a call").push_str(&format!("{json})")),
        }
        texts = texts && !shown.last().is_some_and(|last| last.ends_with(['(', ')']));
    }
    shown
}

fn read(format: CallFormat, text: &str, piece: usize) -> Vec<String> {
    let mut reader = CallReader::new(format, vec!["f".to_string(), "get_heat".to_string()]);
    let characters: Vec<char> = text.chars().collect();
    let mut parts = Vec::new();
    for piece in characters.chunks(piece) {
        parts.extend(reader.push(&piece.iter().collect::<String>()));
    }
    parts.extend(reader.finish());
    shown(parts)
}

#[test]
fn calls_are_found_wherever_pieces_end() {
    let cases: [(CallFormat, &str, &[&str]); 37] = [
        (Hermes, "", &[]),
        (Hermes, "Only text. ", &["Only text. "]),
        (Hermes, " \n", &[" \n"]),
        (
            Hermes,
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": [\"é\"]}}\n</tool_call>",
            &["f({\"b\":1,\"a\":[\"é\"]})"],
        ),
        (
            Hermes,
            "Look: \n<tool_call>{\"name\":\"f\"}</tool_call>\n<tool_call>{\"name\":\"get_heat\",\"arguments\":{}}</tool_call>\n",
            &["Look:", "f({})", "get_heat({})"],
        ),
        (Hermes, "<tool_call>{\"name\":\"f\"}</tool_call> and on", &["f({})", " and on"]),
        // Its end is missing: the model's end of text came in its place.
        (Hermes, "<tool_call>{\"name\":\"f\"}", &["f({})"]),
        (Hermes, "<tool_call>{\"name\":\"f\"", &["<tool_call>{\"name\":\"f\""]),
        (
            Hermes,
            "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"</tool_call>\"}}</tool_call>",
            &["f({\"a\":\"</tool_call>\"})"],
        ),
        (Hermes, "<tool_call>{\"name\":\"g\"}</tool_call>", &["<tool_call>{\"name\":\"g\"}</tool_call>"]),
        (Hermes, "<tool_call>{\"name\":1}</tool_call>", &["<tool_call>{\"name\":1}</tool_call>"]),
        (Hermes, "<tool_call>[]</tool_call>", &["<tool_call>[]</tool_call>"]),
        (Hermes, "<tool_call></tool_call>", &["<tool_call></tool_call>"]),
        (
            Hermes,
            "<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>",
            &["<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>"],
        ),
        (
            Hermes,
            "<tool_call>nonsense</tool_call><tool_call>{\"name\":\"f\"}</tool_call>",
            &["<tool_call>nonsense</tool_call>", "f({})"],
        ),
        (Hermes, "a < b, <tool>, <tool_cal", &["a < b, <tool>, <tool_cal"]),
        (
            Hermes,
            "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}</tool_call>",
            &["f({\"a\": 1})"],
        ),
        (Hermes, "<tool_call>漢字🙂", &["<tool_call>漢字🙂"]),
        (Hermes, "{\"name\":\"f\"}", &["{\"name\":\"f\"}"]),
        (Llama, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", &["f({\"a\":1})"]),
        (Llama, " \n{\"name\": \"f\", \"parameters\": {}}\n", &["f({})"]),
        (
            Llama,
            "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"get_heat\", \"parameters\": {}}",
            &["f({})", "get_heat({})"],
        ),
        (Llama, "Well. <|python_tag|>{\"name\": \"f\", \"parameters\": {}}", &["Well.", "f({})"]),
        (Llama, "<|python_tag|>print(1)", &["<|python_tag|>print(1)"]),
        (Llama, "{\"name\": \"g\", \"parameters\": {}}", &["{\"name\": \"g\", \"parameters\": {}}"]),
        (
            Llama,
            "{\"name\": \"f\", \"parameters\": {}} is a call",
            &["{\"name\": \"f\", \"parameters\": {}} is a call"],
        ),
        (Llama, "{ is a brace", &["{ is a brace"]),
        (Llama, "Say {\"name\": \"f\"}", &["Say {\"name\": \"f\"}"]),
        (
            Mistral,
            "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"123456789\"}, {\"name\": \"f\"}]",
            &["f({\"a\":1})", "f({})"],
        ),
        (Mistral, "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]get_heat{}", &["f({\"a\":1})", "get_heat({})"]),
        (Mistral, "[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{}", &["f({})"]),
        (Mistral, "Text\n[TOOL_CALLS][{\"name\":\"f\"}]", &["Text", "f({})"]),
        (Mistral, "[TOOL_CALLS]", &["[TOOL_CALLS]"]),
        (Mistral, "[TOOL_CALLS][]", &["[TOOL_CALLS][]"]),
        (Mistral, "[TOOL_CALLS]f[CALL_ID]1", &["[TOOL_CALLS]f[CALL_ID]1"]),
        (Mistral, "[TOOL_CALLS][{\"name\":\"f\"}, 7]", &["[TOOL_CALLS][{\"name\":\"f\"}, 7]"]),
        (Mistral, "[TOOL_CALL] and [", &["[TOOL_CALL] and ["]),
    ];
    for (format, text, expected) in cases {
        for piece in [1, 2, 7, usize::MAX] {
            assert_eq!(read(format, text, piece), expected, "{format:?} {text:?} in pieces of {piece}");
        }
    }
}

#[test]
fn hostile_text_stays_text_and_is_no_work() {
    let deep = format!("{{\"name\":\"f\",\"arguments\":{}", "{\"a\":".repeat(50_000));
    let ends = format!("<tool_call>{{\"name\":\"f\",\"arguments\":\"{}", "</tool_call>".repeat(50_000));
    let begins = "<tool_call>".repeat(20_000);
    let open = format!("<tool_call>\"{}", "x".repeat(1 << 20));
    for (format, text) in [
        (Hermes, format!("<tool_call>{deep}</tool_call>")),
        (Llama, deep.clone()),
        (Mistral, format!("[TOOL_CALLS][{deep}")),
        (Mistral, format!("[TOOL_CALLS]{}", "[".repeat(50_000))),
        (Hermes, ends),
        (Hermes, begins),
        (Hermes, open),
    ] {
        assert_eq!(read(format, &text, 4096).concat(), text);
    }
    let all = read(Llama, &"{\"name\":\"f\"};".repeat(5000), usize::MAX);
    assert_eq!(all.len(), 5000);
}

#[test]
fn a_template_tells_its_format() {
    let family = |name: &str| {
        let path = format!("{}/tests/chat/families/{name}.jinja", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let cases = [
        (family("qwen2"), Some(Hermes)),
        (family("mistral"), Some(Mistral)),
        (family("gemma"), None),
        ("{{- '<|python_tag|>' + tool_call.name }}".to_string(), Some(Llama)),
        (
            "'Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name and its value}.'"
                .to_string(),
            Some(Llama),
        ),
        (String::new(), None),
    ];
    for (source, expected) in cases {
        assert_eq!(CallFormat::of_template(&source), expected, "{source}");
    }
}
