//! Tools for templates that cannot show them: the tools are described in a message, and calls and results become text,
//! in the Hermes format ([`CallFormat::hermes`](super::CallFormat::hermes)).

use super::message::{Json, Message, ToolCall};

/// Returns `messages` with calls and results as text, and with a description of `tools`. The description becomes part
/// of the first system message if `has_system` is true, otherwise part of the first user message.
pub fn with_tools(messages: &[Message], tools: Option<&Json>, has_system: bool) -> Vec<Message> {
    let mut result: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    for message in messages {
        let mut message = message.clone();
        if let Some(calls) = message.tool_calls.take() {
            let calls = calls.iter().map(call);
            let texts = message.content.take().filter(|text| !text.is_empty()).into_iter().chain(calls);
            message.content = Some(texts.collect::<Vec<_>>().join("\n"));
        }
        if message.role == "tool" {
            let content = message.content.unwrap_or_default();
            let text = format!("<tool_response>\n{content}\n</tool_response>");
            // Some templates do not allow two user messages in a row.
            match result.last_mut() {
                Some(last) if last.role == "user" && is_response(last) => append(last, &text),
                _ => result.push(Message::new("user", text)),
            }
            continue;
        }
        result.push(message);
    }
    let Some(tools) = tools else { return result };
    let role = if has_system { "system" } else { "user" };
    let description = description(tools);
    match result.iter_mut().find(|message| message.role == role) {
        Some(first) if has_system => append(first, &format!("\n{description}")),
        Some(first) => {
            let content = first.content.take().unwrap_or_default();
            first.content = Some(format!("{description}\n\n{content}"));
        }
        None => result.insert(0, Message::new(role, description)),
    }
    result
}

/// Returns `messages` with the calls of earlier answers converted to text by `written`.
pub fn with_calls(messages: &[Message], written: impl Fn(&[ToolCall]) -> String) -> Vec<Message> {
    let mut messages = messages.to_vec();
    for message in &mut messages {
        if let Some(calls) = message.tool_calls.take() {
            append(message, &written(&calls));
        }
    }
    messages
}

/// Returns the format of a call.
fn call(call: &ToolCall) -> String {
    let name = serde_json::to_string(call.name()).unwrap_or_default();
    format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {}}}\n</tool_call>", call.arguments_json())
}

fn is_response(message: &Message) -> bool {
    message.content.as_ref().is_some_and(|text| text.starts_with("<tool_response>"))
}

fn append(message: &mut Message, text: &str) {
    let content = message.content.take().unwrap_or_default();
    message.content = Some(if content.is_empty() { text.to_string() } else { format!("{content}\n{text}") });
}

/// Returns the text that describes `tools` and the format of calls.
fn description(tools: &Json) -> String {
    let lines: String = tools.items().map(|tool| json(&tool) + "\n").collect();
    format!(
        "# Tools\n\nYou may call these functions:\n<tools>\n{lines}</tools>\n\nTo call a function, answer only with its \
         name and its arguments as JSON:\n<tool_call>\n{{\"name\": \"NAME\", \"arguments\": {{}}}}\n</tool_call>\nThe \
         result then follows between <tool_response> and </tool_response>."
    )
}

fn json(value: &Json) -> String {
    // A value that came from JSON can be written as JSON.
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Vec<Message> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn tools_calls_and_results_become_text() {
        let tools: Json = serde_json::from_str(r#"[{"type":"function","function":{"name":"f"}}]"#).unwrap();
        let messages = read(
            r#"[{"role": "user", "content": "hi"},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "1", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
                    {"id": "2", "function": {"name": "f", "arguments": {"a": 2}}}]},
                {"role": "tool", "tool_call_id": "1", "content": "one"},
                {"role": "tool", "tool_call_id": "2", "content": "two"}]"#,
        );
        let found = with_tools(&messages, Some(&tools), true);
        let roles: Vec<&str> = found.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        let text = |index: usize| found[index].content.as_deref().unwrap();
        assert!(
            text(0).contains("<tools>\n{\"type\":\"function\",\"function\":{\"name\":\"f\"}}\n</tools>"),
            "{found:?}"
        );
        assert_eq!(
            text(2),
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"f\", \
             \"arguments\": {\"a\":2}}\n</tool_call>"
        );
        assert_eq!(text(3), "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>");
        assert!(found.iter().all(|message| message.tool_calls.is_none()));

        // Without a system role, the first user message begins with the description.
        let found = with_tools(&messages, Some(&tools), false);
        let first = found[0].content.as_deref().unwrap();
        assert!(
            found[0].role == "user" && first.starts_with("# Tools") && first.ends_with("\n\nhi"),
            "{first}"
        );
        // An existing system message is kept.
        let messages =
            read(r#"[{"role": "system", "content": "Be terse."}, {"role": "user", "content": "hi"}]"#);
        let found = with_tools(&messages, Some(&tools), true);
        assert!(found.len() == 2 && found[0].content.as_deref().unwrap().starts_with("Be terse.\n\n# Tools"));
    }
}
