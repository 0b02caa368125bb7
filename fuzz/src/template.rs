//! Chat templates: compiled and rendered, with what a model's maker wrote and with what a client says.

use chat::{Inputs, Json, Message, Specials, Template};

/// Renders what comes before the first zero of `bytes` with the messages after it, or with two of our own.
pub fn check(bytes: &[u8]) {
    let (source, messages) = match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &b""[..]),
    };
    let Ok(source) = std::str::from_utf8(source) else { return };
    let Ok(template) = Template::new(source, "a file", Specials::default()) else { return };
    let own = || vec![Message::new("system", "Be brief."), Message::new("user", "Hello")];
    let messages: Vec<Message> = serde_json::from_slice(messages).unwrap_or_else(|_| own());
    let tools = serde_json::json!([{ "type": "function", "function": { "name": "f", "parameters": {} } }]);
    let tools = Json::from(&tools);
    for tools in [None, Some(&tools)] {
        let inputs = Inputs { messages: &messages, add_generation_prompt: true, tools, more: &[] };
        let _ = template.render_with(&inputs).map(|prompt| prompt.len());
    }
}
