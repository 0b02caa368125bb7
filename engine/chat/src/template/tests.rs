use super::*;

fn specials() -> Specials {
    Specials { begin: "<s>".to_string(), end: "</s>".to_string(), adds_begin: true }
}

fn template(source: &str) -> Template {
    Template::new(source, "a test", specials()).expect(source)
}

fn messages(json: &str) -> Vec<Message> {
    serde_json::from_str(json).expect(json)
}

#[test]
fn the_built_in_templates_write_what_they_should() {
    let talk = messages(
        r#"[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"},
            {"role":"assistant","content":"Hello."},{"role":"user","content":"Bye"}]"#,
    );
    let cases = [
        (
            "chatml",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n\
             Hello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "gemma",
            "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n\
             <start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
        ),
        (
            "llama3",
            "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user\
             <|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>\
             <|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        ("mistral", "<s>[INST] Be brief.\n\nHi [/INST] Hello.</s>[INST] Bye [/INST]"),
        ("plain", "<s>Be brief.\n\nUser: Hi\nAssistant: Hello.\nUser: Bye\nAssistant:"),
    ];
    assert_eq!(cases.map(|(name, _)| name), builtin::NAMES, "a template without a case");
    for (name, expected) in cases {
        let template = template(builtin::source(name).expect(name));
        assert_eq!(template.render(&talk, true, None).expect(name), expected, "{name}");
    }
}

