//! Schemas of requests.

use sampling::{PARAMETERS, Parameter};
use serde_json::{Map, Value, json};

use super::facts::ServerFacts;
use super::texts;
use crate::http::completions::{CHOICES, PROMPTS};
use crate::infill::FILES;
use crate::logprobs::MOST;
use crate::request::{STOP_CHARACTERS, STOPS};
use crate::scope::SALT_CHARACTERS;

/// Returns the schemas of requests, by name.
pub fn schemas(facts: &ServerFacts) -> Map<String, Value> {
    let generate = [sampling(facts), limits(facts)].into_iter().flatten().collect::<Map<_, _>>();
    let request = |own: Value, more: Map<String, Value>, required: &str| {
        let mut properties = generate.clone();
        properties.extend(more);
        properties.extend(own.as_object().cloned().unwrap_or_default());
        json!({
            "type": "object",
            "properties": properties,
            "required": [required],
            // Clients send many fields that the server ignores.
            "additionalProperties": true,
            "not": {
                "description": "Use at most one of grammar and json_schema.",
                "properties": { "grammar": { "type": "string" }, "json_schema": { "type": ["object", "boolean"] } },
                "required": ["grammar", "json_schema"],
            },
        })
    };
    let mut chat = request(chat(facts), details().into_iter().chain(conversation()).collect(), "messages");
    chat["if"] = json!({
        "properties": { "tool_choice": { "anyOf": [{ "const": "required" }, { "type": "object" }] } },
        "required": ["tool_choice"],
    });
    chat["then"] = json!({
        "properties": { "tools": { "type": "array", "minItems": 1 } },
        "required": ["tools"],
    });
    let mut completion = request(completion(facts), details(), "prompt");
    completion["anyOf"] = (1..=CHOICES).map(as_many).collect();
    let most = facts.defaults.deadline.as_secs_f64();
    let mut infill = request(infill(facts), details(), "");
    infill["required"] = json!([]);
    let all = json!({
        "CompletionRequest": completion,
        "InfillRequest": infill,
        "ChatRequest": chat,
        "MessagesRequest": request(messages(), conversation(), "messages"),
        "ResponsesRequest": request(responses(), conversation(), "input"),
        "EmbeddingRequest": texts::embedding(facts),
        "RerankRequest": texts::rerank(facts),
        "Message": message(),
        "Tool": tool(),
        "TokenizeRequest": {
            "type": "object",
            "properties": {
                "content": { "type": ["string", "null"] },
                "prompt": { "type": ["string", "null"], "description": "Alias of content." },
                "add_special_tokens": {
                    "type": ["boolean", "null"], "default": true,
                    "description": "False to leave out BOS and EOS tokens.",
                },
                "model": { "enum": facts.models() },
            },
            "oneOf": [
                { "properties": { "content": { "type": "string" } }, "required": ["content"] },
                { "properties": { "prompt": { "type": "string" } }, "required": ["prompt"] },
            ],
            "additionalProperties": false,
        },
        "ModelName": {
            "type": "object",
            "properties": {
                "model": { "enum": facts.names },
                "timeout_s": { "type": ["number", "null"], "minimum": 0.001, "maximum": most, "default": most },
            },
            "required": ["model"],
            "additionalProperties": false,
        },
        "Text": {
            "type": "object",
            "properties": { "content": { "type": "string" }, "model": { "enum": facts.models() } },
            "required": ["content"],
            "additionalProperties": false,
        },
        "Tokens": {
            "type": "object",
            "properties": { "tokens": { "type": "array", "items": token(facts), "maxItems": super::super::other::TOKENS },
                "model": { "enum": facts.models() },
            },
            "required": ["tokens"],
            "additionalProperties": false,
        },
    });
    all.as_object().cloned().unwrap_or_default()
}

pub(super) fn token(facts: &ServerFacts) -> Value {
    json!({ "type": "integer", "minimum": 0, "maximum": facts.last_token })
}

