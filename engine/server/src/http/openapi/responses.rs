//! Schemas of responses.

use serde_json::{Map, Value, json};

use crate::finish_reason::FinishReason;

/// Returns the schemas of responses, by name.
pub fn schemas() -> Map<String, Value> {
    let count = json!({ "type": "integer", "minimum": 0 });
    let text = json!({ "type": "string" });
    let nothing = json!({ "type": "null" });
    let numbers = json!({ "type": "array", "items": { "type": "number" } });
    let states = states();
    let all = json!({
        "AnthropicMessage": answer_object("message", &["content", "stop_reason", "usage"]),
        "Response": answer_object("response", &["output", "status", "usage"]),
        "RenderedPrompt": object(&[], json!({ "prompt": text })),
        "TokenizerInfo": object(&[], json!({
            "model": text,
            "bos_token": { "type": ["string", "null"] },
            "eos_token": { "type": ["string", "null"] },
            "add_bos_token": { "type": "boolean", "description": "True if a prompt begins with bos_token." },
        })),
        "TokenCount": object(&[], json!({ "input_tokens": count })),
        "Error": object(&["error"], json!({ "type": { "const": "error", "description": "Only in Anthropic's format." }, "error": {
            "type": "object",
            "properties": {
                "message": text,
                "type": text,
                "param": { "type": ["string", "null"], "description": "Name of the invalid field." },
                "code": text,
                "retry_after": { "type": "integer", "minimum": 1, "description": "Seconds after which a retry may \
                                                            succeed." },
            },
            "required": ["message", "type", "param", "code"],
        }})),
        "Status": status(&count),
        "Health": object(&[], json!({ "status": { "enum": ["ok", "degraded", "stopping"] } })),
        "Model": object(&["id", "object", "created", "owned_by", "state"], json!({
            "id": text, "object": { "const": "model" }, "created": count, "owned_by": text,
            "state": states,
            "error": { "type": "string", "description": "Reason why the model could not be loaded." },
            "description": text,
            "context": { "type": "integer", "minimum": 1, "description": "Number of tokens, shared by all slots." },
            "slots": { "type": "integer", "minimum": 1 },
        })),
        "Models": object(&[], json!({
            "object": { "const": "list" },
            "data": { "type": "array", "items": { "$ref": "#/components/schemas/Model" } },
        })),
        "ModelChange": object(&[], json!({
            "success": { "const": true },
            "model": { "$ref": "#/components/schemas/Model" },
        })),
        "Usage": object(&[], json!({
            "prompt_tokens": count, "completion_tokens": count, "total_tokens": count,
            "prompt_tokens_details": object(&[], json!({ "cached_tokens": count })),
            "completion_tokens_details": object(&[], json!({ "reasoning_tokens": count })),
        })),
        "Timings": timings(),
        "Completion": answer("text_completion", json!({ "text": text, "logprobs": text_logprobs() }), &["stop", "length"]),
        "ChatCompletion": answer(
            "chat.completion",
            json!({
                "message": object(&["role", "content", "refusal"], json!({
                    "role": { "const": "assistant" },
                    "content": { "type": ["string", "null"] },
                    "refusal": nothing,
                    "reasoning_content": { "type": "string", "description": "Thoughts before the answer." },
                    "tool_calls": { "type": "array", "minItems": 1, "items": object(&[], json!({
                        "id": text,
                        "type": { "const": "function" },
                        "function": object(&[], json!({
                            "name": text,
                            "arguments": { "type": "string", "description": "JSON; incomplete only if the answer was \
                                                                            cut short." },
                        })),
                    }))},
                })),
                "logprobs": chat_logprobs(),
            }),
            &["stop", "length", "tool_calls"],
        ),
        "Ranking": object(&[], json!({
            "object": { "const": "list" },
            "model": text,
            "results": { "type": "array", "items": object(&["index", "relevance_score"], json!({
                "index": { "type": "integer", "minimum": 0, "description": "Index of the document in the request." },
                "relevance_score": { "type": "number" },
                "document": object(&[], json!({ "text": text })),
            }))},
            "usage": object(&[], json!({ "prompt_tokens": count, "total_tokens": count })),
        })),
        "Embeddings": object(&[], json!({
            "object": { "const": "list" },
            "data": { "type": "array", "items": object(&[], json!({
                "object": { "const": "embedding" },
                "index": count,
                "embedding": { "anyOf": [numbers, { "type": "string", "contentEncoding": "base64" }] },
            }))},
            "model": text,
            "usage": object(&[], json!({ "prompt_tokens": count, "total_tokens": count })),
        })),
    });
    let mut all = all.as_object().cloned().unwrap_or_default();
    all.insert("InfillAnswer".to_string(), with_content(all["Completion"].clone()));
    all
}

/// Returns the schema `answer` with the text of the first choice in `content`, as in llama-server.
pub(super) fn with_content(mut answer: Value) -> Value {
    answer["properties"]["content"] = json!({ "type": "string", "description": "Text of the first choice." });
    answer
}