#[test]
fn what_is_not_given_is_none_or_not_there() {
    let template = template(
        "{{ tools is none }} {{ documents is none }} {{ tools is defined }} {{ custom is defined }} \
         {{ messages[0].name is defined }} {{ messages[0].content is none }} {{ bos_token }}{{ eos_token }}",
    );
    let found = template.render(&messages(r#"[{"role":"user"}]"#), false, None).expect("rendered");
    assert_eq!(found, "True True True False False True <s></s>");
    let more = [("custom".to_string(), Json(Value::from(1)))];
    let asked = messages(r#"[{"role":"user","content":"a","name":"Ann"}]"#);
    let inputs = Inputs { messages: &asked, more: &more, ..Inputs::default() };
    assert!(template.render_with(&inputs).expect("rendered").contains("True True True False"));
}

#[test]
fn calls_of_tools_take_the_form_that_the_template_wants() {
    let call = r#"[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":
        [{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"b\": 1, \"a\": 2}"}}]}]"#;
    let over = |body: &str| {
        format!(
            "{{% for m in messages %}}{{% for c in m.tool_calls or [] %}}{body}{{% endfor %}}{{% endfor %}}"
        )
    };
    let cases = [
        // A string is printed unchanged; an object is printed as JSON.
        (over("{{ c.function.arguments }}"), r#"{"b": 1, "a": 2}"#),
        (over("{{ c.function.arguments | tojson }}"), r#"{"b": 1, "a": 2}"#),
        (
            over("{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}no{% endif %}"),
            r#"{"b": 1, "a": 2}"#,
        ),
        (over("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}"), "b=1;a=2;"),
        // With `None` as the content, this template fails, so an empty string is used.
        (
            "{% for m in messages %}{{ '[' + m.content + ']' }}{% if m.tool_calls %}\
             {{ m.tool_calls[0].function.arguments }}{% endif %}{% endfor %}"
                .to_string(),
            r#"[a][]{"b": 1, "a": 2}"#,
        ),
    ];
    for (source, expected) in cases {
        assert_eq!(
            template(&source).render(&messages(call), true, None).expect(&source),
            expected,
            "{source}"
        );
    }
}

#[test]
fn arguments_that_are_no_json_become_an_object() {
    let template = template(
        "{% for m in messages %}{{ m.tool_calls[0].function.arguments.items() | list }}{% endfor %}",
    );
    let call = r#"[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}]"#;
    // The trial rendering detects objects only if a user message without calls also renders.
    let source = "{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments.items() | list }}{% endif %}{% endfor %}";
    let text = self::template(source).render(&messages(call), true, None);
    assert_eq!(text.expect("rendered"), "[('INVALID_JSON', '{')]");
    assert!(template.render(&messages(call), true, None).is_err());
}

#[test]
fn tools_go_to_the_template_for_tools() {
    let mut template = template("main {{ tools | tojson }}");
    template.tool_use = Some(compile("tools {{ tools | tojson }}", "a test").expect("compiled"));
    let tools: Json = serde_json::from_str(r#"[{"type":"function","function":{"name":"f"}}]"#).expect("JSON");
    let asked = [Message::new("user", "a")];
    assert_eq!(template.render(&asked, true, None).expect("main"), "main null");
    let found = template.render(&asked, true, Some(&tools)).expect("tools");
    assert_eq!(found, r#"tools [{"type": "function", "function": {"name": "f"}}]"#);
}

#[test]
fn a_template_that_is_wrong_is_an_error_with_its_line() {
    let at_compile = [
        ("a\nb\n{% if %}", "line 3"),
        ("{% for x in y %}", "line 1"),
        ("a\n{{ x | nosuchfilter }}", "line 2"),
        ("{{ 'a }}", "line 1"),
        ("{% nosuchtag %}", "nosuchtag"),
    ];
    for (source, words) in at_compile {
        let error = Template::new(source, "a.jinja", specials()).and_then(|t| t.render(&[], true, None));
        let error = error.expect_err(source).to_string();
        assert!(error.contains("a.jinja") && error.contains(words), "{source}: {error}");
        assert!(error.contains("--chat-template"), "{source}: {error}");
    }
    let at_render = [
        (
            "\n\n{{ raise_exception('roles must alternate') }}",
            "line 3: the template rejects these messages: roles must alternate",
        ),
        ("\n{{ 1 + none }}", "line 2"),
        ("{{ messages[0].content.nosuch() }}", "line 1"),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "did not finish within",
        ),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        ("{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "output has more than"),
        ("{% include '/etc/passwd' %}", "line 1"),
    ];
    for (source, words) in at_render {
        let error =
            template(source).render(&[Message::new("user", "a")], true, None).expect_err(source).to_string();
        assert!(error.contains(words) && error.contains("--chat-template"), "{source}: {error}");
    }
    let error = Template::new(&"x".repeat(MAX_SOURCE + 1), "big", specials()).expect_err("too large");
    assert!(error.to_string().contains("bytes"), "{error}");
}

#[test]
fn a_file_that_is_no_template_is_wrong_usage() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let binary = folder.path().join("binary");
    std::fs::write(&binary, b"\xff\xfe").expect("written");
    for path in ["nosuch", folder.path().to_str().expect("UTF-8"), binary.to_str().expect("UTF-8")] {
        let error = read(path).expect_err(path);
        assert!(
            matches!(&error, Error::Usage(why) if why.contains("chatml") && why.contains(path)),
            "{error}"
        );
    }
}

#[test]
fn a_template_is_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Template>();
}

/// The result may be a prompt or an error, but the stack must not overflow and nothing may take minutes.
#[test]
fn depth_is_no_way_to_end_the_program() {
    // The maximum number of tags, each with an expression of the maximum depth.
    let long = |before: &str, part: &str, after: &str| {
        let tag = format!("{before}{}{after}", part.repeat(4000 / part.len()));
        tag.repeat(MAX_SOURCE / tag.len())
    };
    let sources = [
        long("{{ a", ".b", " }}"),
        long("{{ a", "[0]", " }}"),
        long("{{ a", "|f", " }}"),
        long("{{ 1", "+1", " }}"),
        long("{{ 2", "**2", " }}"),
        long("{{ 'a'-1", "+1", " }}"),
        long("{{ 1", " or 1", " }}"),
        long("{{ 1", " if 1 else 1", " }}"),
        long("{{ ", "-", "1 }}"),
        long("{{ ", "not ", "1 }}"),
        long("{{ ", "(", " }}"),
        long("{% set a", ",a", " = 1 %}"),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(MAX_SOURCE / 12 - 2)),
        "{% if 1 %}".repeat(MAX_SOURCE / 10),
        format!("{{{{ 1{} }}}}", "+1".repeat(MAX_SOURCE / 2 - 4)),
    ];
    for source in &sources {
        let _ =
            Template::new(source, "a test", specials()).and_then(|template| template.render(&[], true, None));
    }
    // Values as deep as the step limit allows, with operations that recurse into them.
    for last in ["", "{{ n.l }}", "{{ n.l == n.l }}", "{{ n.l | tojson }}", "{{ n.l ~ 'a' }}"] {
        for nest in ["[n.l]", "{'a': n.l}"] {
            let source = format!(
                "{{% set n = namespace(l=[]) %}}{{% for a in range(2) %}}{{% for i in range(90000) %}}\
                 {{% set n.l = {nest} %}}{{% endfor %}}{{% endfor %}}{last}done"
            );
            let found = template(&source).render(&[], true, None);
            match last {
                // The rendering reaches the maximum depth.
                "" => assert_eq!(found.expect("an end"), "done", "{source}"),
                _ => assert!(
                    found.as_ref().err().is_none_or(|why| !why.to_string().contains("did not finish")),
                    "{source}"
                ),
            }
        }
    }
}

#[test]
fn the_role_developer_becomes_system_unless_the_template_knows_it() {
    let messages = [Message::new("developer", "Be terse."), Message::new("user", "hi")];
    let strict = "{% for m in messages %}{% if m.role not in ['system', 'user'] %}{{ raise_exception('no') }}{% endif %}\
                  {{ m.role }}:{{ m.content }};{% endfor %}";
    for (source, expected) in [
        (strict.to_string(), "system:Be terse.;user:hi;"),
        (strict.replace("['system'", "['developer', 'system'"), "developer:Be terse.;user:hi;"),
    ] {
        let template = Template::new(&source, "x", Specials::default()).unwrap();
        assert_eq!(template.render(&messages, true, None).unwrap(), expected);
    }
}

#[test]
fn tools_that_a_template_cannot_show_are_described_in_a_message() {
    let tools = serde_json::json!([{ "type": "function", "function": { "name": "get_heat" } }]);
    let tools = Json::from(&tools);
    let messages = [Message::new("user", "hi")];
    let plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let no_system = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}\
                     <{{ m.role }}>{{ m.content }}{% endfor %}";
    for (source, begin) in [(plain, "<system># Tools"), (no_system, "<user># Tools")] {
        let template = Template::new(source, "x", Specials::default()).unwrap();
        assert_eq!((template.shows_tools(), template.call_format()), (false, Some(&CallFormat::hermes())));
        let text = template.render(&messages, true, Some(&tools)).unwrap();
        assert!(text.starts_with(begin) && text.contains("get_heat") && text.contains("hi"), "{text}");
    }
    // A template that shows tools receives the tools, even if it shows them only after a system message.
    for source in
        ["{{ tools | tojson }}", "{% if messages[0].role == 'system' %}{{ tools | tojson }}{% endif %}"]
    {
        let template = Template::new(source, "x", Specials::default()).unwrap();
        assert_eq!((template.shows_tools(), template.call_format()), (true, None));
        assert!(!template.render(&messages, true, Some(&tools)).unwrap().contains("# Tools"));
    }
}

