//! Schemas of server-sent events.

use serde_json::{Map, Value, json};

use super::responses::{chat_logprobs, ends, object, text_logprobs, tokens, with_content};

/// Returns the schema of one event, whose data is a chunk with the schema `chunk`, or the end mark. `itemSchema`
/// comes from OpenAPI 3.2, but programs that read 3.1 accept it. A plain `schema` would describe the whole stream.
pub fn events(chunk: &str) -> Value {
    let one_of = [chunk, "Error"].map(|name| json!({ "$ref": format!("#/components/schemas/{name}") }));
    json!({ "itemSchema": {
        "type": "object",
        "description": "Server-sent event. With `stream`, the server sends one event for each part of the answer. \
                        The last event is [DONE] or an error.",
        "properties": { "data": { "anyOf": [
            { "type": "string", "const": "[DONE]" },
            {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": { "anyOf": one_of },
            },
        ]}},
        "required": ["data"],
    }})
}

/// Returns the schemas of the chunks, by name.
pub fn schemas() -> Map<String, Value> {
    let text = json!({ "type": "string" });
    let call = some(
        &["index", "function"],
        json!({
            "index": { "type": "integer", "minimum": 0 },
            "id": text,
            "type": { "const": "function" },
            "function": some(&["arguments"], json!({ "name": text, "arguments": text })),
        }),
    );
    let delta = some(
        &[],
        json!({
            "role": { "const": "assistant" },
            "content": text,
            "reasoning_content": text,
            "tool_calls": { "type": "array", "items": call, "minItems": 1 },
        }),
    );
    let all = json!({
        "MessagesEvent": typed_event(),
        "ResponseEvent": typed_event(),
        "CompletionChunk":
            chunk("text_completion", json!({ "text": text, "logprobs": text_logprobs() }), json!(["stop", "length", null])),
        "ChatChunk": chunk(
            "chat.completion.chunk",
            json!({ "delta": delta, "logprobs": chat_logprobs() }),
            json!(["stop", "length", "tool_calls", null]),
        ),
    });
    let mut all = all.as_object().cloned().unwrap_or_default();
    all.insert("InfillChunk".to_string(), with_content(all["CompletionChunk"].clone()));
    all
}

/// Returns the schema of an event that contains its type.
fn typed_event() -> Value {
    json!({ "type": "object", "properties": { "type": { "type": "string" } }, "required": ["type"] })
}

/// Returns the schema of an object in which only the properties in `required` are required.
fn some(required: &[&str], properties: Value) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn chunk(kind: &str, mut choice: Value, reasons: Value) -> Value {
    choice["index"] = json!({ "type": "integer", "minimum": 0 });
    choice["finish_reason"] = json!({ "enum": reasons });
    let names: Vec<String> = choice.as_object().into_iter().flat_map(Map::keys).cloned().collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    choice["tokens"] = tokens();
    let choices = json!({ "type": "array", "items": some(&names, choice), "maxItems": 1 });
    let mut all = object(
        &["id", "object", "created", "model", "choices"],
        json!({
            "id": { "type": "string" },
            "object": { "const": kind },
            "created": { "type": "integer", "minimum": 0 },
            "model": { "type": "string" },
            "choices": choices,
            "usage": { "$ref": "#/components/schemas/Usage" },
            "prompt_progress": { "type": "object", "description": "Progress of evaluating the prompt, if requested." },
            "timings": { "$ref": "#/components/schemas/Timings" },
        }),
    );
    // The last chunk of a choice has these fields.
    if let (Some(properties), Some(ends)) = (all["properties"].as_object_mut(), ends().as_object()) {
        properties.extend(ends.clone());
    }
    all
}
