//! Tests that derive formats from small templates, each in the style of a family of models.

use std::time::{Duration, Instant};

use super::*;
use crate::{Inputs, Specials, Template};

/// Templates that show tools. `CALLS` stands for an assistant's calls.
fn template(calls: &str) -> String {
    "<s>{{ tools | tojson }}{% for m in messages %}<|{{ m.role }}|>{% if m.tool_calls %}CALLS{% else %}{{ m.content }}\
     {% endif %}<|end|>{% endfor %}"
        .replace("CALLS", calls)
}

/// Formats, each with its kind and the part of a template that renders calls.
const NOTATIONS: [(&str, &str); 13] = [
    // A block for each call, with a text first.
    (
        "json",
        "{{ m.content or '' }}{% for c in m.tool_calls %}\n<call>\n{{ {'name': c.function.name, 'arguments': \
         c.function.arguments} | tojson }}\n</call>{% endfor %}",
    ),
    // A list in a block, with other keys.
    (
        "json",
        "<|acts|>[{% for c in m.tool_calls %}{{ {'call_id': c.id, 'tool': c.function.name, 'input': \
         c.function.arguments} | tojson }}{% if not loop.last %}, {% endif %}{% endfor %}]<|/acts|>",
    ),
    // The name is the key, and there is no marker.
    (
        "json",
        "[{% for c in m.tool_calls %}{{ {c.function.name: c.function.arguments} | tojson }}{% if not loop.last %}, \
         {% endif %}{% endfor %}]",
    ),
    // Arguments in a string.
    (
        "json",
        "{% for c in m.tool_calls %}<call>{{ {'name': c.function.name, 'parameters': c.function.arguments | tojson} | \
         tojson }}</call>{% endfor %}",
    ),
    // The name between markers, with a number and an ID.
    (
        "named",
        "{{ m.content or '' }}<|calls|>{% for c in m.tool_calls %}<|call|>tools.{{ c.function.name }}:{{ loop.index0 }}\
         <|args|>{{ c.function.arguments | tojson }}<|/call|>{% endfor %}<|/calls|>",
    ),
    (
        "named",
        "<|calls|>{% for c in m.tool_calls %}<|id|>{{ c.id }}<|name|>{{ c.function.name }}<|args|>\
         {{ c.function.arguments | tojson }}<|/call|>{% endfor %}<|/calls|>",
    ),
    (
        "named",
        "{% for c in m.tool_calls %}[CALL]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}",
    ),
    // Arguments with unquoted keys, and a marker around strings.
    (
        "named",
        "{% for c in m.tool_calls %}<|call>run:{{ c.function.name }}{ {%- for k, v in c.function.arguments.items() -%}\
         {{ k }}:{% if v is string %}<|q|>{{ v }}<|q|>{% else %}{{ v }}{% endif %}{% if not loop.last %},{% endif %}\
         {%- endfor -%} }<call|>{% endfor %}",
    ),
    // Tags with the names as attributes, in a section.
    (
        "tags",
        "{{ m.content or '' }}\n<calls>\n{% for c in m.tool_calls %}<invoke name=\"{{ c.function.name }}\">\n\
         {% for k, v in c.function.arguments.items() %}<arg name=\"{{ k }}\">{{ v }}</arg>\n{% endfor %}</invoke>\n\
         {% endfor %}</calls>",
    ),
    // Tags with values on their own lines.
    (
        "tags",
        "{% for c in m.tool_calls %}<call>\n<fun={{ c.function.name }}>\n{% for k, v in c.function.arguments.items() %}\
         <par={{ k }}>\n{{ v }}\n</par>\n{% endfor %}</fun>\n</call>\n{% endfor %}",
    ),
    // Keys and values in separate tags.
    (
        "tags",
        "{% for c in m.tool_calls %}<call>{{ c.function.name }}\n{% for k, v in c.function.arguments.items() %}<k>\
         {{ k }}</k>\n<v>{{ v }}</v>\n{% endfor %}</call>{% endfor %}",
    ),
    // Values with a marker of their type.
    (
        "tags",
        "<calls>{% for c in m.tool_calls %}<invoke name=\"{{ c.function.name }}\">{% for k, v in \
         c.function.arguments.items() %}<arg name=\"{{ k }}\" text=\"{{ 'yes' if v is string else 'no' }}\">{{ v }}</arg>\
         {% endfor %}</invoke>{% endfor %}</calls>",
    ),
    (
        "python",
        "<|calls|>[{% for c in m.tool_calls %}{{ c.function.name }}({% for k, v in c.function.arguments.items() %}\
         {{ k }}={{ v | tojson }}{% if not loop.last %}, {% endif %}{% endfor %}){% if not loop.last %}, {% endif %}\
         {% endfor %}]<|/calls|>",
    ),
];