#[test]
fn calls_that_a_template_does_not_show_become_text() {
    let answer = r#"{"role": "assistant", "content": "Well.", "tool_calls": [
        {"id": "1", "function": {"name": "get_heat", "arguments": "{\"at\": [1, 2], \"of\": \"steel\"}"}},
        {"id": "2", "function": {"name": "stop", "arguments": {}}}]}"#;
    let answer: Message = serde_json::from_str(answer).unwrap();
    let messages = [Message::new("user", "hi"), answer, Message::new("tool", "7")];
    let rendered = |mark: &str| {
        let source =
            "{{ tools | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{# MARK #}";
        let template = Template::new(&source.replace("MARK", mark), "x", Specials::default()).unwrap();
        let tools =
            Json::from(&serde_json::json!([{ "type": "function", "function": { "name": "get_heat" } }]));
        let text = template.render(&messages, true, Some(&tools)).unwrap();
        text.split_once("<assistant>").unwrap().1.to_string()
    };
    let object = r#"{"name": "get_heat", "arguments": {"at": [1, 2], "of": "steel"}}, {"name": "stop", "arguments": {}}"#;
    for (mark, expected) in [
        ("<tool_call>", format!("Well.\n<tool_call>[{object}]</tool_call><tool>7")),
        (
            "<|tool_call_start|>",
            "Well.\n<|tool_call_start|>[get_heat(at=[1,2], of=\"steel\"), stop()]<|tool_call_end|><tool>7".to_string(),
        ),
        (
            "<tool_call> <arg_key> <arg_value>",
            "Well.\n<tool_call>get_heat\n<arg_key>at</arg_key><arg_value>[1,2]</arg_value>\n<arg_key>of</arg_key>\
             <arg_value>steel</arg_value>\n</tool_call><tool_call>stop\n</tool_call><tool>7"
                .to_string(),
        ),
        ("[TOOL_CALLS]", format!("Well.\n[TOOL_CALLS][{object}]<tool>7")),
        // The format is unknown, so the calls have the Hermes format.
        ("", format!("Well.\n<tool_call>[{object}]</tool_call><tool>7")),
    ] {
        assert_eq!(rendered(mark), expected, "{mark}");
    }
}