/// Returns the fields of the sampler: numeric parameters, which come from the sampler's table, and the other fields.
fn sampling(facts: &ServerFacts) -> Map<String, Value> {
    let number = |parameter: &Parameter| {
        let default = parameter.text(&facts.defaults.sampling).parse::<f64>().unwrap_or_default();
        json!({
            "type": [if parameter.whole { "integer" } else { "number" }, "null"],
            "minimum": parameter.min,
            "maximum": parameter.max,
            "default": default,
            "description": format!("{}. {}.", parameter.doc, parameter.range),
        })
    };
    let mut all: Map<String, Value> =
        PARAMETERS.iter().map(|parameter| (parameter.name.to_string(), number(parameter))).collect();
    let bias =
        json!({ "anyOf": [{ "type": "number", "minimum": -1000, "maximum": 1000 }, { "const": false }] });
    let more = json!({
        "seed": {
            "type": ["integer", "null"], "minimum": -1, "maximum": u64::MAX,
            "description": "Seed of the random number generator; -1 for a random seed.",
        },
        "dry_sequence_breakers": {
            "type": ["array", "null"],
            "items": { "type": "string", "minLength": 1, "maxLength": 40, "pattern": "^[^\\u0000]*$" },
            "maxItems": 64,
            "description": "Texts that end a repetition for DRY, at most 40 bytes each.",
        },
        "logit_bias": {
            "description": "Number added to the logits of tokens; false bans a token.",
            "anyOf": [
                { "type": "object", "propertyNames": { "pattern": "^[0-9]+$" }, "additionalProperties": bias },
                { "type": "array", "items": {
                    "type": "array", "prefixItems": [token(facts), bias], "items": false, "minItems": 2, "maxItems": 2,
                }},
                { "type": "null" },
            ],
        },
        "grammar": { "type": ["string", "null"], "description": "Grammar in GBNF, or in Lark if the first line is \
                                                                %llguidance {}." },
        "json_schema": { "type": ["object", "boolean", "null"], "description": "JSON schema of the answer." },
    });
    all.extend(more.as_object().cloned().unwrap_or_default());
    all
}

/// Returns the schema of a maximum number of tokens, with its default.
fn most_tokens(default: Option<u32>) -> Value {
    let mut all = json!({
        "anyOf": [{ "type": ["integer", "null"], "minimum": 1, "maximum": u32::MAX }, { "const": -1 }],
        "description": "Maximum number of tokens; -1 for no limit.",
    });
    if let Some(default) = default {
        all["default"] = default.into();
    }
    all
}

/// Returns the schema of a maximum number of tokens that may be 0.
fn no_tokens_or_more(default: Option<u32>) -> Value {
    let mut all = most_tokens(default);
    all["anyOf"][0]["minimum"] = json!(0);
    all["description"] = json!("Maximum number of tokens; 0 to only evaluate the prompt, -1 for no limit.");
    all
}

/// Returns the remaining fields of a request for text.
fn limits(facts: &ServerFacts) -> Map<String, Value> {
    let stop = json!({ "type": "string", "minLength": 1, "maxLength": STOP_CHARACTERS });
    let most = facts.defaults.deadline.as_secs_f64();
    let all = json!({
        "max_tokens": most_tokens(Some(facts.defaults.max_tokens)),
        "timeout_s": {
            "type": ["number", "null"], "minimum": 0.001, "maximum": most, "default": most,
            "description": "Time limit in seconds, including waiting.",
        },
        "stream": { "type": ["boolean", "null"], "default": false },
        "return_progress": {
            "type": ["boolean", "null"], "default": false,
            "description": "True to report in a stream how much of the prompt has been evaluated.",
        },
        "ignore_eos": { "type": ["boolean", "null"], "default": false },
        "cache_prompt": { "type": ["boolean", "null"], "default": true },
        "cache_salt": {
            "type": ["string", "null"], "minLength": 1, "maxLength": SALT_CHARACTERS,
            "description": "Separates this request from others: only requests with the same key and salt share \
                           evaluated prompts.",
        },
        "speculative": crate::drafts::schema(facts.defaults.drafts),
        "stop": { "anyOf": [stop, { "type": "array", "items": stop, "maxItems": STOPS }, { "type": "null" }] },
        "model": { "enum": facts.models() },
        "workload": { "enum": facts.workloads(), "description": "Name of a workload in the server's configuration." },
    });
    all.as_object().cloned().unwrap_or_default()
}

/// Returns the fields that only chats and completions have.
fn details() -> Map<String, Value> {
    let all = json!({
        "return_tokens": {
            "type": ["boolean", "null"], "default": false,
            "description": "True to return token numbers in addition to the text.",
        },
        "stream_options": {
            "type": ["object", "null"],
            "properties": { "include_usage": { "type": ["boolean", "null"], "default": false } },
        },
    });
    all.as_object().cloned().unwrap_or_default()
}

