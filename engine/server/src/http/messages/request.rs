//! Requests of the Messages API, read into the same form as requests of the chat API.

use chat::{Function, Json, Message, ToolCall};
use serde_json::Value;

use crate::api_error::ApiError;
use crate::conversation::{Conversation, ToolChoice, flat_tools, read_list};
use crate::fields::{Fields, text_at, wrong, wrong_key};
use crate::http::format;
use crate::http::out::CompletionRequest;
use crate::request::{Defaults, Generate, Prompt, stops};
use crate::server::Server;

/// Reads a request to `server`. Unknown fields are ignored, as in the chat API.
pub(super) fn read(server: &Server, fields: &mut Fields) -> Result<CompletionRequest, ApiError> {
    server.template()?;
    take(fields, &server.current().defaults)
}

/// Reads a request.
pub(in crate::http) fn take(fields: &mut Fields, defaults: &Defaults) -> Result<CompletionRequest, ApiError> {
    let mut messages = Vec::new();
    if let Some(system) = fields.take("system") {
        messages.push(Message::new("system", text("system", &system)?));
    }
    let list = fields.raw("messages");
    let list =
        list.ok_or_else(|| ApiError::field("messages", "is missing: give the conversation to continue"))?;
    let before = messages.len();
    read_list(fields, "messages", list, &mut messages, message)?;
    if messages.len() == before {
        return Err(ApiError::field("messages", "is empty: give at least one message"));
    }
    let tools = flat_tools(fields.take("tools"), "input_schema", is_custom)?;
    let choice = choice(fields.take("tool_choice"))?;
    let mut conversation = Conversation::new(fields, messages, tools, &choice)?;
    let config = fields.take("output_config").unwrap_or_default();
    if !config.is_null() && !config.is_object() {
        return Err(wrong("output_config", "use an object", &config));
    }
    match &config["effort"] {
        Value::Null => {}
        Value::String(effort) => conversation.set_default("reasoning_effort", &effort.as_str().into()),
        other => return Err(wrong("output_config.effort", "use a string", other)),
    }
    let format = schema(config)?;
    let stop = stops("stop_sequences", fields.take("stop_sequences"))?;
    let mut generate = Generate::take(fields, Prompt::Messages(conversation), defaults)?;
    generate.stop.extend(stop);
    generate.schema_field = generate.schema_field.with_path("input_schema");
    format::apply(format, &mut generate)?;
    Ok(CompletionRequest { generate, choices: 1, include_usage: true, return_tokens: false })
}

/// Reads the item `index` of the field `messages`, and appends its messages.
fn message(messages: &mut Vec<Message>, index: usize, value: Value) -> Result<(), ApiError> {
    let at = format!("messages[{index}]");
    if !value.is_object() {
        return Err(wrong(&at, "use an object", &value));
    }
    let role = match value["role"].as_str() {
        Some(role @ ("user" | "assistant" | "system")) => role,
        _ => return Err(wrong_key(&at, &value, "role", "use user, assistant or system")),
    };
    let at = format!("{at}.content");
    match &value["content"] {
        Value::String(text) => messages.push(Message::new(role, text.as_str())),
        Value::Array(blocks) if role == "assistant" => messages.push(assistant(&at, blocks)?),
        Value::Array(blocks) => user(messages, role, &at, blocks)?,
        other => return Err(wrong(&at, "use a string or a list of content blocks", other)),
    }
    Ok(())
}

/// Reads the content `blocks` of a user's message: texts and the results of tools.
fn user(messages: &mut Vec<Message>, role: &str, at: &str, blocks: &[Value]) -> Result<(), ApiError> {
    let mut texts: Vec<&str> = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let at = format!("{at}[{index}]");
        if block["type"] != "tool_result" {
            texts.push(block_text(&at, block)?);
            continue;
        }
        // The templates expect the results in separate messages, before the user's text.
        if !texts.is_empty() {
            messages.push(Message::new(role, std::mem::take(&mut texts).join("\n")));
        }
        let result = match &block["content"] {
            Value::Null => String::new(),
            content => text(&format!("{at}.content"), content)?,
        };
        let Some(id) = block["tool_use_id"].as_str() else {
            return Err(wrong(
                &format!("{at}.tool_use_id"),
                "use the ID of a tool call",
                &block["tool_use_id"],
            ));
        };
        let mut message = Message::new("tool", result);
        message.tool_call_id = Some(id.to_string());
        messages.push(message);
    }
    if !texts.is_empty() || blocks.is_empty() {
        messages.push(Message::new(role, texts.join("\n")));
    }
    Ok(())
}