#[test]
fn a_missing_content_is_not_a_word_in_the_prompt() {
    let answer = r#"{"role": "assistant", "content": null, "tool_calls": [
        {"id": "1", "function": {"name": "f", "arguments": "{\"a\": null}"}}]}"#;
    let answer: Message = serde_json::from_str(answer).unwrap();
    let call = "{% for c in m.tool_calls or [] %}[{{ c.function.arguments }}]{% endfor %}";
    for (content, expected) in [
        ("{{ m.content }}", "[{\"a\": null}]"),
        ("{% if m.content is none %}-{% else %}{{ raise_exception('no') }}{% endif %}", "-[{\"a\": null}]"),
    ] {
        let source = format!(
            "{{% for m in messages[-1:] %}}{{% if m.tool_calls %}}{content}{{% endif %}}{call}{{% endfor %}}"
        );
        let template = Template::new(&source, "x", Specials::default()).unwrap();
        let messages = [Message::new("user", "hi"), answer.clone()];
        assert_eq!(template.render(&messages, false, None).unwrap(), expected, "{source}");
    }
}

#[test]
fn a_message_opens_no_thoughts_in_a_template_without_them() {
    let last = "{{ messages[-1].content }}";
    for (source, text, begun, is_inside) in [
        (last, "Explain <think>", "Explain <think>", false),
        (last, "<think>\n", "<think>\n", false),
        ("{{ messages[-1].content }}<think>\n", "Explain", "Explain<think>\n</think>\n\n", true),
        ("{# </think> #}{{ messages[-1].content }}:", "Explain <think>", "Explain <think>:", false),
    ] {
        let template = template(source);
        let mut prompt = template.render(&[Message::new("user", text)], true, None).expect(source);
        assert_eq!(template.thought_reader(&prompt, false).is_inside(), is_inside, "{source}");
        template.begin_answer(&mut prompt, "");
        assert_eq!(prompt.trim_end(), begun.trim_end(), "{source}");
        assert!(!template.thought_reader(&prompt, true).is_inside(), "{source}");
    }
}

