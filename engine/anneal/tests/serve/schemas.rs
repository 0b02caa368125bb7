//! Tests of JSON schemas that client libraries write: keywords without effect, unknown formats, and numbers without
//! bounds.

use serde_json::{Value, json};

use crate::client::{Server, tcp};

fn start() -> Server {
    Server::start(&["--listen", "127.0.0.1:0", "--chat-template", "chatml"])
}

/// Sends a chat request with `more` fields. Returns the status, the header of ignored keywords and the answer.
fn ask(server: &Server, more: Value) -> (u16, Option<String>, Value) {
    let mut body = json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": 1000, "temperature": 1, "seed": 7 });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let (status, head, text) = tcp(server, "POST", "/v1/chat/completions", &[], body.to_string().as_bytes());
    let header = head.lines().find_map(|line| line.strip_prefix("anneal-ignored-keywords: "));
    (status, header.map(String::from), serde_json::from_str(&text).expect("JSON"))
}

fn format(schema: Value) -> Value {
    json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": schema } } })
}

fn tool(name: &str, parameters: Value) -> Value {
    json!({ "type": "function", "function": { "name": name, "parameters": parameters } })
}

#[test]
fn keywords_that_cannot_be_enforced_are_named_in_a_header() {
    let server = start();
    let (status, header, answer) = ask(
        &server,
        format(json!({
            "type": "object",
            "properties": {
                "path": { "type": "string", "format": "path", "maxLength": 5 },
                "tags": { "type": "array", "items": { "enum": ["a", "b"] }, "uniqueItems": true, "maxItems": 2 },
                "never": { "not": {} },
                "map": { "type": "object", "propertyNames": { "enum": ["k"] }, "additionalProperties": { "type": "null" } },
            },
            "required": ["path", "tags", "map"],
            "additionalProperties": false,
        })),
    );
    assert_eq!(status, 200, "{answer}");
    let place = "response_format.json_schema.schema.properties";
    assert_eq!(header, Some(format!("{place}.path.format, {place}.tags.uniqueItems")));
    let content = answer["choices"][0]["message"]["content"].as_str().expect("a text");
    let found: Value = serde_json::from_str(content).unwrap_or_else(|error| panic!("{error}: {content}"));
    let names: Vec<&String> = found.as_object().expect("an object").keys().collect();
    assert_eq!(names, ["path", "tags", "map"]);
    assert!(found["map"].as_object().expect("an object").keys().all(|name| name == "k"), "{found}");

    // The header is absent if the schema is enforced completely, or if the request has no schema.
    let complete = json!({ "type": "array", "items": { "type": "string", "format": "date" }, "maxItems": 1 });
    for more in [format(complete), json!({ "max_tokens": 2 })] {
        let (status, header, answer) = ask(&server, more);
        assert_eq!((status, header), (200, None), "{answer}");
    }
}

#[test]
fn schemas_that_client_libraries_write_are_accepted() {
    let server = start();
    let object = |properties: Value| json!({ "type": "object", "properties": properties, "additionalProperties": false });
    let path = |name: &str| object(json!({ name: { "type": "string", "maxLength": 3 } }));
    let cases: [(Value, &[&str]); 9] = [
        (json!({ "oneOf": [path("path"), path("url")] }), &["oneOf"]),
        (json!({ "oneOf": [{ "type": "null" }, { "type": "integer", "minimum": i64::MIN }] }), &[]),
        (json!({ "type": "string", "pattern": r"^(?=.*\d)(?!\.)[a-z]{1,3}\b$" }), &["pattern"]),
        (json!({ "type": "string", "pattern": r"^(a)\1$", "maxLength": 3.0 }), &["pattern"]),
        (json!({ "type": "number", "minimum": -1e308, "maximum": 3.4e38 }), &[]),
        (
            json!({
                "type": "object", "patternProperties": { "^a$": { "type": "null" } }, "minProperties": 1,
                "properties": { "b": { "type": "null" } }, "additionalProperties": false,
            }),
            &["minProperties"],
        ),
        (json!({ "$ref": "#/$defs/a~1b~0c" }), &[]),
        (json!({ "$ref": "#/$defs/List%5Bint%5D" }), &[]),
        (json!({ "$ref": "#one" }), &[]),
    ];
    for (schema, ignored) in cases {
        let whole = json!({
            "type": "object", "properties": { "x": schema }, "required": ["x"],
            "$defs": { "a/b~c": { "const": 1 }, "List[int]": { "const": 1 }, "a": { "$anchor": "one", "const": 1 } },
        });
        let calls = json!({ "tools": [tool("t", whole.clone())], "tool_choice": "required" });
        for (request, place) in
            [(format(whole), "response_format.json_schema.schema"), (calls, "tools[0].function.parameters")]
        {
            let (status, header, answer) = ask(&server, request);
            assert_eq!(status, 200, "{schema}: {answer}");
            let named: Vec<String> =
                ignored.iter().map(|key| format!("{place}.properties.x.{key}")).collect();
            assert_eq!(header.unwrap_or_default(), named.join(", "), "{schema}");
        }
    }
}