/// Reads the content `blocks` of an assistant's message: thoughts, texts and tool calls.
fn assistant(at: &str, blocks: &[Value]) -> Result<Message, ApiError> {
    let (mut texts, mut thoughts, mut calls): (Vec<&str>, Vec<&str>, Vec<ToolCall>) = Default::default();
    for (index, block) in blocks.iter().enumerate() {
        let at = format!("{at}[{index}]");
        match block["type"].as_str() {
            Some("thinking") => thoughts.push(text_at(&at, block, "thinking")?),
            // Encrypted thoughts, which only Anthropic's servers can read.
            Some("redacted_thinking") => {}
            Some("tool_use") => calls.push(ToolCall {
                id: block["id"].as_str().map(str::to_string),
                kind: "function".to_string(),
                function: Function {
                    name: text_at(&at, block, "name")?.to_string(),
                    arguments: Json::from(&Value::String(match &block["input"] {
                        Value::Null => "{}".to_string(),
                        input => input.to_string(),
                    })),
                },
            }),
            _ => texts.push(block_text(&at, block)?),
        }
    }
    let mut message = Message::new("assistant", texts.join("\n"));
    if !thoughts.is_empty() {
        message.set_thoughts(&thoughts.join("\n"));
    }
    if !calls.is_empty() {
        message.content = message.content.filter(|text| !text.is_empty());
        message.tool_calls = Some(calls);
    }
    Ok(message)
}

/// Returns the text of `value`: a string, or a list of text blocks.
fn text(at: &str, value: &Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let texts =
                blocks.iter().enumerate().map(|(index, block)| block_text(&format!("{at}[{index}]"), block));
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        other => Err(wrong(at, "use a string or a list of text blocks", other)),
    }
}

fn block_text<'a>(at: &str, block: &'a Value) -> Result<&'a str, ApiError> {
    match block["type"].as_str() {
        Some("text") => text_at(at, block, "text"),
        _ => Err(wrong_key(at, block, "type", "this content is not supported: send text")),
    }
}

/// Rejects tools that Anthropic's servers run themselves.
fn is_custom(at: &str, tool: &Value) -> Result<(), ApiError> {
    match &tool["type"] {
        Value::Null => Ok(()),
        kind if kind == "custom" => Ok(()),
        kind => Err(wrong(
            &format!("{at}.type"),
            "only \"custom\" is supported, because this server runs no tools itself",
            kind,
        )),
    }
}

fn choice(value: Option<Value>) -> Result<ToolChoice, ApiError> {
    const FIELD: &str = "tool_choice.name";
    let Some(value) = value else { return Ok(ToolChoice::Auto) };
    match value["type"].as_str() {
        Some("auto") => Ok(ToolChoice::Auto),
        Some("none") => Ok(ToolChoice::None),
        Some("any") => Ok(ToolChoice::Required),
        Some("tool") => match &value["name"] {
            Value::String(name) => Ok(ToolChoice::Named { name: name.clone(), field: FIELD }),
            other => Err(wrong(FIELD, "use the name of a tool", other)),
        },
        _ => Err(wrong_key("tool_choice", &value, "type", "use auto, any, tool or none")),
    }
}

/// Returns the constraint in `value`, the field `output_config`.
fn schema(mut value: Value) -> Result<Option<format::FieldConstraint>, ApiError> {
    match value["format"]["type"].as_str() {
        None if value["format"].is_null() => Ok(None),
        Some("json_schema") => {
            format::with_schema(value["format"]["schema"].take(), "output_config.format.schema")
        }
        _ => Err(wrong_key("output_config.format", &value["format"], "type", "use json_schema")),
    }
}