fn offered() -> Vec<Offered> {
    let city = json!({ "properties": { "city": { "type": "string" }, "days": { "type": "integer" } } });
    let function = |name: &str, schema: Option<&Value>| Offered {
        name: name.to_string(),
        parameters: schema.and_then(|schema| schema.as_object().cloned()),
    };
    vec![function("get_heat", Some(&city)), function("stop", None)]
}

/// Names and arguments of the calls in an answer, and its text.
type Read = (Vec<(String, String)>, String);

fn read(format: &CallFormat, answer: &str, sizes: impl IntoIterator<Item = usize>) -> Read {
    let mut reader = CallReader::new(format.clone(), offered());
    let characters: Vec<char> = answer.chars().collect();
    let (mut rest, mut parts) = (&characters[..], Vec::new());
    for size in sizes {
        let (piece, after) = rest.split_at(size.min(rest.len()));
        parts.extend(reader.push(&piece.iter().collect::<String>()));
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    parts.extend(reader.finish());
    let (mut calls, mut text) = (Vec::<(String, String)>::new(), String::new());
    for part in parts {
        match part {
            Part::Call(name) => calls.push((name, String::new())),
            Part::Arguments(json) => calls.last_mut().expect("a call").1.push_str(&json),
            Part::Text(more) => text.push_str(&more),
            Part::Thought(text) => panic!("a reader of calls found thoughts: {text}"),
        }
    }
    (calls, text)
}

/// Renders an answer with a text and `calls`, without the markers of the message.
fn rendered(template: &Template, text: Option<&str>, calls: &[(&str, Value)]) -> String {
    let written: Vec<Value> = calls
        .iter()
        .map(|(name, arguments)| {
            json!({ "id": "abcdefghi", "type": "function", "function": { "name": name, "arguments": arguments } })
        })
        .collect();
    let answer = json!({ "role": "assistant", "content": text, "tool_calls": written });
    let tools = Json::from(&json!([{ "type": "function", "function": { "name": "get_heat" } }]));
    let messages = [Message::new("user", "hi"), serde_json::from_value(answer).expect("a message")];
    let inputs = Inputs { messages: &messages, tools: Some(&tools), ..Inputs::default() };
    let whole = template.render_with(&inputs).expect("rendered");
    let answer = whole.split("<|assistant|>").nth(1).expect("an answer");
    answer.strip_suffix("<|end|>").expect("an end").to_string()
}

fn derived(calls: &str) -> (Template, CallFormat) {
    let template = Template::new(&template(calls), "a test", Specials::default()).expect("a template");
    let format = template.call_format().unwrap_or_else(|| panic!("no notation: {calls}")).clone();
    (template, format)
}

#[test]
fn calls_come_back_as_they_were_rendered() {
    let heat = ("get_heat", json!({ "city": "Linz, \"Urfahr\" (3)", "days": 12 }));
    let numeric = ("get_heat", json!({ "city": "7", "days": 0 }));
    for (kind, source) in NOTATIONS {
        let (template, format) = derived(source);
        assert_eq!(format.kind(), kind, "{source}");
        let text = source.starts_with("{{ m.content").then_some("Let me look.");
        for calls in
            [vec![heat.clone()], vec![heat.clone(), ("stop", json!({}))], vec![numeric.clone(), heat.clone()]]
        {
            let answer = rendered(&template, text, &calls);
            for size in [1, 2, 5, 100] {
                let (found, told) = read(&format, &answer, std::iter::repeat(size));
                let found: Vec<(&str, Value)> = found
                    .iter()
                    .map(|(name, json)| (name.as_str(), serde_json::from_str(json).expect("JSON")))
                    .collect();
                assert_eq!(found, calls, "{answer} in pieces of {size}");
                assert_eq!(told.trim(), text.unwrap_or_default(), "{answer} in pieces of {size}");
            }
        }
    }
}

#[test]
fn the_sizes_of_pieces_do_not_change_what_is_read() {
    let mut seed = 7_u64;
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let calls = [("get_heat", json!({ "city": "Linz", "days": 12 })), ("stop", json!({}))];
    for (_, source) in NOTATIONS {
        let (template, format) = derived(source);
        let answer: Vec<char> = rendered(&template, Some("Well."), &calls).chars().collect();
        for _ in 0..60 {
            // Remove a part, and repeat another.
            let mut text = answer.clone();
            let begin = random(text.len());
            text.drain(begin..(begin + random(8)).min(text.len()));
            let begin = random(text.len().max(1)).min(text.len());
            text.extend_from_within(begin..(begin + random(30)).min(text.len()));
            let text: String = text.into_iter().collect();
            let whole = read(&format, &text, [usize::MAX]);
            let sizes: Vec<usize> = (0..text.len() + 1).map(|_| 1 + random(9)).collect();
            assert_eq!(read(&format, &text, sizes), whole, "{text:?}");
            assert_eq!(read(&format, &text, std::iter::repeat(1)), whole, "{text:?}");
            // No text is lost if no function has this name.
            let unknown = text.replace("get_heat", "get_cold").replace("stop", "halt");
            let (none, told) = read(&format, &unknown, std::iter::repeat(3));
            assert_eq!((none.len(), told.as_str()), (0, unknown.as_str()));
        }
    }
}

#[test]
fn arguments_arrive_before_the_call_ends() {
    for (answer, source) in [
        ("<call>{\"name\": \"get_heat\", \"arguments\": {\"city\": \"Li", NOTATIONS[0].1),
        ("[{\"get_heat\": {\"city\": \"Li", NOTATIONS[2].1),
        ("[CALL]get_heat[ARGS]{\"city\": \"Li", NOTATIONS[6].1),
    ] {
        let (_, format) = derived(source);
        let mut reader = CallReader::new(format, offered());
        let parts = reader.push(answer);
        let expected = [Part::Call("get_heat".to_string()), Part::Arguments("{\"city\": \"Li".to_string())];
        assert_eq!(parts, expected, "{answer}");
        assert_eq!(reader.push("nz"), [Part::Arguments("nz".to_string())]);
    }
}

#[test]
fn the_prompt_may_end_with_the_mark_before_a_name() {
    let source = "<s>{{ tools | tojson }}{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% if \
                  m.content %}>>>all\n{{ m.content }}{% endif %}{% for c in m.tool_calls or [] %}>>>{{ c.function.name }}\
                  \n{{ c.function.arguments | tojson }}{% endfor %}{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}";
    let template = Template::new(source, "a test", Specials::default()).expect("a template");
    let format = template.call_format().expect("a notation");
    for (answer, names, text) in [
        ("get_heat\n{\"city\": \"Linz\"}>>>stop\n{}", vec!["get_heat", "stop"], ""),
        ("all\nLet me look.\n>>>stop\n{}", vec!["stop"], "Let me look."),
        ("all\nall in all", vec![], "all in all"),
        ("get_cold\n{}", vec![], "get_cold\n{}"),
    ] {
        for size in [1, 2, 5, 100] {
            let (calls, told) = read(format, answer, std::iter::repeat(size));
            let found: Vec<&str> = calls.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!((found, told.as_str()), (names.clone(), text), "{answer} in pieces of {size}");
        }
    }
}

#[test]
fn hostile_templates_have_no_notation_and_do_not_hang() {
    let deep = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    for calls in [
        "{{ raise_exception('no calls') }}".to_string(),
        deep.to_string(),
        "{{ 'x' * 1000000000 }}".to_string(),
        // The output is large, or repeats the call.
        "{% for i in range(20000) %}<{{ m.tool_calls[0].function.name }}[{ {% endfor %}{{ \
         m.tool_calls[0].function.arguments }}"
            .to_string(),
        "{% for i in range(3000) %}{{ m.tool_calls | tojson }}{% endfor %}".to_string(),
        // Markers without an end, without a name, and without arguments.
        "<{{ m.tool_calls[0].function.arguments | tojson }}".to_string(),
        "{{ m.tool_calls[0].function.name }}".to_string(),
        "{{ m.tool_calls[0].function.name }}{{ m.tool_calls[0].function.arguments.keys() | list }}"
            .to_string(),
        "[[[[[{{ m.tool_calls[0].function.name }}((((arg_first=".to_string(),
    ] {
        let begin = Instant::now();
        let template = Template::new(&template(&calls), "a test", Specials::default()).expect("a template");
        assert_eq!(template.call_format(), None, "{calls}");
        assert!(begin.elapsed() < Duration::from_secs(30), "{calls}");
    }
}
