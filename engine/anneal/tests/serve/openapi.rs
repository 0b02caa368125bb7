//! Tests of `/openapi.json`, and of faults that schemathesis found with it (docs/examples/fuzz_openapi.sh).

use serde_json::{Value, json};

use crate::client::{Server, tcp};

fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let (status, _, text) = tcp(server, "POST", path, &[], body.to_string().as_bytes());
    (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

#[test]
fn the_file_is_of_this_server() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "--name", "smith", "--max-tokens", "7"]);
    let (status, head, text) = tcp(&server, "GET", "/openapi.json", &[], b"");
    assert_eq!(status, 200, "{text}");
    assert!(head.to_ascii_lowercase().contains("content-type: application/json"), "{head}");
    let file: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(file["openapi"], "3.1.0");
    let chat = &file["components"]["schemas"]["ChatRequest"]["properties"];
    assert_eq!(chat["model"]["enum"], json!(["smith", null]));
    assert_eq!(chat["max_tokens"]["default"], 7);
    assert_eq!((&chat["top_p"]["maximum"], &chat["top_p"]["default"]), (&json!(1.0), &json!(0.95)));
    // The schema allows exactly the accepted token numbers.
    let last = file["components"]["schemas"]["Tokens"]["properties"]["tokens"]["items"]["maximum"].clone();
    let last = last.as_u64().expect("a token");
    for (token, expected) in [(last, 200), (last + 1, 400)] {
        assert_eq!(post(&server, "/detokenize", &json!({ "tokens": [token] })).0, expected, "{token}");
    }
    // Endpoints that reject unknown fields list all their fields in the schema.
    for (path, schema, body, known) in [
        (
            "/tokenize",
            "TokenizeRequest",
            json!({ "content": "a", "zzz": 1 }),
            "model, content, prompt, add_special_tokens",
        ),
        ("/detokenize", "Tokens", json!({ "tokens": [], "zzz": 1 }), "model, tokens"),
    ] {
        let fields = file["components"]["schemas"][schema]["properties"].as_object().expect("an object");
        let (_, answer) = post(&server, path, &body);
        assert_eq!(answer["error"]["message"], format!("zzz: unknown field; supported fields: {known}"));
        let mut known: Vec<&str> = known.split(", ").collect();
        let mut fields: Vec<&str> = fields.keys().map(String::as_str).collect();
        known.sort_unstable();
        fields.sort_unstable();
        assert_eq!(fields, known, "{schema}");
    }
}

#[test]
fn what_the_file_names_is_answered_by_its_method_alone() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "--name", "smith"]);
    let (_, _, text) = tcp(&server, "GET", "/openapi.json", &[], b"");
    let file: Value = serde_json::from_str(&text).expect("JSON");
    let paths = file["paths"].as_object().expect("paths");
    assert!(paths.len() >= 11, "{paths:?}");
    for (path, methods) in paths {
        let methods = methods.as_object().expect("methods");
        let path = path.replace("{name}", "smith");
        for method in ["GET", "POST"] {
            let body: &[u8] = if method == "POST" { b"{}" } else { b"" };
            let (status, _, answer) = tcp(&server, method, &path, &[], body);
            let is_named = methods.contains_key(&method.to_lowercase());
            assert_eq!(status != 405, is_named, "{method} {path}: {status} {answer}");
            assert_ne!(status, 404, "{method} {path}: {answer}");
        }
    }
}

/// JSON schemas and JavaScript do not distinguish between 7 and 7.0.
#[test]
fn whole_numbers_may_have_a_point() {
    let server = Server::start(&["--listen", "127.0.0.1:0"]);
    let whole = json!({ "prompt": [5, 6], "max_tokens": 2, "seed": 3, "top_k": 4, "logit_bias": [[7, -1]] });
    let pointed = json!({ "prompt": [5.0, 6.0], "max_tokens": 2.0, "seed": 3.0, "top_k": 4.0, "logit_bias": [[7.0, -1.0]] });
    let texts = [whole, pointed].map(|body| {
        let (status, answer) = post(&server, "/v1/completions", &body);
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["text"].clone()
    });
    assert_eq!(texts[0], texts[1]);
    for body in [
        json!({ "prompt": [5.5] }),
        json!({ "prompt": "a", "seed": 1.5 }),
        json!({ "prompt": "a", "max_tokens": 1e300 }),
    ] {
        assert_eq!(post(&server, "/v1/completions", &body).0, 400, "{body}");
    }
    assert_eq!(post(&server, "/detokenize", &json!({ "tokens": [447.0] })).0, 200);
}
