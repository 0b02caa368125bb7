//! Tools and their arguments. The ranges of the arguments come from the code that checks requests.

use std::sync::LazyLock;

use build_info::words::nearest;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use sampling::Parameter;
use serde_json::{Map, Value, json};
use server::embeddings::TEXTS;
use server::request::{STOP_CHARACTERS, STOPS};

/// Kind of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolKind {
    Generate,
    Chat,
    Embed,
    Tokenize,
    Info,
}

/// All tools, in the order of the listing.
pub static TOOLS: LazyLock<Vec<(ToolKind, Tool)>> = LazyLock::new(|| {
    vec![
        (ToolKind::Generate, generate()),
        (ToolKind::Chat, chat()),
        (ToolKind::Embed, embed()),
        (ToolKind::Tokenize, tokenize()),
        (ToolKind::Info, info()),
    ]
});

/// Sampling parameters that the tools offer. There are only a few, because clients show the whole schema to their own
/// model.
const NUMBERS: [&str; 5] = ["temperature", "top_k", "top_p", "min_p", "repeat_penalty"];

/// Returns the tool with the given name.
pub fn named(name: &str) -> Option<&'static (ToolKind, Tool)> {
    TOOLS.iter().find(|(_, tool)| tool.name == name)
}

/// Returns an error message for unknown `arguments` of `tool`. The server checks the values of known arguments.
pub fn unknown(tool: &Tool, arguments: &JsonObject) -> Option<String> {
    let known = tool.input_schema.get("properties").and_then(Value::as_object)?;
    let names = || known.keys().map(String::as_str);
    let name = arguments.keys().find(|name| !known.contains_key(*name))?;
    let shown: String = name.chars().take(60).collect();
    Some(match nearest(name, names()) {
        Some(near) => format!("{shown}: unknown argument; did you mean {near}?"),
        None if known.is_empty() => format!("{shown}: unknown argument; {} takes no arguments", tool.name),
        None => {
            format!(
                "{shown}: unknown argument; supported arguments: {}",
                names().collect::<Vec<_>>().join(", ")
            )
        }
    })
}

/// Returns an error message if `arguments` lack a mandatory argument of `tool`.
pub fn missing(tool: &Tool, arguments: &JsonObject) -> Option<String> {
    let required = tool.input_schema.get("required").and_then(Value::as_array)?;
    let name = required.iter().filter_map(Value::as_str).find(|name| !arguments.contains_key(*name))?;
    Some(format!("{name}: is missing"))
}

fn tool(
    name: &'static str,
    title: &str,
    description: &'static str,
    input: Value,
    output: Option<Value>,
) -> Tool {
    let object = |value: Value| std::sync::Arc::new(value.as_object().cloned().unwrap_or_default());
    // Tools neither change nor access anything outside the model's process.
    let hints = ToolAnnotations::with_title(title).read_only(true).open_world(false);
    let tool = Tool::new(name, description, object(input)).with_title(title).with_annotations(hints);
    match output {
        Some(output) => tool.with_raw_output_schema(object(output)),
        None => tool,
    }
}

/// Returns the schema of an object with `properties`. The properties in `required` are mandatory.
fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// Returns the schema of the argument that chooses a model.
fn model() -> Value {
    json!({ "type": "string", "description": "Name of the model, if the server has several. The `info` tool lists the \
        names." })
}

/// Returns the schema of a generation tool's arguments: `own`, and the arguments that all generation tools share.
fn generating(own: Value) -> Value {
    let number = |parameter: &Parameter| {
        json!({
            "type": if parameter.whole { "integer" } else { "number" },
            "minimum": parameter.min,
            "maximum": parameter.max,
            "description": format!("{}: {}.", parameter.doc, parameter.range),
        })
    };
    let stop = json!({ "type": "string", "minLength": 1, "maxLength": STOP_CHARACTERS });
    let mut all: Map<String, Value> = own.as_object().cloned().unwrap_or_default();
    let limits = json!({
        "max_tokens": { "type": "integer", "minimum": 1, "maximum": u32::MAX, "description": "Maximum number of \
                                                                                             tokens to generate." },
        "stop": {
            "anyOf": [stop, { "type": "array", "items": stop, "maxItems": STOPS }],
            "description": "Strings that end the answer. The answer does not contain them.",
        },
        "json_schema": {
            "type": "object",
            "description": "JSON schema that the answer must match. Cannot be combined with grammar.",
        },
        "grammar": { "type": "string", "description": "Grammar (GBNF) that the answer must match." },
        "seed": {
            "type": "integer", "minimum": -1, "maximum": u64::MAX,
            "description": "Seed of the random number generator: the same seed gives the same text. -1 for a random seed.",
        },
        "timeout_s": { "type": "number", "minimum": 0.001, "description": "Time limit in seconds." },
        "model": model(),
    });
    all.extend(limits.as_object().cloned().unwrap_or_default());
    all.extend(
        NUMBERS
            .iter()
            .filter_map(|name| Parameter::named(name))
            .map(|parameter| (parameter.name.to_string(), number(parameter))),
    );
    Value::Object(all)
}

