//! Schemas of requests whose texts are evaluated without generating: embeddings and reranking.

use serde_json::{Value, json};

use super::facts::ServerFacts;
use super::requests::token;
use crate::embeddings::TEXTS;

/// Returns the schema of an embedding request.
pub(super) fn embedding(facts: &ServerFacts) -> Value {
    let text = json!({ "type": "string", "minLength": 1 });
    let tokens = json!({ "type": "array", "items": token(facts), "minItems": 1 });
    let most = facts.defaults.deadline.as_secs_f64();
    json!({
        "type": "object",
        "properties": {
            "input": { "anyOf": [
                text,
                { "type": "array", "items": text, "minItems": 1, "maxItems": TEXTS },
                tokens,
                { "type": "array", "items": tokens, "minItems": 1, "maxItems": TEXTS },
            ]},
            "model": { "enum": facts.models() },
            "encoding_format": { "enum": ["float", "base64", null], "default": "float" },
            "dimensions": facts.dimensions(),
            "timeout_s": { "type": ["number", "null"], "minimum": 0.001, "maximum": most, "default": most },
        },
        "required": ["input"],
        "additionalProperties": true,
    })
}

/// Returns the schema of a rerank request.
pub(super) fn rerank(facts: &ServerFacts) -> Value {
    let most = facts.defaults.deadline.as_secs_f64();
    let text = json!({ "type": "string" });
    let object = json!({ "type": "object", "properties": { "text": text }, "required": ["text"] });
    json!({
        "type": "object",
        "properties": {
            "query": { "type": "string", "minLength": 1 },
            "documents": {
                "type": "array", "items": { "anyOf": [text, object] }, "minItems": 1, "maxItems": TEXTS,
            },
            "top_n": {
                "type": ["integer", "null"], "minimum": 1, "maximum": u32::MAX,
                "description": "Maximum number of results.",
            },
            "return_documents": {
                "type": ["boolean", "null"], "default": false,
                "description": "True to return the text of each document.",
            },
            "model": { "enum": facts.models() },
            "timeout_s": { "type": ["number", "null"], "minimum": 0.001, "maximum": most, "default": most },
        },
        "required": ["query", "documents"],
        "additionalProperties": true,
    })
}