/// Returns the schema of an object with exactly these properties. If `required` is empty, all of them are required.
pub(super) fn object(required: &[&str], properties: Value) -> Value {
    let names = properties.as_object().into_iter().flat_map(Map::keys);
    let required: Vec<&str> =
        if required.is_empty() { names.map(String::as_str).collect() } else { required.to_vec() };
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// Returns the schema of an answer that `kind` identifies. The API that defines this kind also defines the other fields
/// of the answer.
fn answer_object(kind: &str, required: &[&str]) -> Value {
    let name = if kind == "message" { "type" } else { "object" };
    let required: Vec<&str> = ["id", name, "model"].iter().chain(required).copied().collect();
    json!({
        "type": "object",
        "properties": { "id": { "type": "string" }, name: { "const": kind }, "model": { "type": "string" } },
        "required": required,
    })
}

/// Returns the schema of a model's state.
fn states() -> Value {
    json!({ "enum": ["unloaded", "loading", "loaded", "leaving", "failed"] })
}

/// Returns the schema of the JSON form of [`Status`](crate::status::Status).
fn status(count: &Value) -> Value {
    let text = json!({ "type": "string" });
    let seconds = json!({ "type": "number", "minimum": 0 });
    let maybe = json!({ "type": ["integer", "null"], "minimum": 0, "description": "Null if no request runs in the slot." });
    let slot = object(
        &[],
        json!({
            "id": count,
            "state": { "enum": ["idle", "prefill", "decode", "waiting"], "description": "waiting: the client has not \
                                                                                        read the answer." },
            "held_tokens": { "type": "integer", "minimum": 0, "description": "0 if the tokens belong to another client." },
            "prompt_tokens": maybe, "cached_tokens": maybe, "generated_tokens": maybe,
            "age_s": { "type": ["number", "null"], "minimum": 0 },
            "tokens_per_second": { "type": ["number", "null"], "minimum": 0 },
        }),
    );
    let list = |items: Value| json!({ "type": "array", "items": items });
    object(
        &[],
        json!({
            "status": { "enum": ["ok", "stopping"] },
            "version": text, "llama_version": text, "pid": count, "uptime_s": count, "connections": count,
            "models": list(object(&[], json!({
                "id": text, "state": states(), "description": text, "context": count, "slots": list(slot),
            }))),
            "queue": object(&[], json!({ "waiting": count, "bound": count, "embeddings_waiting": count })),
            "totals": object(&[], json!({
                "requests": count, "refused": count, "prefill_tokens": count, "decode_tokens": count,
                "prompt_tokens": count, "cached_tokens": count, "batches": count, "batch_s": seconds,
                "disk_lookups": count, "disk_hits": count,
            })),
            "threads": object(&[], json!({ "decode": count, "prefill": count, "process": count })),
            "memory": object(&[], json!({ "resident_bytes": count, "limit_bytes": count })),
            "cpu": object(&[], json!({
                "seconds": seconds, "cores": count,
                "throttled_periods": { "type": ["integer", "null"], "minimum": 0 },
            })),
        }),
    )
}

fn timings() -> Value {
    let number = json!({ "type": "number", "minimum": 0 });
    let maybe = json!({ "type": ["number", "null"], "minimum": 0 });
    object(
        &[],
        json!({
            "queue_ms": number,
            "time_to_first_token_ms": maybe,
            "prefill_ms": maybe,
            "prefill_tokens_per_second": maybe,
            "decode_ms": number,
            "drafted_tokens": { "type": "integer", "minimum": 0 },
            "accepted_tokens": { "type": "integer", "minimum": 0 },
            "drafts_turned_off": { "type": "boolean" },
            "decode_tokens_per_second": maybe,
        }),
    )
}

pub(super) fn text_logprobs() -> Value {
    let list = |items: Value| json!({ "type": "array", "items": items });
    let mut all = object(
        &[],
        json!({
            "tokens": list(json!({ "type": "string" })),
            "token_logprobs": list(json!({ "type": ["number", "null"] })),
            "top_logprobs": list(json!({ "type": ["object", "null"] })),
            "text_offset": list(json!({ "type": "integer", "minimum": 0 })),
        }),
    );
    all["type"] = json!(["object", "null"]);
    all
}

pub(super) fn chat_logprobs() -> Value {
    let one = json!({
        "token": { "type": "string" },
        "logprob": { "type": ["number", "null"] },
        "bytes": { "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 255 } },
    });
    let mut place = one.clone();
    place["top_logprobs"] = json!({ "type": "array", "items": object(&[], one) });
    let content = json!({ "type": "array", "items": object(&[], place) });
    let mut all = object(&[], json!({ "content": content, "refusal": { "type": "null" } }));
    all["type"] = json!(["object", "null"]);
    all
}

/// Returns the schema of the token numbers that `return_tokens` asks for.
pub(super) fn tokens() -> Value {
    json!({ "type": "array", "items": { "type": "integer", "minimum": 0 } })
}

/// Returns the schemas of Anneal's own fields about the end of an answer.
pub(super) fn ends() -> Value {
    let ends = [
        FinishReason::End,
        FinishReason::StopString,
        FinishReason::Length,
        FinishReason::ContextFull,
        FinishReason::Deadline,
        FinishReason::Shutdown,
    ];
    json!({
        "stop": { "enum": ends, "description": "Exact reason why the answer ended." },
        "stop_string": { "type": ["string", "null"] },
        "seed": { "type": "integer", "minimum": 0 },
    })
}

fn answer(kind: &str, mut choice: Value, reasons: &[&str]) -> Value {
    choice["index"] = json!({ "type": "integer", "minimum": 0 });
    choice["finish_reason"] = json!({ "enum": reasons });
    let names: Vec<String> = choice.as_object().into_iter().flat_map(Map::keys).cloned().collect();
    let end = ends();
    // Each of several choices has its own values.
    for (name, schema) in end.as_object().into_iter().flatten() {
        choice[name] = schema.clone();
    }
    choice["tokens"] = tokens();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    object(
        &[],
        json!({
            "id": { "type": "string" },
            "object": { "const": kind },
            "created": { "type": "integer", "minimum": 0 },
            "model": { "type": "string" },
            "choices": { "type": "array", "items": object(&names, choice), "minItems": 1 },
            "usage": { "$ref": "#/components/schemas/Usage" },
            "stop": end["stop"],
            "stop_string": end["stop_string"],
            "seed": end["seed"],
            "timings": { "$ref": "#/components/schemas/Timings" },
        }),
    )
}