/// Returns the schema of the result of generation.
fn generated() -> Value {
    let count = json!({ "type": "integer", "minimum": 0 });
    json!({
        "type": "object",
        "properties": {
            "text": { "type": "string" },
            "reasoning_content": { "type": "string", "description": "Thoughts before the text." },
            "stop": { "type": "string", "description": "Reason why generation ended: end, stop_string, length, context_full, \
                                                       deadline or shutdown." },
            "stop_string": { "type": ["string", "null"] },
            "seed": count,
            "usage": {
                "type": "object",
                "properties": {
                    "prompt_tokens": count, "cached_tokens": count, "completion_tokens": count, "reasoning_tokens": count,
                },
            },
            "timings": { "type": "object" },
        },
        "required": ["text", "stop", "usage"],
    })
}

fn generate() -> Tool {
    let prompt = json!({ "prompt": { "type": "string", "description": "Text to continue, used without a chat \
                                                                      template." } });
    tool(
        "generate",
        "Continue text",
        "Continues text with the local language model, and returns the continuation. Use chat for questions and \
        instructions.",
        object(generating(prompt), &["prompt"]),
        Some(generated()),
    )
}

fn chat() -> Tool {
    let message = json!({
        "type": "object",
        "properties": {
            "role": { "enum": ["system", "user", "assistant"] },
            "content": { "type": "string" },
        },
        "required": ["role", "content"],
        "additionalProperties": false,
    });
    let conversation = json!({
        "messages": {
            "type": "array", "items": message, "minItems": 1,
            "description": "The conversation so far. Nothing is kept between calls.",
        },
        "reasoning_effort": {
            "type": "string",
            "description": "Reasoning effort, for example low or high; none to answer without thoughts.",
        },
        "thinking_budget_tokens": {
            "type": "integer", "minimum": -1, "maximum": u32::MAX,
            "description": "Maximum number of thought tokens; -1 for no limit.",
        },
    });
    tool(
        "chat",
        "Ask the local model",
        "Answers a conversation with the local language model. Uses the chat template in the model's file.",
        object(generating(conversation), &["messages"]),
        Some(generated()),
    )
}

fn embed() -> Tool {
    let text = json!({ "type": "string", "minLength": 1 });
    let input = json!({
        "texts": {
            "type": "array", "items": text, "minItems": 1, "maxItems": TEXTS,
            "description": "Texts to embed. Each vector has length 1.",
        },
        "timeout_s": { "type": "number", "minimum": 0.001, "description": "Time limit in seconds." },
        "model": model(),
    });
    let output = json!({
        "type": "object",
        "properties": {
            "embeddings": { "type": "array", "items": { "type": "array", "items": { "type": "number" } } },
            "usage": { "type": "object" },
        },
        "required": ["embeddings"],
    });
    tool(
        "embed",
        "Embed texts",
        "Computes a vector for each text with the local model. Texts with similar meanings have vectors with similar directions.",
        object(input, &["texts"]),
        Some(output),
    )
}

fn tokenize() -> Tool {
    let input = json!({ "text": { "type": "string" }, "model": model() });
    let output = json!({
        "type": "object",
        "properties": {
            "tokens": { "type": "array", "items": { "type": "integer" } },
            "count": { "type": "integer", "minimum": 0 },
        },
        "required": ["tokens", "count"],
    });
    tool(
        "tokenize",
        "Count tokens",
        "Splits text into the local model's tokens, and counts them.",
        object(input, &["text"]),
        Some(output),
    )
}

fn info() -> Tool {
    tool(
        "info",
        "Describe the model",
        "Describes the local model, the length of its context, and how busy it is.",
        object(json!({}), &[]),
        None,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_a_tool_does_not_know_are_named() {
        let cases = [
            ("generate", json!({ "prompt": "a", "top_k": 1 }), None),
            ("generate", json!({ "prompt": "a", "max_token": 1 }), Some("did you mean max_tokens?")),
            // Fields that the server accepts but the tool does not offer.
            ("generate", json!({ "prompt": "a", "stream": true }), Some("stream: unknown argument")),
            ("chat", json!({ "messages": [], "tools": [] }), Some("tools: unknown argument")),
            ("info", json!({ "zzz": 1 }), Some("info takes no arguments")),
        ];
        for (name, arguments, expected) in cases {
            let (_, tool) = named(name).expect("a tool");
            let found = unknown(tool, arguments.as_object().expect("an object"));
            match expected {
                None => assert_eq!(found, None, "{arguments}"),
                Some(words) => assert!(found.is_some_and(|found| found.contains(words)), "{arguments}"),
            }
        }
        assert!(named("Generate").is_none());
    }

    #[test]
    fn descriptions_separate_a_parameter_from_its_range() {
        let schema = generating(json!({}));
        let about = "Keep this many of the most likely tokens: 0 (all) to 2147483647.";
        assert_eq!(schema["top_k"]["description"], *about, "{schema}");
        // As in the server.
        assert_eq!(schema["seed"]["maximum"], u64::MAX);
    }

    #[test]
    fn every_number_that_is_offered_exists() {
        assert!(NUMBERS.iter().all(|name| Parameter::named(name).is_some()));
    }
}
