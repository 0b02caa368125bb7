//! Conversations, which the model's chat template turns into prompts.

use std::fmt;

use chat::{Inputs, Json, Message, Offered, Template, ThoughtReader, forced_schema};
use engine_core::message_ends::message_ends;
use llama::error::Result as EngineResult;
use llama::{Model, Token};
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::api_error::ApiError;
use super::fields::{Fields, not_json, text_at, wrong, wrong_key};
use super::input::sketch;

/// Conversation that the model continues.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// Name of the field that contained the messages.
    field: &'static str,
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
    /// True if the answer continues the last message, which is the assistant's.
    continues: bool,
    /// True if the answer must not contain thoughts, because it must match a schema.
    answers_at_once: bool,
    /// True if the prompt ends with the beginning of the answer.
    begins_answer: bool,
}

impl Conversation {
    /// Parses `messages` in OpenAI's format, and takes the fields that belong to a conversation.
    ///
    /// # Errors
    /// If a message or one of the fields is invalid.
    pub fn take(fields: &mut Fields, messages: Box<RawValue>) -> Result<Self, ApiError> {
        let mut all = Vec::new();
        read_list(fields, "messages", messages, &mut all, |all, index, value| {
            all.push(message(index, value)?);
            Ok(())
        })?;
        if all.is_empty() {
            return Err(ApiError::field("messages", "is empty: give at least one message"));
        }
        let (tools, offered) = tools(fields.take("tools"))?;
        let choice = choice(fields.take("tool_choice"))?;
        Self::new(fields, all, (tools, offered), &choice)
    }

    /// Creates a conversation of `messages` with `tools`, which are the list for the template and the functions in the
    /// list. Takes the fields that belong to a conversation in all formats.
    ///
    /// # Errors
    /// If one of the fields is invalid, or if `choice` asks for a tool that does not exist.
    pub fn new(
        fields: &mut Fields,
        messages: Vec<Message>,
        (tools, offered): (Option<Json>, Vec<Offered>),
        choice: &ToolChoice,
    ) -> Result<Self, ApiError> {
        let forced_tools = choice.forced(&offered)?;
        let called: Vec<&Offered> = forced_tools.iter().map(|index| &offered[*index]).collect();
        let forced = (!called.is_empty()).then(|| forced_schema(&called));
        let is_wanted = !matches!(choice, ToolChoice::None);
        let (tools, offered) = if is_wanted { (tools, offered) } else { (None, Vec::new()) };
        let more = match fields.take("chat_template_kwargs") {
            None => Vec::new(),
            Some(Value::Object(map)) => {
                if let Some(name) = map.keys().find(|name| chat::VARIABLES.contains(&name.as_str())) {
                    let at = format!("chat_template_kwargs.{name}");
                    return Err(ApiError::field(&at, "this variable of the template is set by the server"));
                }
                map.iter().map(|(name, value)| (name.clone(), value.into())).collect()
            }
            Some(other) => return Err(wrong("chat_template_kwargs", "use an object", &other)),
        };
        let begins_answer = fields.bool("add_generation_prompt")?.unwrap_or(true);
        // Clients of vLLM set both fields, because vLLM otherwise refuses to continue a message.
        let wanted = fields.bool("continue_final_message")?.or((!begins_answer).then_some(false));
        let continues = continues(&messages, wanted)?;
        Ok(Conversation {
            field: "messages",
            messages,
            tools,
            offered,
            forced,
            forced_tools,
            more,
            continues,
            answers_at_once: false,
            begins_answer: begins_answer || continues,
        })
    }

    /// Sets the name of the field that contained the messages.
    #[must_use]
    pub fn in_field(self, field: &'static str) -> Self {
        Conversation { field, ..self }
    }

    /// Returns the name of the field that contained the messages.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// Sets the variable `name` of the template, unless the request sets it.
    pub fn set_default(&mut self, name: &str, value: &Value) {
        if self.more.iter().all(|(known, _)| known != name) {
            self.more.push((name.to_string(), value.into()));
        }
    }

    /// Closes the thoughts in the prompt, because the answer must not contain thoughts.
    pub fn answer_at_once(&mut self) {
        self.answers_at_once = true;
    }

    /// Returns a reader of an answer to `prompt`, the text of this conversation in `template`.
    pub fn thought_reader(&self, template: &Template, prompt: &str) -> ThoughtReader {
        let has_begun = self.continues || self.answers_at_once;
        template.thought_reader(prompt, has_begun)
    }

