//! Messages in the format of OpenAI's API.

use std::collections::BTreeMap;
use std::fmt;

use minijinja::Value;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

/// JSON value whose objects keep the order of their keys, so that the model sees a tool's keys in the author's order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Json(pub(super) Value);

impl From<&serde_json::Value> for Json {
    fn from(value: &serde_json::Value) -> Self {
        // The conversion from JSON cannot fail.
        Json(Value::deserialize(value).unwrap_or_default())
    }
}

impl Json {
    /// Returns the text if the value is a string.
    pub(super) fn text(&self) -> Option<&str> {
        self.0.as_str()
    }

    /// Returns the values of a list.
    pub(super) fn items(&self) -> impl Iterator<Item = Json> {
        self.0.try_iter().into_iter().flatten().map(Json)
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Role: `system`, `user`, `assistant`, `tool`, or any other role that the template supports.
    pub role: String,
    /// Text of the message. In JSON, a string or a list of parts of type `text`, which are joined with newlines.
    #[serde(default, deserialize_with = "text")]
    pub content: Option<String>,
    /// Name of the author, or of the tool whose result this message contains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tool calls of the assistant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// ID of the call that a tool's message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// All other keys, which the template may use.
    #[serde(flatten)]
    pub more: BTreeMap<String, Json>,
}

/// Tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// ID of the call, which the tool's message repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Always `function`.
    #[serde(rename = "type", default = "function")]
    pub kind: String,
    /// Function that is called.
    pub function: Function,
}

/// Function of a [`ToolCall`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Function {
    /// Name of the function.
    pub name: String,
    /// Arguments: a string that contains JSON, as in OpenAI's API, or an object, as in templates.
    #[serde(default = "no_arguments")]
    pub arguments: Json,
}

/// Key of the thoughts in a message.
pub(super) const THOUGHTS: &str = "reasoning_content";

fn function() -> String {
    "function".to_string()
}

fn no_arguments() -> Json {
    Json(Value::from("{}"))
}

impl Message {
    /// Creates a message with the given role and text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        Message {
            role: role.into(),
            content: Some(text.into()),
            name: None,
            tool_calls: None,
            tool_call_id: None,
            more: BTreeMap::new(),
        }
    }

    /// Sets the thoughts before the text. The template decides whether the model sees them.
    pub fn set_thoughts(&mut self, thoughts: &str) {
        self.more.insert(THOUGHTS.to_string(), Json(Value::from(thoughts)));
    }

    /// Returns the thoughts before the text; an empty text if there are none.
    pub fn thoughts(&self) -> &str {
        self.more.get(THOUGHTS).and_then(Json::text).unwrap_or_default()
    }

    /// Converts to the value that the template sees. Missing keys are omitted, and the other keys have the usual
    /// order.
    pub(super) fn value(&self, style: ToolStyle) -> Value {
        let content = self.content.as_deref().or(style.empty_content.then_some(""));
        let mut pairs = vec![("role", Value::from(self.role.as_str())), ("content", Value::from(content))];
        pairs.extend(self.name.as_deref().map(|name| ("name", Value::from(name))));
        if let Some(calls) = &self.tool_calls {
            pairs.push(("tool_calls", calls.iter().map(|call| call.value(style)).collect()));
        }
        pairs.extend(self.tool_call_id.as_deref().map(|id| ("tool_call_id", Value::from(id))));
        pairs.extend(self.more.iter().map(|(key, value)| (key.as_str(), value.0.clone())));
        Value::from_pairs(pairs)
    }
}

impl Function {
    /// Returns the arguments; `{}` if they are missing.
    fn given_arguments(&self) -> Json {
        let is_missing = match self.arguments.text() {
            Some(text) => NO_ARGUMENTS.contains(&text.trim()),
            None => self.arguments.0.is_none(),
        };
        if is_missing { no_arguments() } else { self.arguments.clone() }
    }
}

/// Texts of missing arguments.
const NO_ARGUMENTS: [&str; 2] = ["", "null"];

/// Returns `arguments` of a call as an object. Arguments that are not an object become the text of the member
/// `INVALID_JSON`, as in Anthropic's documentation of fine-grained tool streaming. A model may write invalid arguments,
/// or be cut off, and the conversation must still be able to continue.
pub fn arguments_object(arguments: &str) -> serde_json::Value {
    let object = match arguments.trim() {
        text if NO_ARGUMENTS.contains(&text) => Some(serde_json::json!({})),
        text => serde_json::from_str(text).ok().filter(serde_json::Value::is_object),
    };
    object.unwrap_or_else(|| serde_json::json!({ "INVALID_JSON": arguments }))
}

impl ToolCall {
    /// Returns the name of the function.
    pub(super) fn name(&self) -> &str {
        &self.function.name
    }

    /// Returns the arguments as JSON. In OpenAI's API, they are a string that contains JSON.
    pub(super) fn arguments_json(&self) -> String {
        let arguments = self.function.given_arguments();
        // A value that came from JSON can be written as JSON.
        arguments.text().map_or_else(|| serde_json::to_string(&arguments).unwrap_or_default(), str::to_string)
    }

    fn value(&self, style: ToolStyle) -> Value {
        let arguments = self.function.given_arguments();
        let arguments = match arguments.text() {
            Some(text) if style.objects => Json::from(&arguments_object(text)).0,
            _ => arguments.0,
        };
        let name = Value::from(self.function.name.as_str());
        let function = Value::from_pairs([("name", name), ("arguments", arguments)]);
        let mut pairs = Vec::with_capacity(3);
        pairs.extend(self.id.as_deref().map(|id| ("id", Value::from(id))));
        pairs.push(("type", Value::from(self.kind.as_str())));
        pairs.push(("function", function));
        Value::from_pairs(pairs)
    }
}