#[test]
fn a_reference_that_never_ends_is_refused_before_the_first_token() {
    let server = start();
    let with = |x: Value, required: Value| {
        json!({
            "$defs": { "A": { "$ref": "#/$defs/B" }, "B": { "$ref": "#/$defs/A" }, "C": { "allOf": [{ "$ref": "#/$defs/C" }] } },
            "type": "object", "properties": { "x": x }, "required": required,
        })
    };
    for reference in ["#/$defs/A", "#/$defs/C", "#"] {
        let schema = with(json!({ "$ref": reference }), json!(["x"]));
        let calls = json!({ "tools": [tool("t", schema.clone())], "tool_choice": "required" });
        for (request, place) in
            [(format(schema), "response_format.json_schema.schema"), (calls, "tools[0].function.parameters")]
        {
            for stream in [false, true] {
                let mut request = request.clone();
                request["stream"] = json!(stream);
                let (status, _, answer) = ask(&server, request);
                let param = answer["error"]["param"].as_str().expect("a name");
                assert!(status == 400 && param == format!("{place}.properties.x"), "{answer}");
                let message = answer["error"]["message"].as_str().expect("a text");
                assert!(
                    message.ends_with("properties.x: no text matches it: its $ref never ends"),
                    "{message}"
                );
            }
        }
    }
    // An optional property without a possible value is never written.
    let (status, _, answer) = ask(&server, format(with(json!({ "$ref": "#/$defs/A" }), json!([]))));
    let content = answer["choices"][0]["message"]["content"].as_str().expect("a text");
    assert_eq!((status, serde_json::from_str(content).ok()), (200, Some(json!({}))), "{answer}");
}

#[test]
fn an_invalid_schema_names_the_tool_and_the_property() {
    let server = start();
    let list = |items: Value| json!({ "type": "object", "properties": { "list": { "type": "array", "items": items, "uniqueItems": true } } });
    let tools = |items: Value| {
        json!({
            "tools": [tool("alpha", list(json!({}))), tool("beta", list(items))], "tool_choice": "required", "max_tokens": 5,
        })
    };
    let (status, header, answer) = ask(&server, tools(json!({ "type": "string" })));
    let places = [0, 1].map(|tool| format!("tools[{tool}].function.parameters.properties.list.uniqueItems"));
    assert_eq!((status, header), (200, Some(places.join(", "))), "{answer}");
    let named = json!({ "type": "function", "function": { "name": "beta" } });
    for choice in [json!("required"), named] {
        let mut request = tools(json!({ "type": "strng" }));
        request["tool_choice"] = choice;
        let (status, _, answer) = ask(&server, request);
        assert_eq!(status, 400, "{answer}");
        assert_eq!(
            answer["error"]["param"], "tools[1].function.parameters.properties.list.items",
            "{answer}"
        );
        let message = answer["error"]["message"].as_str().expect("a text");
        let expected = "cannot use the JSON schema: tools[1].function.parameters.properties.list.items: type: use string";
        assert!(message.starts_with(expected) && message.contains("strng"), "{answer}");
    }
    let reference =
        json!({ "properties": { "a": { "$ref": "#/$defs/b" } }, "$defs": { "b": { "pattern": "(" } } });
    let (status, _, answer) = ask(&server, format(reference));
    let param = answer["error"]["param"].as_str().expect("a name");
    assert!(status == 400 && param.starts_with("response_format.json_schema.schema."), "{answer}");
}

#[test]
fn numbers_without_bounds_end() {
    let server = start();
    for (kind, seed) in
        ["integer", "number"].into_iter().flat_map(|kind| (0..4).map(move |seed| (kind, seed)))
    {
        let schema = json!({ "type": "array", "items": { "type": kind }, "minItems": 2, "maxItems": 2 });
        let mut request = format(schema);
        // At this temperature, the tiny model writes digits at random.
        (request["seed"], request["temperature"]) = (json!(seed), json!(3));
        let (status, _, answer) = ask(&server, request);
        assert_eq!((status, &answer["choices"][0]["finish_reason"]), (200, &json!("stop")), "{answer}");
        let content = answer["choices"][0]["message"]["content"].as_str().expect("a text");
        let longest = content.split(|c: char| !c.is_ascii_digit()).map(str::len).max();
        assert!(longest <= Some(16), "{content}");
        let numbers: Vec<f64> =
            serde_json::from_str(content).unwrap_or_else(|error| panic!("{error}: {content}"));
        assert!(numbers.iter().all(|number| number.is_finite()), "{content}");
    }
    // A number that the schema fixes may have more digits.
    let (status, _, answer) = ask(&server, format(json!({ "enum": [12_345_678_901_234_568_u64] })));
    assert_eq!(answer["choices"][0]["message"]["content"], "12345678901234568", "{status}");
}

#[test]
fn an_object_may_have_a_schema() {
    let server = start();
    let schema = json!({ "type": "object", "properties": { "a": { "enum": [1, 2] } }, "required": ["a"], "additionalProperties": false });
    let with = |schema: Value| json!({ "response_format": { "type": "json_object", "schema": schema } });
    let (status, _, answer) = ask(&server, with(schema));
    let content = answer["choices"][0]["message"]["content"].as_str().expect("a text");
    let found: Value = serde_json::from_str(content).unwrap_or_else(|error| panic!("{error}: {content}"));
    assert!(status == 200 && [json!({ "a": 1 }), json!({ "a": 2 })].contains(&found), "{answer}");
    let (status, _, answer) = ask(&server, with(json!({ "type": "objekt" })));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("response_format.schema")), "{answer}");
}
