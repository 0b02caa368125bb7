//! Requests of the Responses API, read into the same form as requests of the chat API.

use chat::{Function, Json, Message, ToolCall};
use sampling::Constraint;
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::conversation::{Conversation, ToolChoice, flat_tools, read_list};
use crate::fields::{Fields, text_at, wrong, wrong_key};
use crate::http::completions::only;
use crate::http::format::{self, FieldConstraint};
use crate::http::out::CompletionRequest;
use crate::request::{Defaults, Generate, Prompt};
use crate::server::Server;

/// Reads a request to `server`. Unknown fields are ignored, as in the chat API.
pub(super) fn read(server: &Server, fields: &mut Fields) -> Result<CompletionRequest, ApiError> {
    server.template()?;
    take(fields, &server.current().defaults)
}

/// Reads a request.
pub(in crate::http) fn take(fields: &mut Fields, defaults: &Defaults) -> Result<CompletionRequest, ApiError> {
    for name in ["previous_response_id", "conversation"] {
        if fields.take(name).is_some() {
            let what = "this server stores no responses: send the whole conversation in input";
            return Err(ApiError::field(name, what));
        }
    }
    only(fields, "background", &json!(false))?;
    let mut messages = Vec::new();
    if let Some(instructions) = fields.text("instructions")? {
        messages.push(Message::new("system", instructions));
    }
    let input = fields.raw("input");
    let input =
        input.ok_or_else(|| ApiError::field("input", "is missing: give a string or a list of items"))?;
    let before = messages.len();
    if input.get().starts_with('"') {
        let text: String =
            serde_json::from_str(input.get()).map_err(|error| crate::fields::not_json("input", &error))?;
        messages.push(Message::new("user", text));
    } else {
        read_list(fields, "input", input, &mut messages, item)?;
    }
    if messages.len() == before {
        return Err(ApiError::field("input", "is empty: give at least one item"));
    }
    let tools = flat_tools(fields.take("tools"), "parameters", is_function)?;
    let choice = choice(fields.take("tool_choice"))?;
    let conversation = Conversation::new(fields, messages, tools, &choice)?.in_field("input");
    let format = constraint(fields.take("text"))?;
    let max_tokens = fields.tokens("max_output_tokens", 1)?;
    let mut generate = Generate::take(fields, Prompt::Messages(conversation), defaults)?;
    generate.max_tokens = max_tokens.unwrap_or(generate.max_tokens);
    generate.schema_field = generate.schema_field.with_path("parameters");
    format::apply(format, &mut generate)?;
    Ok(CompletionRequest { generate, choices: 1, include_usage: true, return_tokens: false })
}

/// Reads the item `index` of the field `input`, and appends or completes a message.
fn item(messages: &mut Vec<Message>, index: usize, value: Value) -> Result<(), ApiError> {
    let at = format!("input[{index}]");
    if !value.is_object() {
        return Err(wrong(&at, "use an object", &value));
    }
    match value["type"].as_str() {
        Some("message") => message(messages, &at, &value)?,
        None if value["type"].is_null() => message(messages, &at, &value)?,
        Some("reasoning") => {
            let thoughts = text(&format!("{at}.content"), &value["content"])?;
            if !thoughts.is_empty() {
                turn(messages).set_thoughts(&thoughts);
            }
        }
        Some("function_call") => {
            let call = ToolCall {
                id: value["call_id"].as_str().map(str::to_string),
                kind: "function".to_string(),
                function: Function {
                    name: text_at(&at, &value, "name")?.to_string(),
                    arguments: Json::from(&text_at(&at, &value, "arguments")?.into()),
                },
            };
            turn(messages).tool_calls.get_or_insert_default().push(call);
        }
        Some("function_call_output") => {
            let mut message = Message::new("tool", text(&format!("{at}.output"), &value["output"])?);
            message.tool_call_id = Some(text_at(&at, &value, "call_id")?.to_string());
            messages.push(message);
        }
        _ => {
            let what = "use message, reasoning, function_call or function_call_output";
            return Err(wrong_key(&at, &value, "type", what));
        }
    }
    Ok(())
}