/// Returns the fields of a conversation in all formats.
fn conversation() -> Map<String, Value> {
    let budget = json!({
        "type": ["integer", "null"], "minimum": -1, "maximum": u32::MAX,
        "description": "Maximum number of thought tokens; -1 for no limit.",
    });
    let switch = json!({ "type": ["boolean", "null"], "description": "False to answer without thoughts." });
    let all = json!({
        "reasoning_format": {
            "enum": ["auto", "deepseek", "none", null], "default": "auto",
            "description": "none leaves thoughts in the text; other values return them separately.",
        },
        "reasoning_effort": {
            "type": ["string", "null"],
            "description": "none to answer without thoughts; other values set the template's variable \
                           reasoning_effort.",
        },
        "reasoning": { "type": ["object", "null"], "properties": {
            "effort": { "type": ["string", "null"] }, "enabled": switch, "max_tokens": budget,
        }},
        "thinking": {
            "type": ["object", "null"],
            "properties": { "type": { "enum": ["enabled", "adaptive", "auto", "disabled"] }, "budget_tokens": budget },
            "required": ["type"],
        },
        "enable_thinking": switch,
        "thinking_budget_tokens": budget,
        "thinking_token_budget": budget,
        "chat_template_kwargs": { "type": ["object", "null"] },
        "add_generation_prompt": {
            "type": ["boolean", "null"], "default": true,
            "description": "False to end the prompt after the last message, without the beginning of an answer. Has no \
                           effect if the answer continues the last message.",
        },
        "continue_final_message": {
            "type": ["boolean", "null"],
            "description": "True to continue the last message, which must be the assistant's. By default, an assistant's \
                           last message with a text is continued.",
        },
    });
    all.as_object().cloned().unwrap_or_default()
}

fn completion(facts: &ServerFacts) -> Value {
    let text = json!({ "type": "string", "minLength": u32::from(!facts.begins) });
    let tokens = json!({ "type": "array", "items": token(facts), "minItems": 1, "maxItems": facts.n_ctx });
    let suffix = match facts.fills_in {
        true => {
            json!({ "type": ["string", "null"], "description": "Text after the answer. Needs prompts that are strings." })
        }
        false => {
            json!({ "enum": ["", null], "description": "This model cannot fill in the middle of a text." })
        }
    };
    json!({
        "prompt": { "anyOf": [
            text,
            { "type": "array", "items": text, "minItems": 1, "maxItems": PROMPTS },
            tokens,
            { "type": "array", "items": tokens, "minItems": 1, "maxItems": PROMPTS },
        ]},
        "max_tokens": no_tokens_or_more(Some(facts.defaults.max_tokens)),
        "n": choices(),
        "best_of": { "type": ["integer", "null"], "minimum": 1, "maximum": CHOICES, "description": "Must be equal to \
                                                                                                   n." },
        "echo": {
            "type": ["boolean", "null"], "default": false,
            "description": "True to begin the text with the prompt. With logprobs, the lists then begin with the \
                            tokens of the prompt.",
        },
        "response_format": response_format(),
        "suffix": suffix,
        "logprobs": logprobs(),
    })
}

/// Returns the schema of a number of alternatives for each token.
fn logprobs() -> Value {
    json!({
        "type": ["integer", "null"], "minimum": 0, "maximum": MOST,
        "description": "Number of most likely tokens to return at each position.",
    })
}

/// Returns the fields of a request to fill in the middle of a text.
fn infill(facts: &ServerFacts) -> Value {
    let text = |about: &str| json!({ "type": ["string", "null"], "description": about });
    json!({
        "input_prefix": text("Text before the gap."),
        "input_suffix": text("Text after the gap."),
        "prompt": text("Beginning of the text in the gap."),
        "input_extra": {
            "type": ["array", "null"], "maxItems": FILES, "description": "Other files, as context.",
            "items": {
                "type": "object",
                "properties": { "filename": { "type": ["string", "null"] }, "text": { "type": "string" } },
                "required": ["text"],
            },
        },
        "n": choices(),
        "max_tokens": no_tokens_or_more(Some(facts.defaults.max_tokens)),
        "n_predict": no_tokens_or_more(None),
        "logprobs": logprobs(),
    })
}

fn response_format() -> Value {
    let schema = json!({ "type": ["object", "boolean"] });
    let format = |kind: &str| json!({ "properties": { "type": { "const": kind } }, "required": ["type"], "type": "object" });
    json!({ "anyOf": [
        format("text"),
        {
            "type": "object",
            "properties": { "type": { "const": "json_object" }, "schema": { "type": ["object", "boolean", "null"] } },
            "required": ["type"],
        },
        {
            "type": "object",
            "properties": {
                "type": { "const": "json_schema" },
                "json_schema": { "type": "object", "properties": { "schema": schema }, "required": ["schema"] },
            },
            "required": ["type", "json_schema"],
        },
        { "type": "null" },
    ]})
}

fn chat(_: &ServerFacts) -> Value {
    json!({
        "messages": { "type": "array", "items": { "$ref": "#/components/schemas/Message" }, "minItems": 1 },
        "max_completion_tokens": most_tokens(None),
        "response_format": response_format(),
        "tools": { "type": ["array", "null"], "items": { "$ref": "#/components/schemas/Tool" } },
        "tool_choice": {
            "description": "A choice that requires a call cannot be combined with response_format, grammar or \
                            json_schema.",
            "anyOf": [
                { "enum": ["auto", "none", "required", null] },
                {
                    "type": "object",
                    "properties": {
                        "type": { "const": "function" },
                        "function": {
                            "type": "object",
                            "properties": { "name": { "type": "string", "description": "Name of one of the tools." } },
                            "required": ["name"],
                        },
                    },
                    "required": ["type", "function"],
                },
            ],
        },
        "n": choices(),
        "logprobs": { "type": ["boolean", "null"], "default": false },
        "top_logprobs": {
            "type": ["integer", "null"], "minimum": 0, "maximum": MOST, "description": "Number of most likely tokens \
                                                                                       to return at each position. \
                                                                                       Needs logprobs.",
        },
    })
}