/// Templates that need a value which is optional in OpenAI's API.
#[test]
fn optional_values_have_defaults_where_a_template_needs_them() {
    let answer = r#"{"role": "assistant", "content": null, "tool_calls": [
        {"id": "1", "function": {"name": "f", "arguments": ""}}]}"#;
    let answer: Message = serde_json::from_str(answer).unwrap();
    let messages = [Message::new("user", "hi"), answer, Message::new("tool", "7")];
    let tools = |function: serde_json::Value| {
        Json::from(&serde_json::json!([{ "type": "function", "function": function }]))
    };
    let [bare, given] = [
        tools(serde_json::json!({ "name": "f" })),
        tools(
            serde_json::json!({ "name": "f", "description": "d", "parameters": { "type": "object", "properties": {} } }),
        ),
    ];
    let calls = "{% for m in messages %}{% if m.tool_calls %}{% if not loop.last %}{{ m.content.strip() }}{% endif %}\
                 {{ m.tool_calls[0].function.arguments | tojson }}{% endif %}{% endfor %}";
    let description = "{% for t in tools or [] %}{{ '[' + t.function.description + ']' }}{% endfor %}";
    let schema = "{% for t in tools or [] %}{{ t.function.parameters.properties.items() | list | length }}{% endfor %}";
    let unchanged = "{{ tools | tojson }}";
    for (source, tools, expected) in [
        (calls.to_string(), &given, "{}"),
        (format!("{calls}{description}"), &bare, "{}[]"),
        (format!("{description}{schema}"), &bare, "[]0"),
        (format!("{description}{schema}"), &given, "[d]0"),
        (unchanged.to_string(), &bare, r#"[{"type": "function", "function": {"name": "f"}}]"#),
    ] {
        let template =
            template(&format!("{source}{{% for t in tools or [] %}}{{{{ t.function.name }}}}{{% endfor %}}"));
        // The template shows calls, so that they do not become text.
        template.calls.set(Calls { format: None, are_shown: true }).unwrap();
        let found = template.render(&messages, true, Some(tools)).expect(&source);
        assert_eq!(found, format!("{expected}f"), "{source}");
    }
    // Without defaults that help, the error is the first one.
    let template = template("{{ messages[1].content.strip() }}{{ raise_exception('no') }}");
    let error = template.render(&messages, true, None).expect_err("an error").to_string();
    assert!(error.contains("strip"), "{error}");
}

#[test]
fn calls_become_text_in_a_template_without_tools() {
    let answer = r#"{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]}"#;
    let messages =
        [Message::new("user", "hi"), serde_json::from_str(answer).unwrap(), Message::new("tool", "7")];
    let found = template(builtin::source("chatml").unwrap()).render(&messages, false, None).unwrap();
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let expected = format!(
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{call}<|im_end|>\n\
         <|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>\n"
    );
    assert_eq!(found, expected);
}

#[test]
fn no_system_message_is_lost() {
    let [system, developer, user] =
        [Message::new("system", "A"), Message::new("developer", "B"), Message::new("user", "hi")];
    let last =
        [system.clone(), user.clone(), Message::new("assistant", "C"), developer.clone(), user.clone()];
    let all = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";
    let first = "{% for m in messages %}{% if loop.first or m.role != 'system' %}{{ m.role }}:{{ m.content }};\
                 {% endif %}{% endfor %}";
    let strict = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}\
                  {% endif %}{{ m.role }}:{{ m.content }};{% endfor %}";
    let none = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}\
                {{ m.role }}:{{ m.content }};{% endfor %}";
    let named = "{# 'developer' #}{% for m in messages if m.role != 'developer' %}{{ m.role }}:{{ m.content }};{% endfor %}";
    let both = [system.clone(), developer.clone(), user.clone()];
    for (source, messages, expected) in [
        (all, &both[..], "system:A;system:B;user:hi;"),
        (first, &both, "system:A\n\nB;user:hi;"),
        (strict, &both, "system:A\n\nB;user:hi;"),
        (none, &both, "user:A\n\nB\n\nhi;"),
        (none, &both[1..], "user:B\n\nhi;"),
        (named, &both[1..], "system:B;user:hi;"),
        (all, &last, "system:A;user:hi;assistant:C;system:B;user:hi;"),
        (first, &last, "system:A;user:hi;assistant:C;user:B\n\nhi;"),
        (none, &last, "user:A\n\nhi;assistant:C;user:B\n\nhi;"),
    ] {
        assert_eq!(template(source).render(messages, true, None).expect(source), expected, "{source}");
    }
}