fn message(messages: &mut Vec<Message>, at: &str, value: &Value) -> Result<(), ApiError> {
    let role = text_at(at, value, "role")?;
    let text = text(&format!("{at}.content"), &value["content"])?;
    match messages.last_mut() {
        // Thoughts come before the text of the same turn.
        Some(last)
            if role == "assistant"
                && last.role == role
                && last.content.is_none()
                && last.tool_calls.is_none() =>
        {
            last.content = Some(text);
        }
        _ => messages.push(Message::new(role, text)),
    }
    Ok(())
}

/// Returns the message of the assistant's current turn, which may consist of several items.
fn turn(messages: &mut Vec<Message>) -> &mut Message {
    if messages.last().is_none_or(|last| last.role != "assistant") {
        let mut message = Message::new("assistant", "");
        message.content = None;
        messages.push(message);
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

/// Returns the text of `value`: a string, a list of parts with a text, or nothing.
fn text(at: &str, value: &Value) -> Result<String, ApiError> {
    let part = |(index, part): (usize, &Value)| match part["type"].as_str() {
        Some("input_text" | "output_text" | "reasoning_text" | "text") => {
            text_at(&format!("{at}[{index}]"), part, "text").map(str::to_string)
        }
        Some("refusal") => text_at(&format!("{at}[{index}]"), part, "refusal").map(str::to_string),
        _ => {
            let what = "this content is not supported: send text";
            Err(wrong_key(&format!("{at}[{index}]"), part, "type", what))
        }
    };
    match value {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            Ok(parts.iter().enumerate().map(part).collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        other => Err(wrong(at, "use a string or a list of content parts", other)),
    }
}

/// Rejects tools that OpenAI's servers run themselves.
fn is_function(at: &str, tool: &Value) -> Result<(), ApiError> {
    match tool["type"] == "function" {
        true => Ok(()),
        false => {
            let what = "only \"function\" is supported, because this server runs no tools itself";
            Err(wrong_key(at, tool, "type", what))
        }
    }
}

fn choice(value: Option<Value>) -> Result<ToolChoice, ApiError> {
    const FIELD: &str = "tool_choice.name";
    let value = value.unwrap_or_else(|| "auto".into());
    match (value.as_str(), value["type"].as_str()) {
        (Some("auto"), _) => Ok(ToolChoice::Auto),
        (Some("none"), _) => Ok(ToolChoice::None),
        (Some("required"), _) => Ok(ToolChoice::Required),
        (None, Some("function")) => match &value["name"] {
            Value::String(name) => Ok(ToolChoice::Named { name: name.clone(), field: FIELD }),
            other => Err(wrong(FIELD, "use the name of a tool", other)),
        },
        _ => {
            let what = "use \"auto\", \"none\", \"required\" or {\"type\": \"function\", \"name\": …}";
            Err(wrong("tool_choice", what, &value))
        }
    }
}

/// Returns the constraint in `value`, the field `text`.
fn constraint(value: Option<Value>) -> Result<Option<FieldConstraint>, ApiError> {
    let Some(mut value) = value else { return Ok(None) };
    if !value.is_object() {
        return Err(wrong("text", "use an object", &value));
    }
    match value["format"]["type"].as_str() {
        None if value["format"].is_null() => Ok(None),
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some((Constraint::JsonSchema(json!({ "type": "object" })), "text.format"))),
        Some("json_schema") => format::with_schema(value["format"]["schema"].take(), "text.format.schema"),
        _ => {
            let what = "use text, json_object or json_schema";
            Err(wrong_key("text.format", &value["format"], "type", what))
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn read(body: &Value) -> Result<Generate, ApiError> {
        take(&mut Fields::read(body.to_string().as_bytes())?, &Defaults::for_tests())
            .map(|request| request.generate)
    }

    fn shown(body: &Value) -> Value {
        let Prompt::Messages(conversation) = read(body).expect("a request").prompt else {
            panic!("messages")
        };
        serde_json::to_value(conversation.messages()).expect("JSON")
    }

    #[test]
    fn items_become_messages() {
        let text = |kind: &str, text: &str| json!([{ "type": kind, "text": text }]);
        let body = json!({
            "instructions": "be brief",
            "max_output_tokens": 9,
            "input": [
                { "role": "user", "content": "weather?" },
                { "type": "reasoning", "id": "rs_1", "summary": [], "content": text("reasoning_text", "hm") },
                { "type": "message", "role": "assistant", "content": text("output_text", "I look.") },
                { "type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{\"city\":\"Bonn\"}" },
                { "type": "function_call", "call_id": "c2", "name": "now", "arguments": "{}" },
                { "type": "function_call_output", "call_id": "c1", "output": "rain" },
                { "type": "function_call_output", "call_id": "c2", "output": text("input_text", "noon") },
                { "type": "message", "role": "user", "content": text("input_text", "and?") },
            ],
        });
        let call = |id: &str, name: &str, arguments: &str| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
        let expected = json!([
            { "role": "system", "content": "be brief" },
            { "role": "user", "content": "weather?" },
            {
                "role": "assistant", "content": "I look.", "reasoning_content": "hm",
                "tool_calls": [call("c1", "weather", r#"{"city":"Bonn"}"#), call("c2", "now", "{}")],
            },
            { "role": "tool", "content": "rain", "tool_call_id": "c1" },
            { "role": "tool", "content": "noon", "tool_call_id": "c2" },
            { "role": "user", "content": "and?" },
        ]);
        assert_eq!(shown(&body), expected);
        assert_eq!(read(&body).expect("a request").max_tokens, 9);
        assert_eq!(shown(&json!({ "input": "hi" })), json!([{ "role": "user", "content": "hi" }]));
    }

    #[test]
    fn errors_name_the_field() {
        let with = |fields: Value| {
            let mut body = json!({ "input": "a" });
            body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
            body
        };
        let image = json!([{ "role": "user", "content": [{ "type": "input_image" }] }]);
        for (body, expected) in [
            (json!({}), "input: is missing"),
            (with(json!({ "input": [] })), "input: is empty"),
            (with(json!({ "input": 7 })), "input: use a list of messages, not 7"),
            (with(json!({ "input": ["a"] })), "input[0]: use an object"),
            (
                with(json!({ "input": [{ "type": "item_reference" }] })),
                "input[0].type: use message, reasoning",
            ),
            (with(json!({ "input": image })), "input[0].content[0].type: this content is not supported"),
            (
                with(json!({ "previous_response_id": "resp_1" })),
                "previous_response_id: this server stores no responses",
            ),
            (with(json!({ "background": true })), "background: only false is supported"),
            (with(json!({ "tools": [{ "type": "web_search" }] })), "tools[0].type: only \"function\""),
            (
                with(json!({ "tools": [{ "type": "function" }] })),
                "tools[0].name: is missing: use a string that is not empty",
            ),
            (with(json!({ "tool_choice": "required" })), "tool_choice: a required call needs tools"),
            (with(json!({ "tool_choice": { "type": "function" } })), "tool_choice.name: use the name"),
            (with(json!({ "reasoning": { "effort": 1 } })), "reasoning.effort: use a string"),
            (with(json!({ "text": "short" })), "text: use an object, not \"short\""),
            (
                with(json!({ "text": { "format": { "type": "xml" } } })),
                "text.format.type: use text, json_object",
            ),
            (with(json!({ "max_output_tokens": 0 })), "max_output_tokens: use a whole number from 1"),
        ] {
            let found = read(&body).err().map(|refusal| refusal.message).unwrap_or_default();
            assert!(found.starts_with(expected), "{body}: {found}");
        }
    }
}
