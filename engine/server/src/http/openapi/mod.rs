//! Route `GET /openapi.json`: machine-readable description of the API. Names, ranges and codes come from the code
//! that checks the requests. Tokens, defaults and model names are specific to this server.

mod facts;
mod requests;
mod responses;
mod streams;
#[cfg(test)]
mod tests;
mod texts;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value, json};

use self::facts::ServerFacts;
use super::app::App;
use super::respond::answer;
use super::routes::{AnswerContent, ENDPOINTS, Endpoint};
use crate::api_error::ApiErrorKind;

/// Handles `GET /openapi.json`.
pub async fn openapi(State(registry): App) -> Response {
    answer(&document(&ServerFacts::of(&registry)))
}

fn document(facts: &ServerFacts) -> Value {
    let schemas: Map<String, Value> =
        [requests::schemas(facts), responses::schemas(), streams::schemas()].into_iter().flatten().collect();
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "anneal serve",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Text generation over HTTP, compatible with OpenAI's API. A null field counts as missing.",
            "license": { "name": "MIT", "identifier": "MIT" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths(facts),
        "components": { "schemas": schemas },
    });
    if facts.has_keys {
        document["components"]["securitySchemes"] = json!({ "key": { "type": "http", "scheme": "bearer" } });
        document["security"] = json!([{ "key": [] }]);
    }
    document
}

fn paths(facts: &ServerFacts) -> Value {
    let mut paths = Map::new();
    for endpoint in ENDPOINTS {
        let method = endpoint.method().to_lowercase();
        paths.insert(endpoint.openapi_path(), json!({ method: operation(endpoint, facts) }));
    }
    Value::Object(paths)
}

fn operation(endpoint: &Endpoint, facts: &ServerFacts) -> Value {
    let reference = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    let json = |name: &str| json!({ "application/json": { "schema": reference(name) } });
    let ok = |description: &str, content: Value| json!({ "description": description, "content": content });
    let content = match endpoint.answer {
        AnswerContent::Json(name) => json(name),
        AnswerContent::Streamed(name, chunk) => {
            let mut content = json(name);
            content["text/event-stream"] = streams::events(chunk);
            content
        }
        AnswerContent::Object => json!({ "application/json": { "schema": { "type": "object" } } }),
        AnswerContent::Text => json!({ "text/plain": { "schema": { "type": "string" } } }),
    };
    let mut responses = errors(&endpoint.errors.concat(), facts);
    responses.insert("200".to_string(), ok("The answer.", content));
    let mut operation =
        json!({ "operationId": endpoint.id, "summary": endpoint.summary, "responses": responses });
    if let Some(request) = endpoint.request {
        operation["requestBody"] = json!({ "required": true, "content": json(request) });
    }
    // Adds the parts that only some endpoints have.
    match endpoint.id {
        "health" => {
            operation["responses"] = json!({
                "200": ok("The server accepts requests.", json("Health")),
                "503": ok("The server is shutting down.", json("Health")),
            });
            operation["security"] = json!([]);
        }
        // Anthropic's names of the types differ.
        "messages" | "count_tokens" => {
            let responses = operation["responses"].as_object_mut().into_iter().flatten();
            for (_, response) in responses.filter(|(status, _)| *status != "200") {
                let schema = &mut response["content"]["application/json"]["schema"]["allOf"][1];
                schema["properties"]["error"]["properties"]["type"] = json!({ "type": "string" });
            }
        }
        "model" => {
            operation["parameters"] = json!([{
                "name": "name", "in": "path", "required": true, "schema": { "type": "string", "enum": facts.names },
            }]);
        }
        _ => {}
    }
    operation
}

/// Returns the error responses of a request that may fail with `kinds` or because of access control.
fn errors(kinds: &[ApiErrorKind], facts: &ServerFacts) -> Map<String, Value> {
    let asks: &[ApiErrorKind] = match facts.has_keys {
        true => &[ApiErrorKind::Unauthorized],
        false => &[ApiErrorKind::Forbidden, ApiErrorKind::Origin],
    };
    let all = [kinds, asks].concat();
    let mut statuses: Vec<u16> = all.iter().map(|kind| kind.words().0).collect();
    statuses.sort_unstable();
    statuses.dedup();
    statuses.into_iter().map(|status| (status.to_string(), error(status, &all))).collect()
}

fn error(status: u16, kinds: &[ApiErrorKind]) -> Value {
    let kinds: Vec<_> = kinds.iter().map(|kind| kind.words()).filter(|words| words.0 == status).collect();
    let types: Vec<&str> = kinds.iter().map(|words| words.1).collect();
    let codes: Vec<&str> = kinds.iter().map(|words| words.2).collect();
    let mut response = json!({
        "description": unique(codes.clone()).join(", "),
        "content": { "application/json": { "schema": { "allOf": [
            { "$ref": "#/components/schemas/Error" },
            { "properties": { "error": { "properties": {
                "type": { "enum": unique(types) },
                "code": { "enum": unique(codes) },
            }}}},
        ]}}},
    });
    if matches!(status, 429 | 503) {
        response["headers"] = json!({ "Retry-After": {
            "description": "Seconds after which a retry may succeed.",
            "schema": { "type": "integer", "minimum": 1 },
        }});
    }
    response
}

fn unique(mut words: Vec<&str>) -> Vec<&str> {
    words.sort_unstable();
    words.dedup();
    words
}
