use std::collections::BTreeSet;

use super::*;
use crate::embeddings::RerankRequest;
use crate::fields::Fields;
use crate::http::{chat, completions, infill, messages, responses};
use crate::request::Defaults;

fn facts() -> ServerFacts {
    ServerFacts {
        names: vec!["m".to_string()],
        last_token: 99,
        n_ctx: 64,
        begins: true,
        fills_in: true,
        width: Some(64),
        has_keys: false,
        defaults: Defaults::for_tests(),
    }
}

fn properties(schema: &str) -> BTreeSet<String> {
    let document = document(&facts());
    let properties = document["components"]["schemas"][schema]["properties"].as_object();
    properties.expect("an object").keys().cloned().collect()
}

/// Takes the field `model`, which the registry reads before the other fields.
fn of_model(fields: &mut Fields) -> &mut Fields {
    fields.text("model").expect("a name or nothing");
    fields
}

#[test]
fn every_field_that_is_read_is_in_the_file_and_no_other() {
    type Read = fn(&mut Fields, &ServerFacts);
    let chat: Read =
        |fields, facts| drop(chat::take(fields, &facts.names[0], &facts.defaults).expect("a request"));
    let completion: Read =
        |fields, facts| drop(completions::take(fields, &facts.names[0], &facts.defaults).expect("a request"));
    let message: Read =
        |fields, facts| drop(messages::request::take(of_model(fields), &facts.defaults).expect("a request"));
    let response: Read =
        |fields, facts| drop(responses::request::take(of_model(fields), &facts.defaults).expect("a request"));
    let rerank: Read = |fields, facts| {
        drop(RerankRequest::read(of_model(fields), facts.defaults.deadline).expect("a request"));
    };
    let infill: Read =
        |fields, facts| drop(infill::take(of_model(fields), &facts.defaults).expect("a request"));
    let cases = [
        ("InfillRequest", infill, r#"{"input_prefix": "a"}"#),
        ("RerankRequest", rerank, r#"{"query": "a", "documents": ["b"]}"#),
        ("ChatRequest", chat, r#"{"messages": [{"role": "user", "content": "a"}]}"#),
        ("MessagesRequest", message, r#"{"messages": [{"role": "user", "content": "a"}]}"#),
        ("ResponsesRequest", response, r#"{"input": "a"}"#),
        ("CompletionRequest", completion, r#"{"prompt": "a"}"#),
    ];
    for (schema, read, json) in cases {
        let mut fields = Fields::read(json.as_bytes()).expect("an object");
        read(&mut fields, &facts());
        let known: BTreeSet<String> = fields.known().iter().map(ToString::to_string).collect();
        assert_eq!(properties(schema), known, "{schema}");
    }
}

#[test]
fn every_route_is_in_the_file_and_no_other() {
    let document = document(&facts());
    let paths = document["paths"].as_object().expect("an object");
    assert_eq!(paths.len(), ENDPOINTS.len(), "two endpoints have one path");
    let method = |path: &str| {
        let methods = paths.get(path).and_then(Value::as_object).expect("a path");
        methods.keys().map(String::as_str).collect::<Vec<_>>()
    };
    // engine/anneal/tests/serve/openapi.rs tests that the server answers these paths only with these methods.
    for path in ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize", "/detokenize"] {
        assert_eq!(method(path), ["post"], "{path}");
    }
    for path in ["/v1/models", "/v1/models/{name}", "/health", "/metrics", "/status", "/openapi.json"] {
        assert_eq!(method(path), ["get"], "{path}");
    }
}

/// Collects the paths of all keys in `value`.
fn names(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let path = format!("{path}/{name}");
                names(value, &path, found);
                found.insert(path);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| names(value, path, found)),
        _ => {}
    }
}

/// Collects the paths of all properties in `schema`.
fn described(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}/{name}");
        described(schema, &path, found);
        described(&schema["items"], &path, found);
        found.insert(path);
    }
}

#[test]
fn the_status_is_in_the_file_as_it_is_written() {
    use crate::status::{ModelStatus, SlotStatus, Status};
    let model = ModelStatus { slots: vec![SlotStatus::default()], ..ModelStatus::default() };
    let status = Status { models: vec![model], ..Status::default() };
    let (mut written, mut told) = (BTreeSet::new(), BTreeSet::new());
    names(&serde_json::to_value(status).expect("JSON"), "", &mut written);
    described(&document(&facts())["components"]["schemas"]["Status"], "", &mut told);
    assert_eq!(told, written);
}

#[test]
fn every_code_is_in_the_file() {
    for (has_keys, asks) in
        [(true, &["invalid_api_key"][..]), (false, &["forbidden_host", "forbidden_origin"])]
    {
        let text = document(&ServerFacts { has_keys, ..facts() }).to_string();
        for kind in ENDPOINTS[0].errors.concat() {
            assert!(text.contains(&format!("\"{}\"", kind.words().2)), "{kind:?}");
        }
        asks.iter().for_each(|code| assert!(text.contains(code), "{code}"));
    }
}

/// Checks that every reference has a target. No other test checks this.
#[test]
fn every_reference_leads_somewhere() {
    let document = document(&facts());
    let text = document.to_string();
    let mut references =
        text.split("\"$ref\":\"#").skip(1).map(|rest| rest.split('"').next().expect("a text"));
    assert!(references.all(|reference| document.pointer(reference).is_some()));
}

/// Checks that the schema describes the relations between two fields that the server checks.
#[test]
fn best_of_is_n_and_dimensions_are_the_models() {
    let document = document(&facts());
    let schemas = &document["components"]["schemas"];
    assert_eq!(schemas["EmbeddingRequest"]["properties"]["dimensions"]["enum"], json!([64, null]));
    let ways = schemas["CompletionRequest"]["anyOf"].as_array().expect("a list");
    let pairs: Vec<(&Value, &Value)> = ways
        .iter()
        .map(|way| (&way["properties"]["n"]["enum"][0], &way["properties"]["best_of"]["enum"][0]))
        .collect();
    assert_eq!(pairs.len(), 8);
    for (number, (n, best_of)) in (1..).zip(pairs) {
        assert_eq!((n, best_of), (&json!(number), &json!(number)));
    }
    // A missing `n` means 1.
    assert_eq!(ways[0]["properties"]["n"]["enum"], json!([1, null]));
    assert!(ways[0].get("required").is_none());
    assert!(ways[1..].iter().all(|way| way["required"] == json!(["n"])));
}
