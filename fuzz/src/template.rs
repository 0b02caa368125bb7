//! Fuzz target for chat templates: compilation, and rendering with data from a model and from a client.

use chat::{Inputs, Json, Message, Specials, Template};

/// Renders the template before the first zero byte of `bytes`. The messages follow the zero byte; without one, two
/// fixed messages are used.
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