/// Form in which a template expects tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ToolStyle {
    /// True if arguments are objects, false if they are JSON strings.
    pub(super) objects: bool,
    /// True if the content of a message without content is an empty string instead of `None`.
    pub(super) empty_content: bool,
}

/// Deserialises `content`.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    struct Text;

    impl<'de> Visitor<'de> for Text {
        type Value = Option<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a message's content: a string, or a list of parts of type \"text\"")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok(Some(text.to_string()))
        }

        fn visit_string<E: de::Error>(self, text: String) -> Result<Self::Value, E> {
            Ok(Some(text))
        }

        fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_none<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Self::Value, A::Error> {
            let mut text = String::new();
            let mut first = true;
            while let Some(part) = parts.next_element::<MessagePart>()? {
                let said = part.text().map_err(de::Error::custom)?;
                if !std::mem::take(&mut first) {
                    text.push('\n');
                }
                text.push_str(&said);
            }
            Ok(Some(text))
        }
    }

    deserializer.deserialize_any(Text)
}

/// Part of a message's content.
#[derive(Deserialize)]
struct MessagePart {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

impl MessagePart {
    fn text(self) -> Result<String, String> {
        match (self.kind.as_str(), self.text) {
            ("text", Some(text)) => Ok(text),
            ("text", None) => Err("a content part of type \"text\" has no \"text\"".to_string()),
            (kind, _) => {
                Err(format!("a content part has the unsupported type {kind:?}: send parts of type \"text\""))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_a_text_or_parts_of_text() {
        let cases = [
            (r#"{"role":"user","content":"hello"}"#, Ok(Some("hello"))),
            (r#"{"role":"user","content":""}"#, Ok(Some(""))),
            (r#"{"role":"assistant","content":null,"tool_calls":[]}"#, Ok(None)),
            (r#"{"role":"assistant"}"#, Ok(None)),
            (r#"{"role":"user","content":[]}"#, Ok(Some(""))),
            (
                r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#,
                Ok(Some("a\nb")),
            ),
            (
                r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}"#,
                Err("send parts of type \"text\""),
            ),
            (r#"{"role":"user","content":[{"type":"input_audio"}]}"#, Err("\"input_audio\"")),
            (r#"{"role":"user","content":[{"type":"text"}]}"#, Err("has no \"text\"")),
            (r#"{"role":"user","content":["a"]}"#, Err("invalid type")),
            (r#"{"role":"user","content":7}"#, Err("a string, or a list of parts")),
            (r#"{"role":"user","content":{"a":1}}"#, Err("a string, or a list of parts")),
            (r#"{"content":"a"}"#, Err("missing field `role`")),
            (r#"{"role":7,"content":"a"}"#, Err("expected a string")),
            (r#"{"role":"assistant","tool_calls":[{"function":{}}]}"#, Err("missing field `name`")),
            (r#"{"role":"assistant","tool_calls":"f"}"#, Err("invalid type")),
        ];
        for (json, expected) in cases {
            match (serde_json::from_str::<Message>(json), expected) {
                (Ok(message), Ok(content)) => assert_eq!(message.content.as_deref(), content, "{json}"),
                (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{json}: {error}"),
                (result, _) => panic!("{json}: {result:?}"),
            }
        }
    }

    #[test]
    fn a_message_comes_out_as_it_went_in() {
        for json in [
            r#"{"role":"user","content":"hello","name":"Ann"}"#,
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"z\":1,\"a\":2}"}}]}"#,
            r#"{"role":"tool","content":"4","tool_call_id":"c1","extra":{"z":1,"a":[null,true,2.5]}}"#,
        ] {
            let message: Message = serde_json::from_str(json).expect("a message");
            assert_eq!(serde_json::to_string(&message).expect("JSON"), json);
        }
    }

    #[test]
    fn arguments_become_objects_where_the_template_wants_them() {
        let json = |arguments: &str| {
            format!(
                r#"{{"role":"assistant","tool_calls":[{{"function":{{"name":"f","arguments":{arguments}}}}}]}}"#
            )
        };
        let objects = ToolStyle { objects: true, empty_content: true };
        let cases = [
            (r#""{\"z\":1,\"a\":2}""#, objects, r#"{"z":1,"a":2}"#),
            (r#"{"z":1,"a":2}"#, objects, r#"{"z":1,"a":2}"#),
            (r#"{"z":1,"a":2}"#, ToolStyle::default(), r#"{"z":1,"a":2}"#),
            (r#""{\"z\":1}""#, ToolStyle::default(), r#""{\"z\":1}""#),
            (r#""not json""#, ToolStyle::default(), r#""not json""#),
            (r#""not json""#, objects, r#"{"INVALID_JSON":"not json"}"#),
            (r#""[1]""#, objects, r#"{"INVALID_JSON":"[1]"}"#),
            (r#"" ""#, objects, "{}"),
            (r#""""#, ToolStyle::default(), r#""{}""#),
            (r#""null""#, ToolStyle::default(), r#""{}""#),
            ("null", ToolStyle::default(), r#""{}""#),
            ("null", objects, "{}"),
        ];
        for (arguments, style, expected) in cases {
            let message: Message = serde_json::from_str(&json(arguments)).expect("a message");
            let value = message.value(style);
            let call = value.get_attr("tool_calls").and_then(|calls| calls.get_item_by_index(0));
            let function = call.expect("a call").get_attr("function").expect("a function");
            let found = serde_json::to_string(&function.get_attr("arguments").expect("arguments"));
            assert_eq!(found.expect("JSON"), expected, "{arguments}");
        }
    }
}