#[cfg(test)]
mod tests {
    use sampling::Constraint;
    use serde_json::json;

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
    fn blocks_become_messages() {
        let body = json!({
            "max_tokens": 9,
            "system": [{ "type": "text", "text": "be" }, { "type": "text", "text": "brief", "cache_control": {} }],
            "messages": [
                { "role": "user", "content": [{ "type": "text", "text": "weather?" }] },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "hm", "signature": "" },
                    { "type": "text", "text": "I look." },
                    { "type": "tool_use", "id": "t1", "name": "weather", "input": { "city": "Bonn" } },
                    { "type": "tool_use", "id": "t2", "name": "now", "input": {} },
                ]},
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": "rain" }] },
                    { "type": "tool_result", "tool_use_id": "t2" },
                    { "type": "text", "text": "and?" },
                ]},
            ],
        });
        let call = |id: &str, name: &str, arguments: &str| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
        let expected = json!([
            { "role": "system", "content": "be\nbrief" },
            { "role": "user", "content": "weather?" },
            {
                "role": "assistant", "content": "I look.", "reasoning_content": "hm",
                "tool_calls": [call("t1", "weather", r#"{"city":"Bonn"}"#), call("t2", "now", "{}")],
            },
            { "role": "tool", "content": "rain", "tool_call_id": "t1" },
            { "role": "tool", "content": "", "tool_call_id": "t2" },
            { "role": "user", "content": "and?" },
        ]);
        assert_eq!(shown(&body), expected);
        assert_eq!(read(&body).expect("a request").max_tokens, 9);
    }

    #[test]
    fn an_effort_reaches_the_template() {
        let mut body = json!({
            "messages": [{ "role": "user", "content": "a" }], "output_config": { "effort": "low" },
            "thinking": { "type": "enabled", "budget_tokens": 1024 },
        });
        let generate = read(&body).expect("a request");
        assert_eq!(generate.reasoning.budget, Some(1024));
        let Prompt::Messages(conversation) = generate.prompt else { panic!("messages") };
        let expected = json!({ "reasoning_effort": "low", "enable_thinking": true, "thinking": true });
        assert_eq!(conversation.variables(), expected);
        body["output_config"] = "low".into();
        let refused = read(&body).expect_err("a text").message;
        assert_eq!(refused, "output_config: use an object, not \"low\"");
        body["output_config"] = json!({ "effort": 7 });
        let refused = read(&body).expect_err("a number").message;
        assert_eq!(refused, "output_config.effort: use a string, not 7");
    }

    #[test]
    fn errors_name_the_field() {
        let with = |fields: Value| {
            let mut body = json!({ "messages": [{ "role": "user", "content": "a" }] });
            body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
            body
        };
        let image = json!([{ "role": "user", "content": [{ "type": "image", "source": {} }] }]);
        let result = json!([{ "role": "user", "content": [{ "type": "tool_result", "content": "x" }] }]);
        let tool = json!([{ "name": "f", "input_schema": {} }]);
        for (body, expected) in [
            (json!({}), "messages: is missing"),
            (with(json!({ "messages": [] })), "messages: is empty"),
            (
                with(json!({ "messages": [{ "role": "tool" }] })),
                "messages[0].role: use user, assistant or system",
            ),
            (
                with(json!({ "messages": [{ "role": "user" }] })),
                "messages[0].content: use a string or a list",
            ),
            (
                with(json!({ "messages": image })),
                "messages[0].content[0].type: this content is not supported",
            ),
            (with(json!({ "messages": result })), "messages[0].content[0].tool_use_id: use the ID"),
            (with(json!({ "system": 7 })), "system: use a string or a list of text blocks, not 7"),
            (
                with(json!({ "tools": [{ "type": "web_search_20250305", "name": "w" }] })),
                "tools[0].type: only \"custom\"",
            ),
            (
                with(json!({ "tools": [{ "name": "f", "input_schema": 1 }] })),
                "tools[0].input_schema: use a JSON schema",
            ),
            (with(json!({ "tool_choice": { "type": "any" } })), "tool_choice: a required call needs tools"),
            (
                with(json!({ "tools": tool, "tool_choice": { "type": "tool", "name": "g" } })),
                "tool_choice.name: use the name",
            ),
            (with(json!({ "tool_choice": "auto" })), "tool_choice: use an object, not \"auto\""),
            (
                with(json!({ "thinking": { "type": "on" } })),
                "thinking.type: use enabled, adaptive, auto or disabled",
            ),
            (with(json!({ "stop_sequences": [""] })), "stop_sequences: a stop string must not be empty"),
            (
                with(json!({ "output_config": { "format": {} } })),
                "output_config.format.type: is missing: use json_schema",
            ),
        ] {
            let found = read(&body).err().map(|refusal| refusal.message).unwrap_or_default();
            assert!(found.starts_with(expected), "{body}: {found}");
        }
    }

    #[test]
    fn a_required_call_and_a_schema_constrain_the_answer() {
        let mut body = json!({
            "messages": [{ "role": "user", "content": "a" }],
            "tools": [{ "name": "f", "description": "d", "input_schema": { "type": "object" } }],
            "tool_choice": { "type": "tool", "name": "f" },
            "stop_sequences": ["x"],
        });
        let generate = read(&body).expect("a request");
        assert!(matches!(generate.sampling.constraint, Some(Constraint::JsonSchema(_))));
        assert_eq!(generate.schema_field.name("properties.arguments.a"), "tools[0].input_schema.a");
        assert_eq!(generate.stop, ["x"]);
        body["tool_choice"] = json!({ "type": "none" });
        body["output_config"] =
            json!({ "format": { "type": "json_schema", "schema": { "type": "object" } } });
        let generate = read(&body).expect("a request");
        assert_eq!(generate.schema_field.name("a"), "output_config.format.schema.a");
    }
}
