use super::*;

const TOOL: &str = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>";

fn offered() -> Vec<Offered> {
    vec![Offered { name: "add".to_string(), parameters: None }]
}

/// Reads `answer` in pieces of `piece` characters. Thoughts appear in parentheses, calls in brackets.
fn read(mut reader: ChannelReader, answer: &str, piece: usize) -> String {
    let characters: Vec<char> = answer.chars().collect();
    let mut parts = Vec::new();
    for piece in characters.chunks(piece) {
        parts.extend(reader.push(&piece.iter().collect::<String>()));
    }
    parts.extend(reader.finish());
    let mut shown: Vec<(char, String)> = Vec::new();
    for part in parts {
        let (kind, text) = match part {
            Part::Thought(text) => ('(', text),
            Part::Text(text) => ('t', text),
            Part::Call(name) => ('[', name),
            Part::Arguments(json) => ('a', json),
        };
        match shown.last_mut() {
            Some((last, before)) if *last == kind && kind != '[' => before.push_str(&text),
            _ => shown.push((kind, text)),
        }
    }
    let shown = shown.into_iter().map(|(kind, text)| match kind {
        '(' => format!("({text})"),
        '[' => format!("[{text}"),
        'a' => format!(" {text}]"),
        _ => text,
    });
    shown.collect()
}

fn check(cases: &[(&str, &str, &str)]) {
    for &(prompt, answer, expected) in cases {
        for piece in [1, 2, 5, 100, usize::MAX] {
            let reader = ChannelReader::new(prompt).offering(offered());
            assert_eq!(read(reader, answer, piece), expected, "{answer:?} in pieces of {piece}");
        }
    }
}

#[test]
fn channels_are_told_apart() {
    let prompt = "<|start|>user<|message|>hi<|end|><|start|>assistant";
    check(&[
        (
            prompt,
            "<|channel|>analysis<|message|>two plus\ntwo<|end|><|start|>assistant<|channel|>final<|message|>Four.<|return|>",
            "(two plus\ntwo)Four.",
        ),
        // The end token is not a part of the text.
        (prompt, "<|channel|>final<|message|>Four.", "Four."),
        (
            prompt,
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>",
            "(a\n\nb)",
        ),
        // A remark before the answer.
        (
            prompt,
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>Four",
            "I look.\n\nFour",
        ),
        (prompt, "<|channel|>commentary to=assistant<|channel|>analysis<|message|>a<|end|>", "(a)"),
        (prompt, "<|channel|>final <|constrain|>json<|message|>{\"a\":1}", "{\"a\":1}"),
        // Markers are missing.
        (prompt, "<|channel|>analysis<|message|>a<|channel|>final<|message|>Four", "(a)Four"),
        (
            prompt,
            "<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>Four",
            "(a)Four",
        ),
        (prompt, "Four <|b", "Four <|b"),
        (prompt, "<|message|>Four", "Four"),
        (prompt, " \n", ""),
        // The answer was cut off.
        (prompt, "<|channel|>analysis<|message|>two <|en", "(two <|en)"),
        (prompt, "<|channel|>analysis<|message|>two<|end|><|start|>assistant<|chan", "(two)"),
        (prompt, "<|channel|>anal", ""),
        // The prompt ends within the answer.
        ("<|start|>assistant<|channel|>final<|message|>", "Four", "Four"),
        ("<|start|>assistant<|channel|>final<|message|>Two and <|", "two", "two"),
        (
            "<|start|>assistant<|channel|>analysis<|message|>",
            "two<|end|><|start|>assistant<|channel|>final<|message|>Four",
            "(two)Four",
        ),
    ]);
}

#[test]
fn calls_have_a_recipient() {
    let call = |arguments: &str| format!("{TOOL}{arguments}<|call|>");
    let in_role =
        "<|start|>assistant to=functions.add<|channel|>commentary <|constrain|>json<|message|>{}<|call|>";
    check(&[
        ("", &call("{\"a\": 1}"), "[add {\"a\": 1}]"),
        ("", &call(" {\"a\": \"é<|\"}\n"), "[add {\"a\": \"é<|\"}]"),
        ("", &call(""), "[add {}]"),
        // The end token is not a part of the text.
        ("", &format!("{TOOL}{{}}"), "[add {}]"),
        ("", in_role, "[add {}]"),
        ("", &in_role["<|start|>assistant".len()..], "[add {}]"),
        ("", "<|channel|>analysis to=functions.add<|message|>{}<|call|>", "[add {}]"),
        ("", "<|channel|>commentary to=add<|message|>{}<|call|>", "[add {}]"),
        (
            "",
            &format!(
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant{}<|start|>assistant{}",
                call("{}"),
                call("{\"b\":2}")
            ),
            "(hm)[add {}][add {\"b\":2}]",
        ),
        (
            "",
            &format!("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{}", call("{}")),
            "I look.[add {}]",
        ),
        // Text within thoughts is never a call.
        ("", "<|channel|>analysis<|message|>to=functions.add {}<|end|>", "(to=functions.add {})"),
        // Invalid arguments, and arguments that were cut off.
        ("", &call("{\"a\":"), "[add {\"a\":]"),
        ("", &call("{\"a\": x} and"), "[add {\"a\": x}]"),
        ("", &format!("{TOOL}{{\"a\":"), "[add {\"a\":]"),
        ("", &format!("{TOOL}{{\"a\": \"<|"), "[add {\"a\": \"<|]"),
        ("", &format!("{TOOL}\n"), "[add {}]"),
        ("", &format!("{TOOL}{{\"a\":<|start|>assistant{}", call("{}")), "[add {\"a\":][add {}]"),
        ("", &call("[1]"), &call("[1]")),
        ("", &format!("{TOOL} <|x"), &format!("{TOOL} <|x")),
        // Functions that were not offered.
        (
            "",
            "<|channel|>commentary to=functions.sub<|message|>{}<|call|>",
            "<|channel|>commentary to=functions.sub<|message|>{}",
        ),
    ]);
}

