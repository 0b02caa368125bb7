//! Conversations as prompts: through the model's chat template.

use serde_json::Value;

use super::fields::{Fields, wrong};
use super::refusal::Refusal;
use crate::chat::{Inputs, Json, Message, Template};
use crate::error::Result as EngineResult;
use crate::ffi::{Model, Token};

/// A conversation to go on with.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    messages: Vec<Message>,
    /// OpenAI's list of tools.
    tools: Option<Json>,
    /// Further variables of the template.
    more: Vec<(String, Json)>,
}

impl Conversation {
    /// Checks `messages`, and takes the fields that go with them.
    pub fn take(fields: &mut Fields, messages: Value) -> Result<Self, Refusal> {
        let messages = match messages {
            Value::Array(list) if list.is_empty() => {
                return Err(Refusal::field("messages", "is empty: there is nothing to answer"));
            }
            Value::Array(list) => list.into_iter().enumerate().map(message).collect::<Result<_, _>>()?,
            other => return Err(wrong("messages", "use a list of messages", &other)),
        };
        let tools = tools(fields.take("tools"))?;
        let tools = match fields.text("tool_choice")?.as_deref() {
            None | Some("auto") => tools,
            Some("none") => None,
            Some(other) => {
                let what = "only \"auto\" and \"none\" are offered: no call is forced";
                return Err(wrong("tool_choice", what, &Value::from(other)));
            }
        };
        let more = match fields.take("chat_template_kwargs") {
            None => Vec::new(),
            Some(Value::Object(map)) => {
                map.iter().map(|(name, value)| (name.clone(), value.into())).collect()
            }
            Some(other) => return Err(wrong("chat_template_kwargs", "use an object", &other)),
        };
        Ok(Conversation { messages, tools, more })
    }

    /// Its tokens, up to where the answer begins.
    ///
    /// # Errors
    /// Where the template refuses it, or comes to no end.
    pub fn tokens(&self, template: &Template, model: &Model) -> EngineResult<Vec<Token>> {
        let prompt = template.render_with(&Inputs {
            messages: &self.messages,
            add_generation_prompt: true,
            tools: self.tools.as_ref(),
            more: &self.more,
        })?;
        template.tokenize(model, &prompt)
    }
}

fn message((index, value): (usize, Value)) -> Result<Message, Refusal> {
    let at = format!("messages[{index}]");
    let Some(map) = value.as_object() else { return Err(wrong(&at, "use an object", &value)) };
    match map.get("role") {
        Some(Value::String(_)) => {}
        Some(other) => return Err(wrong(&format!("{at}.role"), "use a text", other)),
        None => {
            return Err(Refusal::field(&format!("{at}.role"), "is missing: system, user, assistant or tool"));
        }
    }
    serde_json::from_value(value).map_err(|error| Refusal::field(&at, error))
}

fn tools(value: Option<Value>) -> Result<Option<Json>, Refusal> {
    match value {
        None => Ok(None),
        Some(Value::Array(list)) => match list.iter().find(|tool| !tool.is_object()) {
            Some(other) => Err(wrong("tools", "a list holds objects", other)),
            // Templates that ask only whether there is a list would announce tools.
            None if list.is_empty() => Ok(None),
            None => Ok(Some((&Value::Array(list)).into())),
        },
        Some(other) => Err(wrong("tools", "use a list of tools", &other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Conversation, Refusal> {
        let mut fields = Fields::read(json.as_bytes())?;
        let messages = fields.take("messages").unwrap_or_default();
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
                "messages[1].role: use a text, not 7",
            ),
            (r#"{"messages": [{"content": "a"}]}"#.to_string(), "messages[0].role: is missing"),
            (
                r#"{"messages": [{"role": "user", "content": 7}]}"#.to_string(),
                "messages[0]: invalid type: integer `7`",
            ),
            (with(r#""tools": "f""#), "tools: use a list of tools, not \"f\""),
            (with(r#""tools": ["f"]"#), "tools: a list holds objects, not \"f\""),
            (with(r#""tool_choice": "required""#), "tool_choice: only \"auto\" and \"none\""),
            (with(r#""tool_choice": {}"#), "tool_choice: use a text, not an object"),
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
