//! Conversations, which the model's chat template turns into prompts.

use std::fmt;

use chat::{Inputs, Json, Message, Offered, Template, forced_schema};
use llama::error::Result as EngineResult;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::api_error::ApiError;
use super::fields::{Fields, not_json, wrong};
use super::input::sketch;

/// Conversation that the model continues.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    messages: Vec<Message>,
    /// List of tools, in OpenAI's format.
    tools: Option<Json>,
    /// Functions in `tools`.
    offered: Vec<Offered>,
    /// JSON schema that the answer must match, if the client requires a tool call.
    forced: Option<Value>,
    /// Indices of the tools that this schema allows.
    forced_tools: Vec<usize>,
    /// Additional variables of the template.
    more: Vec<(String, Json)>,
}

impl Conversation {
    /// Parses `messages`, and takes the fields that belong to a conversation.
    ///
    /// # Errors
    /// If a message or one of the fields is invalid.
    pub fn take(fields: &mut Fields, messages: Box<RawValue>) -> Result<Self, ApiError> {
        if !messages.get().starts_with('[') {
            return Err(wrong("messages", "use a list of messages", &sketch(&messages)));
        }
        fields.count("messages", &messages)?;
        let mut reader = serde_json::Deserializer::from_str(messages.get());
        let read = reader.deserialize_seq(Messages);
        // `messages` is freed early, because rendering the template also needs memory.
        drop(messages);
        let messages = read.map_err(|error| not_json("messages", &error))??;
        if messages.is_empty() {
            return Err(ApiError::field("messages", "is empty: give at least one message"));
        }
        let (tools, offered) = tools(fields.take("tools"))?;
        let (is_wanted, forced_tools) = choice(fields.take("tool_choice"), &offered)?;
        let called: Vec<&Offered> = forced_tools.iter().map(|index| &offered[*index]).collect();
        let forced = (!called.is_empty()).then(|| forced_schema(&called));
        let (tools, offered) = if is_wanted { (tools, offered) } else { (None, Vec::new()) };
        let more = match fields.take("chat_template_kwargs") {
            None => Vec::new(),
            Some(Value::Object(map)) => {
                map.iter().map(|(name, value)| (name.clone(), value.into())).collect()
            }
            Some(other) => return Err(wrong("chat_template_kwargs", "use an object", &other)),
        };
        Ok(Conversation { messages, tools, offered, forced, forced_tools, more })
    }

    /// Returns the functions that the model may call.
    pub fn offered(&self) -> &[Offered] {
        &self.offered
    }

    /// Returns the schema that the answer must match, if the client requires a tool call.
    pub fn forced(&self) -> Option<&Value> {
        self.forced.as_ref()
    }

    /// Returns the indices of the tools that a required call may use; empty if no call is required.
    pub fn forced_tools(&self) -> &[usize] {
        &self.forced_tools
    }

    /// Renders the prompt, up to the start of the answer.
    ///
    /// # Errors
    /// If the template rejects the conversation or exceeds a limit.
    pub fn prompt(&self, template: &Template) -> EngineResult<String> {
        template.render_with(&Inputs {
            messages: &self.messages,
            add_generation_prompt: true,
            tools: self.tools.as_ref(),
            more: &self.more,
        })
    }
}

/// Visitor that reads a list of messages. It parses one message at a time into a JSON tree.
struct Messages;

impl<'de> Visitor<'de> for Messages {
    type Value = Result<Vec<Message>, ApiError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut messages = Vec::new();
        while let Some(value) = list.next_element::<Value>()? {
            match message(messages.len(), value) {
                Ok(message) => messages.push(message),
                Err(refusal) => {
                    while list.next_element::<IgnoredAny>()?.is_some() {}
                    return Ok(Err(refusal));
                }
            }
        }
        Ok(Ok(messages))
    }
}

fn message(index: usize, value: Value) -> Result<Message, ApiError> {
    let at = format!("messages[{index}]");
    let Some(map) = value.as_object() else { return Err(wrong(&at, "use an object", &value)) };
    match map.get("role") {
        Some(Value::String(_)) => {}
        Some(other) => return Err(wrong(&format!("{at}.role"), "use a string", other)),
        None => {
            return Err(ApiError::field(
                &format!("{at}.role"),
                "is missing: use system, user, assistant or tool",
            ));
        }
    }
    serde_json::from_value(value).map_err(|error| ApiError::field(&at, error))
}

/// Returns the list of tools for the template, and the functions in it.
fn tools(value: Option<Value>) -> Result<(Option<Json>, Vec<Offered>), ApiError> {
    match value {
        None => Ok((None, Vec::new())),
        Some(Value::Array(list)) => {
            let offered = list.iter().enumerate().map(offered).collect::<Result<Vec<_>, _>>()?;
            // An empty list is omitted, because some templates announce tools whenever a list exists.
            let list = (!list.is_empty()).then(|| (&Value::Array(list)).into());
            Ok((list, offered))
        }
        Some(other) => Err(wrong("tools", "use a list of tools", &other)),
    }
}

fn offered((index, tool): (usize, &Value)) -> Result<Offered, ApiError> {
    let at = format!("tools[{index}]");
    if !tool.is_object() {
        return Err(wrong(&at, "use an object", tool));
    }
    if tool["type"] != "function" {
        return Err(wrong(&format!("{at}.type"), "only \"function\" is supported", &tool["type"]));
    }
    let function = &tool["function"];
    if !function.is_object() {
        return Err(wrong(&format!("{at}.function"), "use an object", function));
    }
    let name = match &function["name"] {
        Value::String(name) if !name.is_empty() => name.clone(),
        other => return Err(wrong(&format!("{at}.function.name"), "use a string that is not empty", other)),
    };
    if let other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) =
        &function["description"]
    {
        return Err(wrong(&format!("{at}.function.description"), "use a string", other));
    }
    let parameters = match &function["parameters"] {
        Value::Null => None,
        Value::Object(schema) => Some(schema.clone()),
        other => {
            return Err(wrong(
                &format!("{at}.function.parameters"),
                "use a JSON schema that is an object",
                other,
            ));
        }
    };
    Ok(Offered { name, parameters })
}