    /// Returns the additional variables of the template.
    #[cfg(test)]
    pub fn variables(&self) -> Value {
        self.more.iter().map(|(name, value)| (name.clone(), serde_json::json!(value))).collect()
    }

    /// Returns the messages.
    #[cfg(test)]
    pub fn messages(&self) -> &[Message] {
        &self.messages
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

    /// Renders the prompt, up to the start of the answer. If the last message is the assistant's, the prompt ends with
    /// the thoughts and the text of that message, as in llama-server and Anthropic's API.
    ///
    /// # Errors
    /// If the template rejects the conversation or exceeds a limit.
    pub fn prompt(&self, template: &Template) -> EngineResult<String> {
        let mut prompt = template.render_with(&self.inputs())?;
        let begun = self.messages.last().filter(|_| self.continues);
        if begun.is_some() || self.answers_at_once && self.begins_answer {
            template.begin_answer(&mut prompt, begun.map(Message::thoughts).unwrap_or_default());
        }
        prompt.push_str(begun.and_then(|begun| begun.content.as_deref()).unwrap_or_default());
        Ok(prompt)
    }

    /// Returns the inputs of the template. They do not include a message that the answer continues.
    fn inputs(&self) -> Inputs<'_> {
        Inputs {
            messages: &self.messages[..self.messages.len() - usize::from(self.continues)],
            add_generation_prompt: self.begins_answer,
            tools: self.tools.as_ref(),
            more: &self.more,
        }
    }

    /// Returns the [ends of the messages](message_ends) in `prompt`, the text of this conversation in `template`.
    /// `tokens` are the tokens of `prompt`.
    ///
    /// # Errors
    /// The errors of [`message_ends`].
    pub fn message_ends(
        &self,
        model: &Model,
        template: &Template,
        prompt: &str,
        tokens: &[Token],
    ) -> EngineResult<Vec<usize>> {
        message_ends(model, template, &self.inputs(), prompt, tokens)
    }
}

/// True if an answer to `messages` continues the last message. `wanted` is the value of the field
/// `continue_final_message`. If the field is missing, the answer continues a last message that is text from the
/// assistant.
fn continues(messages: &[Message], wanted: Option<bool>) -> Result<bool, ApiError> {
    let last = messages.last().filter(|_| messages.len() > 1);
    let is_begun = last
        .is_some_and(|last| last.role == "assistant" && last.content.is_some() && last.tool_calls.is_none());
    match wanted {
        Some(true) if !is_begun => Err(ApiError::field(
            "continue_final_message",
            "the last message must be from the assistant, contain text but no tool calls, and follow another message",
        )),
        wanted => Ok(wanted.unwrap_or(is_begun)),
    }
}

/// Parses `list`, the value of the field `name`: `read` gets the index of an item, and appends the messages of the
/// item. One item at a time is parsed into a JSON tree.
///
/// # Errors
/// If `list` is not a list, has too many values, or has an invalid item.
pub fn read_list(
    fields: &mut Fields,
    name: &'static str,
    list: Box<RawValue>,
    messages: &mut Vec<Message>,
    read: fn(&mut Vec<Message>, usize, Value) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    if !list.get().starts_with('[') {
        return Err(wrong(name, "use a list of messages", &sketch(&list)));
    }
    fields.count(name, &list)?;
    let mut reader = serde_json::Deserializer::from_str(list.get());
    let done = reader.deserialize_seq(Items { messages, read });
    // `list` is freed here, because rendering the template also needs memory.
    drop(list);
    done.map_err(|error| not_json(name, &error))?
}

/// Visitor that reads a list of items.
struct Items<'a> {
    messages: &'a mut Vec<Message>,
    read: fn(&mut Vec<Message>, usize, Value) -> Result<(), ApiError>,
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = Result<(), ApiError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut index = 0;
        while let Some(value) = list.next_element::<Value>()? {
            if let Err(refusal) = (self.read)(self.messages, index, value) {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(Err(refusal));
            }
            index += 1;
        }
        Ok(Ok(()))
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
    content(&format!("{at}.content"), &value["content"])?;
    calls(&format!("{at}.tool_calls"), &value["tool_calls"])?;
    serde_json::from_value(value).map_err(|error| ApiError::field(&at, error))
}