/// Returns the fields of a request in Anthropic's format.
fn messages() -> Value {
    let blocks =
        json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "object" } }] });
    json!({
        "messages": { "type": "array", "minItems": 1, "items": {
            "type": "object",
            "properties": { "role": { "enum": ["user", "assistant", "system"] }, "content": blocks },
            "required": ["role", "content"],
        }},
        "system": { "anyOf": [{ "type": ["string", "null"] }, { "type": "array", "items": { "type": "object" } }] },
        "tools": { "type": ["array", "null"], "items": {
            "type": "object",
            "properties": {
                "type": { "enum": ["custom", null] },
                "name": { "type": "string", "minLength": 1 },
                "description": { "type": ["string", "null"] },
                "input_schema": { "type": ["object", "null"], "description": "JSON schema of the input." },
            },
            "required": ["name"],
        }},
        "tool_choice": { "type": ["object", "null"], "properties": { "type": { "enum": ["auto", "any", "tool", "none"] } } },
        "output_config": { "type": ["object", "null"] },
        "stop_sequences": { "type": ["array", "null"], "items": { "type": "string", "minLength": 1 } },
    })
}

/// Returns the fields of a request for a response.
fn responses() -> Value {
    json!({
        "input": { "anyOf": [
            { "type": "string" },
            { "type": "array", "minItems": 1, "items": { "type": "object" } },
        ]},
        "instructions": { "type": ["string", "null"] },
        "tools": { "type": ["array", "null"], "items": {
            "type": "object",
            "properties": {
                "type": { "const": "function" },
                "name": { "type": "string", "minLength": 1 },
                "description": { "type": ["string", "null"] },
                "parameters": { "type": ["object", "null"], "description": "JSON schema of the arguments." },
            },
            "required": ["type", "name"],
        }},
        "tool_choice": { "anyOf": [{ "enum": ["auto", "none", "required", null] }, { "type": "object" }] },
        "max_output_tokens": most_tokens(None),
        "text": { "type": ["object", "null"] },
        "background": { "enum": [false, null] },
        "previous_response_id": { "type": "null", "description": "The server stores no responses." },
        "conversation": { "type": "null", "description": "The server stores no responses." },
    })
}

/// Returns the schema for `n` = `best_of` = `count`. JSON Schema has no direct way to say that two fields are equal.
fn as_many(count: u32) -> Value {
    match count {
        1 => json!({ "properties": { "n": { "enum": [1, null] }, "best_of": { "enum": [1, null] } } }),
        _ => json!({
            "properties": { "n": { "enum": [count] }, "best_of": { "enum": [count, null] } },
            "required": ["n"],
        }),
    }
}

fn choices() -> Value {
    json!({ "type": ["integer", "null"], "minimum": 1, "maximum": CHOICES, "default": 1, "description": "Number of \
                                                                                   answers." })
}

fn message() -> Value {
    json!({
        "type": "object",
        "properties": {
            "role": { "type": "string", "examples": ["system", "user", "assistant", "tool"] },
            "content": { "anyOf": [
                { "type": ["string", "null"] },
                { "type": "array", "items": {
                    "type": "object",
                    "properties": { "type": { "const": "text" }, "text": { "type": "string" } },
                    "required": ["type", "text"],
                }},
            ]},
            "name": { "type": ["string", "null"] },
            "tool_calls": { "type": ["array", "null"], "items": {
                "type": "object",
                "properties": {
                    "id": { "type": ["string", "null"] },
                    "type": { "type": "string", "default": "function" },
                    "function": {
                        "type": "object",
                        "properties": {
                            "name": { "type": "string" },
                            "arguments": { "description": "JSON object, or a string that contains one." },
                        },
                        "required": ["name"],
                    },
                },
                "required": ["function"],
            }},
            "tool_call_id": { "type": ["string", "null"] },
        },
        "required": ["role"],
        "additionalProperties": true,
    })
}

fn tool() -> Value {
    json!({
        "type": "object",
        "properties": {
            "type": { "const": "function" },
            "function": {
                "type": "object",
                "properties": {
                    "name": { "type": "string", "minLength": 1 },
                    "description": { "type": ["string", "null"] },
                    "parameters": { "type": ["object", "null"], "description": "JSON schema of the arguments." },
                },
                "required": ["name"],
            },
        },
        "required": ["type", "function"],
    })
}