/// Returns true if the client wants tools, and the indices of the tools that a required call may use.
fn choice(value: Option<Value>, offered: &[Offered]) -> Result<(bool, Vec<usize>), ApiError> {
    const NAME: &str = "tool_choice";
    const WORDS: &str =
        "use \"auto\", \"none\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": …}}";
    let value = value.unwrap_or_else(|| "auto".into());
    let named = match (&value, value.as_str()) {
        (_, Some("auto")) => return Ok((true, Vec::new())),
        (_, Some("none")) => return Ok((false, Vec::new())),
        (_, Some("required")) => None,
        (Value::Object(choice), _) if choice.get("type").is_some_and(|kind| kind == "function") => {
            let name = &value["function"]["name"];
            Some(
                name.as_str()
                    .ok_or_else(|| wrong("tool_choice.function.name", "use the name of a tool", name))?,
            )
        }
        _ => return Err(wrong(NAME, WORDS, &value)),
    };
    let is_chosen = |function: &Offered| named.is_none_or(|name| function.name == name);
    let chosen = offered.iter().enumerate().filter(|(_, function)| is_chosen(function));
    let chosen: Vec<usize> = chosen.map(|(index, _)| index).collect();
    match (chosen.as_slice(), named) {
        ([], Some(name)) => {
            Err(wrong("tool_choice.function.name", "use the name of a function in tools", &Value::from(name)))
        }
        ([], None) => Err(ApiError::field(NAME, "\"required\" needs tools, but the request has none")),
        _ => Ok((true, chosen)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Conversation, ApiError> {
        let mut fields = Fields::read(json.as_bytes())?;
        let messages = fields.raw("messages").expect("messages");
        Conversation::take(&mut fields, messages)
    }

    #[test]
    fn what_cannot_be_meant_names_its_place() {
        let rest = r#""messages": [{"role": "user", "content": "a"}]"#;
        let with = |field: &str| format!("{{{rest}, {field}}}");
        let cases = [
            (r#"{"messages": "a"}"#.to_string(), "messages: use a list of messages, not \"a\""),
            (r#"{"messages": []}"#.to_string(), "messages: is empty"),
            (r#"{"messages": ["a"]}"#.to_string(), "messages[0]: use an object, not \"a\""),
            (
                r#"{"messages": [{"role": "user"}, {"role": 7}]}"#.to_string(),
                "messages[1].role: use a string, not 7",
            ),
            (r#"{"messages": [{"content": "a"}]}"#.to_string(), "messages[0].role: is missing"),
            (
                r#"{"messages": [{"role": "user", "content": 7}]}"#.to_string(),
                "messages[0]: invalid type: integer `7`",
            ),
            (with(r#""tools": "f""#), "tools: use a list of tools, not \"f\""),
            (with(r#""tools": ["f"]"#), "tools[0]: use an object, not \"f\""),
            (with(r#""tools": [{}]"#), "tools[0].type: only \"function\" is supported, not null"),
            (with(r#""tools": [{"type": "function"}]"#), "tools[0].function: use an object, not null"),
            (
                with(r#""tools": [{"type": "function", "function": {"name": ""}}]"#),
                "tools[0].function.name: use a string that is not empty",
            ),
            (
                with(r#""tools": [{"type": "function", "function": {"name": "f", "description": 1}}]"#),
                "tools[0].function.description: use a string, not 1",
            ),
            (
                with(r#""tools": [{"type": "function", "function": {"name": "f", "parameters": true}}]"#),
                "tools[0].function.parameters: use a JSON schema",
            ),
            (with(r#""tool_choice": "required""#), "tool_choice: \"required\" needs tools"),
            (with(r#""tool_choice": "f""#), "tool_choice: use \"auto\", \"none\", \"required\""),
            (with(r#""tool_choice": {}"#), "tool_choice: use \"auto\""),
            (with(r#""tool_choice": {"type": "function"}"#), "tool_choice.function.name: use the name"),
            (
                with(r#""tool_choice": {"type": "function", "function": {"name": "g"}}"#),
                "tool_choice.function.name: use the name of a function in tools, not \"g\"",
            ),
            (with(r#""chat_template_kwargs": []"#), "chat_template_kwargs: use an object, not a list"),
        ];
        for (json, expected) in cases {
            let found = read(&json).err().map(|refusal| refusal.message).unwrap_or_default();
            assert!(found.starts_with(expected), "{json}: {found}");
        }
    }

    #[test]
    fn tools_keep_the_order_of_their_keys_until_they_are_not_wanted() {
        let tools = r#"[{"type":"function","function":{"name":"f","description":"z","a":1}}]"#;
        for (choice, expected) in [("\"auto\"", Some(tools)), ("null", Some(tools)), ("\"none\"", None)] {
            let json = format!(
                r#"{{"messages": [{{"role": "user", "content": "a"}}], "tools": {tools}, "tool_choice": {choice}}}"#
            );
            let found = read(&json).expect("a conversation").tools;
            let found = found.map(|tools| serde_json::to_string(&tools).expect("JSON"));
            assert_eq!(found.as_deref(), expected, "{choice}");
        }
    }
}