/// Checks `content`, the content of a message at `at`.
fn content(at: &str, content: &Value) -> Result<(), ApiError> {
    let parts = match content {
        Value::Null | Value::String(_) => return Ok(()),
        Value::Array(parts) => parts,
        other => return Err(wrong(at, "use a string or a list of parts", other)),
    };
    for (index, part) in parts.iter().enumerate() {
        let at = format!("{at}[{index}]");
        if part["type"] != "text" {
            return Err(wrong_key(&at, part, "type", "send parts of type \"text\""));
        }
        text_at(&at, part, "text")?;
    }
    Ok(())
}

/// Checks `calls`, the list of tool calls at `at`.
fn calls(at: &str, calls: &Value) -> Result<(), ApiError> {
    let list = match calls {
        Value::Null => return Ok(()),
        Value::Array(list) => list,
        other => return Err(wrong(at, "use a list of calls", other)),
    };
    for (index, call) in list.iter().enumerate() {
        let at = format!("{at}[{index}]");
        let function = format!("{at}.function");
        match &call["function"] {
            Value::Object(_) => {}
            _ => return Err(wrong_key(&at, call, "function", "use an object with a name and arguments")),
        }
        text_at(&function, &call["function"], "name")?;
        match &call["function"]["arguments"] {
            Value::Null | Value::String(_) | Value::Object(_) => {}
            other => {
                return Err(wrong(
                    &format!("{function}.arguments"),
                    "use a string that contains JSON",
                    other,
                ));
            }
        }
    }
    Ok(())
}

/// Returns the list of tools for the template, and the functions in the list.
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
    if tool["type"] != "function" {
        return Err(wrong_key(&at, tool, "type", "use \"function\""));
    }
    let function = &tool["function"];
    if !function.is_object() {
        return Err(wrong_key(&at, tool, "function", "use an object"));
    }
    offered_function(&format!("{at}.function"), function, "parameters")
}

/// Reads `function`, which is at `at` in the request and has a JSON schema of its arguments in the key `parameters`.
///
/// # Errors
/// If the name, the description or the schema is invalid.
pub fn offered_function(at: &str, function: &Value, parameters: &str) -> Result<Offered, ApiError> {
    let name = match &function["name"] {
        Value::String(name) if !name.is_empty() => name.clone(),
        _ => return Err(wrong_key(at, function, "name", "use a string that is not empty")),
    };
    if let other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) =
        &function["description"]
    {
        return Err(wrong(&format!("{at}.description"), "use a string", other));
    }
    let parameters = match &function[parameters] {
        Value::Null => None,
        Value::Object(schema) => Some(schema.clone()),
        other => {
            return Err(wrong(&format!("{at}.{parameters}"), "use a JSON schema that is an object", other));
        }
    };
    Ok(Offered { name, parameters })
}

/// Reads `value`, a list of functions in the flat format that newer APIs use for the field `tools`. Each function has a
/// JSON schema in the key `parameters`. Returns the list in the format of templates, and the functions. `check` gets
/// the position of each tool, and rejects tools that are not functions.
///
/// # Errors
/// If a tool is invalid.
pub fn flat_tools(
    value: Option<Value>,
    parameters: &str,
    check: fn(&str, &Value) -> Result<(), ApiError>,
) -> Result<(Option<Json>, Vec<Offered>), ApiError> {
    let list = match value {
        None => return Ok((None, Vec::new())),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(wrong("tools", "use a list of tools", &other)),
    };
    let (mut shown, mut offered) = (Vec::new(), Vec::new());
    for (index, tool) in list.iter().enumerate() {
        let at = format!("tools[{index}]");
        if !tool.is_object() {
            return Err(wrong(&at, "use an object", tool));
        }
        check(&at, tool)?;
        let function = offered_function(&at, tool, parameters)?;
        let mut described = serde_json::json!({ "name": function.name });
        for (name, key) in [("description", "description"), ("parameters", parameters)] {
            if !tool[key].is_null() {
                described[name] = tool[key].clone();
            }
        }
        shown.push(serde_json::json!({ "type": "function", "function": described }));
        offered.push(function);
    }
    let shown = (!shown.is_empty()).then(|| (&Value::Array(shown)).into());
    Ok((shown, offered))
}

