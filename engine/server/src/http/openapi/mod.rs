//! `GET /openapi.json`: what can be asked of this server, for programs. Names, ranges and codes come from what checks the
//! requests; tokens, defaults and the model's name are this server's.

mod facts;
mod requests;
mod responses;
mod streams;
#[cfg(test)]
mod tests;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value, json};

use self::facts::ServerFacts;
use super::app::App;
use super::respond::answer;
use crate::api_error::ApiErrorKind;

/// `GET /openapi.json`
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
            "description": "Text of one model over HTTP, in OpenAI's shapes. A field that is null is as if it was not there.",
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

/// What every request with a body may be refused for.
const BODY: [ApiErrorKind; 4] =
    [ApiErrorKind::Invalid, ApiErrorKind::TooLarge, ApiErrorKind::MediaType, ApiErrorKind::Overloaded];

/// What every request for text may be refused for besides.
const GENERATE: [ApiErrorKind; 7] = [
    ApiErrorKind::PromptTooLong,
    ApiErrorKind::NoModel,
    ApiErrorKind::NoRoom,
    ApiErrorKind::Busy,
    ApiErrorKind::Failed,
    ApiErrorKind::Stopping,
    ApiErrorKind::Deadline,
];

/// The same of what only needs the model's vocabulary.
const MODEL: [ApiErrorKind; 6] = [
    ApiErrorKind::NoModel,
    ApiErrorKind::NoRoom,
    ApiErrorKind::Busy,
    ApiErrorKind::Failed,
    ApiErrorKind::Stopping,
    ApiErrorKind::Deadline,
];

fn paths(facts: &ServerFacts) -> Value {
    let reference = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    let json = |name: &str| json!({ "application/json": { "schema": reference(name) } });
    let body = |name: &str| json!({ "required": true, "content": json(name) });
    let ok = |description: &str, content: Value| json!({ "description": description, "content": content });
    let streamed = |name: &str, chunk: &str| {
        let mut content = json(name);
        content["text/event-stream"] = streams::events(chunk);
        content
    };
    let operation = |id: &str, summary: &str, content: Value, kinds: &[ApiErrorKind]| {
        let mut responses = errors(kinds, facts);
        responses.insert("200".to_string(), ok("What was asked for.", content));
        json!({ "operationId": id, "summary": summary, "responses": responses })
    };
    let post = |id: &str, summary: &str, request: &str, content: Value, kinds: &[&[ApiErrorKind]]| {
        let mut operation = operation(id, summary, content, &kinds.concat());
        operation["requestBody"] = body(request);
        json!({ "post": operation })
    };
    let text = json!({ "text/plain": { "schema": { "type": "string" } } });
    let mut health = operation("health", "Whether it takes requests; needs no key.", json("Health"), &[]);
    health["responses"] = json!({
        "200": ok("It does.", json("Health")),
        "503": ok("It is shutting down.", json("Health")),
    });
    health["security"] = json!([]);
    let mut model = operation(
        "model",
        "The model of this name.",
        json("Model"),
        &[ApiErrorKind::Invalid, ApiErrorKind::NoModel, ApiErrorKind::NotFound],
    );
    model["parameters"] = json!([{
        "name": "name", "in": "path", "required": true, "schema": { "type": "string", "enum": facts.names },
    }]);
    json!({
        "/v1/completions": post(
            "completions", "Goes on with a text.", "CompletionRequest", streamed("Completion", "CompletionChunk"), &[&BODY, &GENERATE],
        ),
        "/v1/chat/completions": post(
            "chat", "Answers a conversation.", "ChatRequest", streamed("ChatCompletion", "ChatChunk"), &[&BODY, &GENERATE],
        ),
        "/v1/embeddings": post(
            "embeddings", "Makes numbers of texts.", "EmbeddingRequest", json("Embeddings"), &[&BODY, &GENERATE],
        ),
        "/v1/models": { "get": operation("models", "The models.", json("Models"), &[]) },
        "/v1/models/{name}": { "get": model },
        "/tokenize": post("tokenize", "Cuts a text into tokens.", "Text", json("Tokens"), &[&BODY, &MODEL]),
        "/detokenize":
            post("detokenize", "Makes a text of tokens.", "Tokens", json("Text"), &[&BODY, &MODEL]),
        "/health": { "get": health },
        "/metrics": { "get": operation("metrics", "Counters and gauges for Prometheus.", text, &[]) },
        "/status": { "get": operation("status", "Slots, queue, speed, memory: what `anneal top` shows.", json("Status"), &[]) },
        "/openapi.json": {
            "get": operation("openapi", "This file.", json!({ "application/json": { "schema": { "type": "object" } } }), &[]),
        },
    })
}

/// The responses of a request that may be refused for `kinds`, or because of who asks.
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
            "description": "Seconds until another try may be worth it.",
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