#[test]
fn thoughts_can_stay_text() {
    let thoughts = "<|channel|>analysis<|message|>hm<|end|>";
    let answer = format!("{thoughts}<|start|>assistant<|channel|>final<|message|>Four");
    for piece in [1, 5, 100] {
        let reader = ChannelReader::new("").offering(offered()).keeping_thoughts();
        assert_eq!(read(reader, &answer, piece), format!("{thoughts}\n\nFour"));
    }
}

#[test]
fn a_long_header_is_text() {
    let long = format!("<|channel|>{}", "x".repeat(MAX_HEADER));
    check(&[("", &long, &long)]);
}

#[test]
fn no_text_is_lost_or_doubled() {
    let pieces = [
        START,
        CHANNEL,
        MESSAGE,
        END,
        CALL,
        "assistant",
        "analysis",
        "final",
        "commentary",
        " to=functions.add",
        "é",
        "{}",
        "<|",
        " b",
        "\n",
        "🦀",
        TOOL,
        "<|channel|>final<|message|>",
    ];
    let mut state = 3_u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..5_000 {
        let answer: String = (0..next(14)).map(|_| pieces[next(pieces.len())]).collect();
        let whole = read(ChannelReader::new("").offering(offered()), &answer, usize::MAX);
        for piece in [1, 3] {
            assert_eq!(read(ChannelReader::new("").offering(offered()), &answer, piece), whole, "{answer:?}");
        }
        let crabs = |text: &str| text.matches('🦀').count();
        assert!(crabs(&whole) <= crabs(&answer), "{answer:?}: {whole:?}");
        // Characters can be lost only in a header.
        if !answer.contains("<|") {
            assert_eq!(crabs(&whole), crabs(&answer), "{answer:?}: {whole:?}");
        }
    }
}

#[test]
fn the_template_reads_thoughts_as_thinking() {
    let message = |json: &str| serde_json::from_str::<Message>(json).expect("a message");
    let call = r#""tool_calls":[{"function":{"name":"add"}}]"#;
    let messages = [
        message(r#"{"role":"user","content":"hi"}"#),
        message(r#"{"role":"assistant","content":"Four","reasoning_content":"two"}"#),
        message(&format!(r#"{{"role":"assistant","content":"I look.","reasoning_content":"hm",{call}}}"#)),
        message(&format!(r#"{{"role":"assistant","content":"I look.",{call}}}"#)),
    ];
    assert_eq!(with_thinking(&messages[..1]), None);
    let changed = with_thinking(&messages).expect("changed");
    let shown = |message: &Message| {
        let thinking = message.more.get("thinking").and_then(|thoughts| thoughts.text().map(str::to_string));
        (message.content.clone(), thinking)
    };
    let text = |text: &str| Some(text.to_string());
    assert_eq!(
        changed.iter().map(shown).collect::<Vec<_>>(),
        [(text("hi"), None), (text("Four"), text("two")), (None, text("hm")), (text("I look."), None)]
    );
}

#[test]
fn arguments_are_emitted_as_they_arrive() {
    let mut reader = ChannelReader::new("").offering(offered());
    let arguments = |text: &str| Part::Arguments(text.to_string());
    assert_eq!(reader.push(TOOL), []);
    assert_eq!(reader.push(" {\"a"), [Part::Call("add".to_string()), arguments("{\"a")]);
    assert_eq!(reader.push("\": \"}"), [arguments("\": \"}")]);
    assert_eq!(reader.push("\"} \n"), [arguments("\"}")]);
    assert_eq!(reader.push("<|call|>"), []);
    assert_eq!(reader.finish(), []);
}

/// A text that the answer continues is read in linear time. Otherwise, this test would not finish.
#[test]
fn a_long_text_is_continued() {
    let text = "<|start|>assistant<|channel|>final<|message|>".to_string() + &"<|end|>a".repeat(1 << 18);
    assert_eq!(read(ChannelReader::new(&text), "b", 1), "b");
}

/// Each piece is searched once: the quadratic work of searching all earlier white space would take many minutes.
#[test]
fn white_space_is_searched_once() {
    let blank = " \n".repeat(1 << 20);
    for (answer, expected) in [
        (format!("{blank}a"), format!("{blank}a")),
        (format!("{blank}<|channel|>final<|message|>a"), "a".to_string()),
        (format!("<|channel|>final<|message|>a<|end|>{blank}<|end|>{blank}"), "a".to_string()),
    ] {
        // The texts are too long for a message.
        assert!(read(ChannelReader::new(""), &answer, 16) == expected, "{:?}", answer.trim());
    }
}