/// Tools that the model may or must call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model chooses.
    Auto,
    /// The model sees no tools.
    None,
    /// The model must call one of the tools.
    Required,
    /// The model must call the tool `name`, which the request specifies in the field `field`.
    Named {
        /// Name of the tool.
        name: String,
        /// Name of the field.
        field: &'static str,
    },
}

impl ToolChoice {
    /// Returns the indices of the tools that a required call may use; empty if no call is required.
    fn forced(&self, offered: &[Offered]) -> Result<Vec<usize>, ApiError> {
        let chosen = |is_chosen: &dyn Fn(&Offered) -> bool| {
            let chosen = offered.iter().enumerate().filter(|(_, function)| is_chosen(function));
            chosen.map(|(index, _)| index).collect::<Vec<usize>>()
        };
        match self {
            ToolChoice::Auto | ToolChoice::None => Ok(Vec::new()),
            ToolChoice::Required if offered.is_empty() => {
                Err(ApiError::field("tool_choice", "a required call needs tools, but the request has none"))
            }
            ToolChoice::Required => Ok(chosen(&|_| true)),
            ToolChoice::Named { name, field } => match chosen(&|function| function.name == *name) {
                none if none.is_empty() => {
                    Err(wrong(field, "use the name of a function in tools", &Value::from(name.as_str())))
                }
                chosen => Ok(chosen),
            },
        }
    }
}

/// Reads `tool_choice` in the format of the chat API.
fn choice(value: Option<Value>) -> Result<ToolChoice, ApiError> {
    const WORDS: &str =
        "use \"auto\", \"none\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": …}}";
    let value = value.unwrap_or_else(|| "auto".into());
    match (&value, value.as_str()) {
        (_, Some("auto")) => Ok(ToolChoice::Auto),
        (_, Some("none")) => Ok(ToolChoice::None),
        (_, Some("required")) => Ok(ToolChoice::Required),
        (Value::Object(choice), _) if choice.get("type").is_some_and(|kind| kind == "function") => {
            const FIELD: &str = "tool_choice.function.name";
            match &value["function"]["name"] {
                Value::String(name) => Ok(ToolChoice::Named { name: name.clone(), field: FIELD }),
                other => Err(wrong(FIELD, "use the name of a tool", other)),
            }
        }
        _ => Err(wrong("tool_choice", WORDS, &value)),
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
                "messages[0].content: use a string or a list of parts, not 7",
            ),
            (
                r#"{"messages": [{"role": "user", "content": ["x"]}]}"#.to_string(),
                "messages[0].content[0]: use an object, not \"x\"",
            ),
            (
                r#"{"messages": [{"role": "user", "content": [{"text": "x"}]}]}"#.to_string(),
                "messages[0].content[0].type: is missing: send parts of type \"text\"",
            ),
            (
                r#"{"messages": [{"role": "assistant", "tool_calls": 5}]}"#.to_string(),
                "messages[0].tool_calls: use a list of calls, not 5",
            ),
            (
                r#"{"messages": [{"role": "assistant", "tool_calls": [{}]}]}"#.to_string(),
                "messages[0].tool_calls[0].function: is missing: use an object with a name and arguments",
            ),
            (
                r#"{"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}]}"#
                    .to_string(),
                "messages[0].tool_calls[0].function.arguments: use a string that contains JSON, not 5",
            ),
            (with(r#""tools": "f""#), "tools: use a list of tools, not \"f\""),
            (with(r#""tools": ["f"]"#), "tools[0]: use an object, not \"f\""),
            (with(r#""tools": [{}]"#), "tools[0].type: is missing: use \"function\""),
            (with(r#""tools": [{"type": "function"}]"#), "tools[0].function: is missing: use an object"),
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
            (with(r#""tool_choice": "required""#), "tool_choice: a required call needs tools"),
            (with(r#""tool_choice": "f""#), "tool_choice: use \"auto\", \"none\", \"required\""),
            (with(r#""tool_choice": {}"#), "tool_choice: use \"auto\""),
            (with(r#""tool_choice": {"type": "function"}"#), "tool_choice.function.name: use the name"),
            (
                with(r#""tool_choice": {"type": "function", "function": {"name": "g"}}"#),
                "tool_choice.function.name: use the name of a function in tools, not \"g\"",
            ),
            (with(r#""chat_template_kwargs": []"#), "chat_template_kwargs: use an object, not a list"),
            (with(r#""chat_template_kwargs": {"messages": []}"#), "chat_template_kwargs.messages: this variable"),
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
