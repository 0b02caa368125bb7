use Family::{Glm, Hermes, Lfm, Llama, Mistral, QwenCoder};

use super::format::CallForm;
use super::*;
use crate::part::{Offered, Part};

/// Families of models whose format can be recognised by markers in the template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Hermes,
    QwenCoder,
    Glm,
    Llama,
    Mistral,
    Lfm,
}

impl Family {
    fn format(self) -> CallFormat {
        let source = match self {
            Hermes => "<tool_call>",
            QwenCoder => "<tool_call><function=<parameter=",
            Glm => "<tool_call><arg_key><arg_value>",
            Llama => "<|python_tag|>",
            Mistral => "[TOOL_CALLS]",
            Lfm => "<|tool_call_start|>",
        };
        CallFormat::of_template(source).expect("a known mark")
    }
}

/// Formats text unchanged, and a call as `name(arguments)`.
fn shown(parts: Vec<Part>) -> Vec<String> {
    let mut shown: Vec<(bool, String)> = Vec::new();
    for part in parts {
        match (part, shown.last_mut()) {
            (Part::Text(text), Some((false, last))) | (Part::Arguments(text), Some((true, last))) => {
                last.push_str(&text);
            }
            (Part::Text(text), _) => shown.push((false, text)),
            (Part::Call(name), _) => shown.push((true, format!("{name}("))),
            (part, _) => panic!("a reader of calls found {part:?}"),
        }
    }
    shown.into_iter().map(|(is_call, text)| if is_call { text + ")" } else { text }).collect()
}

fn read(family: Family, text: &str, piece: usize) -> Vec<String> {
    read_with(&family.format(), text, piece)
}

fn read_with(format: &CallFormat, text: &str, piece: usize) -> Vec<String> {
    let parameters = serde_json::json!({ "properties": {
        "text": { "type": "string" }, "n": { "type": "integer" }, "list": { "type": "array" },
    }});
    let offered = |name: &str, parameters: Option<&serde_json::Value>| Offered {
        name: name.to_string(),
        parameters: parameters.and_then(|schema| schema.as_object().cloned()),
    };
    let mut reader =
        CallReader::new(format.clone(), vec![offered("f", Some(&parameters)), offered("get_heat", None)]);
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
    let cases: &[(Family, &str, &[&str])] = &[
        (Hermes, "", &[]),
        (Hermes, "Only text. ", &["Only text. "]),
        (Hermes, " \n", &[" \n"]),
        (
            Hermes,
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": [\"é\"]}}\n</tool_call>",
            &["f({\"b\": 1, \"a\": [\"é\"]})"],
        ),
        (
            Hermes,
            "Look: \n<tool_call>{\"name\":\"f\"}</tool_call>\n<tool_call>{\"name\":\"get_heat\",\"arguments\":{}}</tool_call>\n",
            &["Look:", "f({})", "get_heat({})"],
        ),
        (Hermes, "<tool_call>{\"name\":\"f\"}</tool_call> and on", &["f({})", " and on"]),
        // A closing marker or brace is missing because the model ended its answer.
        (Hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{}", &["f({})"]),
        (
            Hermes,
            "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": 1</tool_call> and",
            &["f({\"a\": 1)", " and"],
        ),
        // The arguments arrive before the name, or after other keys.
        (Hermes, "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>", &["f({\"a\": 1})"]),
        (
            Hermes,
            "<tool_call>{\"id\": \"1\", \"name\": \"f\", \"arguments\": {}, \"x\": [{}]}</tool_call>",
            &["f({})"],
        ),
        (Hermes, "<tool_call>{\"name\":\"f\"}, </tool_call>", &["f({})"]),
        (Hermes, "<tool_call>{\"name\":\"f\"}, </tool>", &["f({})", ", </tool>"]),
        (Hermes, "<tool_call>{\"name\":\"f\"}</tool_call>] [", &["f({})", "] ["]),
        // A list of calls, and calls without white space or with separators between them.
        (
            Hermes,
            "<tool_call>[{\"name\":\"f\"}, {\"name\":\"get_heat\"}]</tool_call>",
            &["f({})", "get_heat({})"],
        ),
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
        // The opening marker is missing.
        (Hermes, "{\"name\":\"f\"}", &["f({})"]),
        (Hermes, "{\"name\":\"f\"}\n</tool_call>", &["f({})"]),
        (Hermes, "{\"name\":\"g\"}", &["{\"name\":\"g\"}"]),
        (Hermes, "{\"city\": \"f\", \"name\": \"f\"}", &["{\"city\": \"f\", \"name\": \"f\"}"]),
        (Hermes, "Say {\"name\":\"f\"}", &["Say {\"name\":\"f\"}"]),
        (Llama, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", &["f({\"a\": 1})"]),
        (Llama, " \n{\"name\": \"f\", \"parameters\": {}}\n", &["f({})"]),
        (
            Llama,
            "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"get_heat\", \"parameters\": {}}",
            &["f({})", "get_heat({})"],
        ),
        (Llama, "Well. <|python_tag|>{\"name\": \"f\", \"parameters\": {}}", &["Well.", "f({})"]),
        (Llama, "<|python_tag|>print(1)", &["<|python_tag|>print(1)"]),
        (Llama, "{\"name\": \"g\", \"parameters\": {}}", &["{\"name\": \"g\", \"parameters\": {}}"]),
        (Llama, "{\"name\": \"f\", \"parameters\": {}} is a call", &["f({})", " is a call"]),
        (Llama, "{ is a brace", &["{ is a brace"]),
        (Llama, "Say {\"name\": \"f\"}", &["Say {\"name\": \"f\"}"]),
        (
            Mistral,
            "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"123456789\"}, {\"name\": \"f\"}]",
            &["f({\"a\": 1})", "f({})"],
        ),
        (Mistral, "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]get_heat{}", &["f({\"a\": 1})", "get_heat({})"]),
        (Mistral, "[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{}", &["f({})"]),
        (Mistral, "Text\n[TOOL_CALLS][{\"name\":\"f\"}]", &["Text", "f({})"]),
        (Mistral, "[TOOL_CALLS]", &["[TOOL_CALLS]"]),
        (Mistral, "[TOOL_CALLS][]", &["[TOOL_CALLS][]"]),
        (Mistral, "[TOOL_CALLS]f[CALL_ID]1", &["[TOOL_CALLS]f[CALL_ID]1"]),
        (Mistral, "[TOOL_CALLS][{\"name\":\"f\"}, 7]", &["f({})", ", 7]"]),
        (Mistral, "[TOOL_CALL] and [", &["[TOOL_CALL] and ["]),
        // Numbers with many digits keep all digits.
        (
            Hermes,
            "<tool_call>{\"name\":\"f\",\"arguments\":{\"id\":12345678901234567890123,\"x\":1.10}}</tool_call>",
            &["f({\"id\":12345678901234567890123,\"x\":1.10})"],
        ),
        (
            Llama,
            "{\"name\":\"f\",\"parameters\":{\"id\":12345678901234567890123}}",
            &["f({\"id\":12345678901234567890123})"],
        ),
        (
            Mistral,
            "[TOOL_CALLS]f[ARGS]{\"id\":12345678901234567890123}",
            &["f({\"id\":12345678901234567890123})"],
        ),
        (Hermes, "<tool_call>[\"f\", {}, null]</tool_call>", &["<tool_call>[\"f\", {}, null]</tool_call>"]),
        // White space before a block that is not a call is kept.
        (Hermes, "Look: \n\n<tool_call>no</tool_call>", &["Look: \n\n<tool_call>no</tool_call>"]),
        (Hermes, " \n<tool_call>no", &[" \n<tool_call>no"]),
        (Llama, "Well. \n<|python_tag|>print(1)", &["Well. \n<|python_tag|>print(1)"]),
        (Mistral, "a \n [TOOL_CALLS]", &["a \n [TOOL_CALLS]"]),
        (Hermes, "a \n b\n\n", &["a \n b\n\n"]),
        (Hermes, " \n <tool_call>{\"name\":\"f\"}</tool_call>", &["f({})"]),
        (
            QwenCoder,
            "I look.\n<tool_call>\n<function=f>\n<parameter=text>\n7\n\n</parameter>\n<parameter=n>\n12345678901234567890123\n</parameter>\n</function>\n</tool_call>",
            &["I look.", "f({\"text\": \"7\\n\", \"n\": 12345678901234567890123})"],
        ),
        (
            QwenCoder,
            "<tool_call>\n<function=get_heat>\n</function>\n</tool_call>\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
            &["get_heat({})", "f({})"],
        ),
        (
            QwenCoder,
            "<tool_call><function=f><parameter=text></tool_call></parameter></function></tool_call>",
            &["f({\"text\": \"</tool_call>\"})"],
        ),
        (
            QwenCoder,
            "<tool_call><function=f><parameter=a>[1, {\"b\": True}]</parameter></function></tool_call>",
            &["f({\"a\": \"[1, {\\\"b\\\": True}]\"})"],
        ),
        (QwenCoder, "<tool_call><function=f></function>", &["f({})"]),
        (QwenCoder, "<tool_call><function=f>", &["<tool_call><function=f>"]),
        (
            QwenCoder,
            "<tool_call><function=g></function></tool_call>",
            &["<tool_call><function=g></function></tool_call>"],
        ),
        (QwenCoder, "<tool_call>{\"name\":\"f\"}</tool_call>", &["<tool_call>{\"name\":\"f\"}</tool_call>"]),
        (
            QwenCoder,
            "<tool_call><function=f></function> more</tool_call>",
            &["<tool_call><function=f></function> more</tool_call>"],
        ),
        (
            Glm,
            "So.\n<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>Linz</arg_value>\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
            &["So.", "f({\"text\": \"Linz\", \"n\": 3})"],
        ),
        (Glm, "<tool_call>get_heat</tool_call><tool_call>f\n</tool_call>", &["get_heat({})", "f({})"]),
        // Without a closing marker, the name may be incomplete, so the text is not a call.
        (Glm, "<tool_call>f", &["<tool_call>f"]),
        (
            Glm,
            "<tool_call>f<arg_key>a</arg_key><arg_value>{\"b\": 1}</arg_value>",
            &["f({\"a\": {\"b\": 1}})"],
        ),
        (
            Glm,
            "<tool_call>f<arg_key>a</arg_key></tool_call>",
            &["<tool_call>f<arg_key>a</arg_key></tool_call>"],
        ),
        (Glm, "<tool_call>g</tool_call>", &["<tool_call>g</tool_call>"]),
    ];
    for &(format, text, expected) in cases {
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
        (Mistral, format!("[TOOL_CALLS]{}", "[".repeat(50_000))),
        (Hermes, ends),
        (Hermes, begins),
        (Hermes, open),
        (Hermes, "<tool_call>{\"".repeat(50_000)),
        (Hermes, format!("<tool_call>{{{}", "\"a\":1,".repeat(50_000))),
        // Each piece is searched once, without the white space before it.
        (Hermes, format!("a{}", " ".repeat(1 << 20))),
        (Llama, "\n".repeat(1 << 20)),
        (Mistral, format!("[TOOL_CALLS]x{}", " ".repeat(1 << 20))),
        (Glm, format!("<tool_call>f{}", "<arg_key>".repeat(50_000))),
    ] {
        assert_eq!(read(format, &text, 4096).concat(), text);
    }
    // The value of an argument has no end.
    for value in ["<parameter=a>", "</tool_call>"] {
        let text = value.repeat(50_000);
        let read = read(QwenCoder, &format!("<tool_call><function=f><parameter=a>{text}"), 4096);
        assert_eq!(read, [format!("f({{\"a\": \"{text})")]);
    }
    // Arguments are emitted as they arrive.
    for (family, text) in [
        (Hermes, format!("<tool_call>{deep}")),
        (Llama, deep.clone()),
        (Mistral, format!("[TOOL_CALLS][{deep}")),
        (Mistral, format!("[TOOL_CALLS]f{}", "{\"a\":".repeat(50_000))),
    ] {
        assert_eq!(read(family, &text, 4096), [format!("f({})", "{\"a\":".repeat(50_000))]);
    }
    let all = read(Llama, &"{\"name\":\"f\"};".repeat(5000), usize::MAX);
    assert_eq!(all.len(), 5000);
    let blank = " ".repeat(1 << 20);
    let all = read(Llama, &format!("{}{blank}", "{\"name\":\"f\"};".repeat(5000)), usize::MAX);
    assert_eq!(all.len(), 5000);
    // The text arrives token by token.
    let text = format!("a{}b", "\n".repeat(100_000));
    assert_eq!(read(Hermes, &text, 1).concat(), text);
}

#[test]
fn a_template_tells_its_format() {
    let family = |name: &str| {
        let path = format!("{}/../anneal/tests/chat/families/{name}.jinja", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let cases = [
        (family("qwen2"), Some(Hermes.format())),
        (family("mistral"), Some(Mistral.format())),
        (family("gemma"), None),
        ("{{- '<|python_tag|>' + tool_call.name }}".to_string(), Some(Llama.format())),
        (
            "'Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name and its value}.'"
                .to_string(),
            Some(CallFormat::json("", "", "parameters")),
        ),
        (
            "'<tool_call>\n<function=' + call.name + '>' + '<parameter=' + name + '>'".to_string(),
            Some(QwenCoder.format()),
        ),
        (
            "{{ '<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>".to_string(),
            Some(Glm.format()),
        ),
        ("{{ '<tool_call>' + call | tojson + '</tool_call>' }}".to_string(), Some(Hermes.format())),
        (String::new(), None),
    ];
    for (source, expected) in cases {
        assert_eq!(CallFormat::of_template(&source), expected, "{source}");
    }
}

#[test]
fn a_function_without_the_opening_mark_of_its_block_is_a_call() {
    let call = "<function=f>\n<parameter=text>\nls </function> -l\n</parameter>\n</function>";
    let expected = r#"f({"text": "ls </function> -l"})"#;
    for (text, expected) in [
        (format!("{call}\n</tool_call>"), vec![expected]),
        (call.to_string(), vec![expected]),
        (format!("I look.\n\n{call}\n</tool_call>\n\nDone."), vec!["I look.", expected, "\n\nDone."]),
        (format!("{call}\n</tool_call>\n{call}\n</tool_call>"), vec![expected, expected]),
        (format!("{call}\n<tool_call>\n{call}\n</tool_call>"), vec![expected, expected]),
        // A function that was not offered, a part of a function, and ordinary text.
        ("<function=g></function>".to_string(), vec!["<function=g></function>"]),
        ("a <function=f> b".to_string(), vec!["a <function=f> b"]),
        ("a < b <funct".to_string(), vec!["a < b <funct"]),
    ] {
        for piece in [1, 2, 7, 1000] {
            assert_eq!(read(QwenCoder, &text, piece), expected, "{text:?} in pieces of {piece}");
        }
    }
}

#[test]
fn brackets_in_strings_do_not_end_python_calls() {
    for (call, expected) in [
        (r#"[f(text="a[f(1)]")]"#, r#"f({"text": "a[f(1)]"})"#),
        (r#"[f(a={"x": ["(1)]"]})]"#, r#"f({"a": {"x": ["(1)]"]}})"#),
        (r#"[f(a=[[1], "]", (2)], text=')]')]"#, r#"f({"a": [[1], "]", [2]], "text": ")]"})"#),
        (r#"[f(text="\")]")]"#, r#"f({"text": "\")]"})"#),
        ("[f(text=it's [1] of 2)]", r#"f({"text": "it's [1] of 2"})"#),
        // An apostrophe may begin a text without quotes.
        ("[f(text='tis [1] of 2)]", r#"f({"text": "'tis [1] of 2"})"#),
    ] {
        for text in [call.to_string(), format!("<|tool_call_start|>{call}<|tool_call_end|>")] {
            for piece in [1, 2, 5, usize::MAX] {
                assert_eq!(read(Lfm, &text, piece), [expected], "{text:?} in pieces of {piece}");
            }
        }
    }
}

/// Each piece is searched once: the quadratic work of searching all earlier white space would take many minutes.
#[test]
fn white_space_around_calls_is_searched_once() {
    let blank = " \n".repeat(1 << 20);
    for (family, text, expected) in [
        (Hermes, format!("<tool_call>{{\"name\":\"f\"}}{blank}</tool_call>{blank}"), "f({})"),
        (Hermes, format!("<tool_call>{{\"name\":\"f\",\"arguments\":{{}}{blank}}}{blank}"), "f({})"),
        (Llama, format!("{{\"name\":\"f\"}};{blank}"), "f({})"),
        (Mistral, format!("[TOOL_CALLS]f{{}}{blank}"), "f({})"),
        (Lfm, format!("<|tool_call_start|>[f()]{blank}<|tool_call_end|>{blank}"), "f({})"),
    ] {
        // The texts are too long for a message.
        assert!(read(family, &text, 16) == [expected], "{family:?}");
    }
}

#[test]
fn arguments_that_were_cut_off_stay_open() {
    let cases = [
        (QwenCoder, "<tool_call><function=f><parameter=text>\nab</par", r#"f({"text": "ab)"#),
        (QwenCoder, "<tool_call><function=f><parameter=n>1", r#"f({"n": 1)"#),
        (QwenCoder, "<tool_call><function=f><parameter=n>1</parameter><parameter=te", r#"f({"n": 1)"#),
        (QwenCoder, "<tool_call><function=f><parameter=n>1</parameter><param", r#"f({"n": 1)"#),
        (Glm, "<tool_call>f<arg_key>text</arg_key><arg_value>Li", r#"f({"text": "Li)"#),
        (Glm, "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value><arg_key>te", r#"f({"n": 1)"#),
        (Lfm, "<|tool_call_start|>[f(text=\"ab, c", r#"f({"text": "ab, c)"#),
        (Lfm, "<|tool_call_start|>[f(text='a\\'b\\x4", r#"f({"text": "a'b\\x4)"#),
        (Lfm, "<|tool_call_start|>[f(n=1, list=[1, 2", r#"f({"n": 1, "list": )"#),
        (Lfm, "<|tool_call_start|>[f(n=1, te", r#"f({"n": 1)"#),
        (Lfm, "<|tool_call_start|>[get_heat(), f(text=\"ab", r#"f({"text": "ab)"#),
        // A list or an object without an end, and a part of a number or a constant, are left out.
        (QwenCoder, "<tool_call><function=f><parameter=list>[1, 2</par", r#"f({"list": )"#),
        (QwenCoder, "<tool_call><function=f><parameter=a>{\"b\": 1", r#"f({"a": )"#),
        (QwenCoder, "<tool_call><function=f><parameter=n>-", r#"f({"n": )"#),
        (QwenCoder, "<tool_call><function=f><parameter=text>[1, 2", r#"f({"text": "[1, 2)"#),
        (QwenCoder, "<tool_call><function=f><parameter=n>1</parameter><", r#"f({"n": 1)"#),
    ];
    for (family, text, expected) in cases {
        for piece in [1, 3, usize::MAX] {
            let calls = read(family, text, piece);
            assert_eq!(calls.last().map(String::as_str), Some(expected), "{text:?} in pieces of {piece}");
        }
    }
}

#[test]
fn a_call_may_be_cut_off_inside_its_closing_markers() {
    let marked =
        CallForm::Named { open: "call:".to_string(), after_name: None, quote: Some("<|>".to_string()) };
    let marked = CallFormat::new(vec!["<|call>".to_string()], vec!["<call|>".to_string()], marked);
    for (format, call, closing, expected) in [
        (
            QwenCoder.format(),
            "<tool_call><function=f><parameter=n>1</parameter>",
            "</function></tool_call>",
            r#"f({"n": 1})"#,
        ),
        (QwenCoder.format(), "<tool_call><function=get_heat>", "</function></tool_call>", "get_heat({})"),
        (
            Glm.format(),
            "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value>",
            "</tool_call>",
            r#"f({"n": 1})"#,
        ),
        (Glm.format(), "<tool_call>get_heat", "</tool_call>", "get_heat({})"),
        (Lfm.format(), "<|tool_call_start|>[f(n=1)", "]<|tool_call_end|>", r#"f({"n": 1})"#),
        (Hermes.format(), "<tool_call>{\"name\":\"f\",\"arguments\":{}", "}</tool_call>", "f({})"),
        (marked, "<|call>call:f{n:1}", "<call|>", r#"f({"n": 1})"#),
    ] {
        // After `<`, a further argument may follow.
        for length in 2..=closing.len() {
            for piece in [1, 3, usize::MAX] {
                let text = format!("{call}{}", &closing[..length]);
                assert_eq!(read_with(&format, &text, piece), [expected], "{text:?} in pieces of {piece}");
            }
        }
    }
}

#[test]
fn invalid_escapes_stay_in_strings() {
    for (written, expected) in [
        (r"\x4g", r#""\\x4g""#),
        (r"\u00e9", r#""é""#),
        (r"\u+123", r#""\\u+123""#),
        (r"\u12é", r#""\\u12é""#),
        (r"\q\n", r#""\\q\n""#),
        (r"a\\", r#""a\\""#),
    ] {
        let call = format!("<|tool_call_start|>[f(text=\"{written}\")]<|tool_call_end|>");
        assert_eq!(read(Lfm, &call, usize::MAX), [format!("f({{\"text\": {expected}}})")], "{written}");
    }
}

#[test]
fn objects_with_marked_strings_may_be_cut_off() {
    let function = Offered { name: "f".to_string(), parameters: None };
    for (text, expected) in [
        ("{a:<|>x<|>,b:2}", "f({\"a\": \"x\", \"b\": 2})"),
        ("{a:<|>x<|", "f({\"a\": \"x)"),
        ("{a:<|>x<|>", "f({\"a\": \"x\")"),
        ("{a:<|>x<|>,b", "f({\"a\": \"x\")"),
        ("{a:{b:<|>x", "f({\"a\": )"),
        ("{", "f({)"),
    ] {
        let read = |is_over| python::object(text, is_over, Some("<|>"), |_, value| value);
        let call = read(true).map(|(arguments, _)| shown(arguments.call(&function)));
        assert_eq!(call, Some(vec![expected.to_string()]), "{text}");
        assert_eq!(read(false).is_some(), text.ends_with('}'), "{text}");
    }
}
