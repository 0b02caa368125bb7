//! Positions in a rendered conversation at which other prompts begin to differ.
//!
//! Only the template knows where a message ends in the text, and many templates mark the end with ordinary characters.
//! The positions are therefore found by rendering the conversation again with a small change.

use chat::{Inputs, Message, Template};
use llama::error::Result;
use llama::{Model, Token};

/// Returns the numbers of tokens after which `prompt`, the text of `inputs` in `template`, begins to differ from other
/// prompts. `tokens` are the tokens of `prompt`.
///
/// - Conversations with the same first message differ after this message. If a conversation has only one message,
///   they differ after the text that the template puts before it, for example the tools.
/// - The next turn of the conversation differs after the last message, because the template may begin this answer with
///   text that it leaves out of earlier answers.
///
/// The list is empty if the template renders neither of the changed conversations.
///
/// # Errors
/// The errors of [`Model::piece_with`].
pub fn message_ends(
    model: &Model,
    template: &Template,
    inputs: &Inputs<'_>,
    prompt: &str,
    tokens: &[Token],
) -> Result<Vec<usize>> {
    let messages = inputs.messages;
    let first = usize::from(messages.len() > 1);
    let Some(replaced) = messages.get(first) else { return Ok(Vec::new()) };
    let other = [&messages[..first], &[Message::new(replaced.role.as_str(), "x")]].concat();
    let mut ends = Vec::new();
    for messages in [&other, messages] {
        let changed = Inputs { messages, add_generation_prompt: false, ..*inputs };
        let Ok(text) = template.render_with(&changed) else { continue };
        let common = prompt.bytes().zip(text.bytes()).take_while(|(one, other)| one == other).count();
        ends.push(tokens_before(model, tokens, prompt.len() - common)?);
    }
    Ok(ends)
}

/// Returns the number of `tokens` before the last `bytes` bytes of their text. The last of these tokens is not counted,
/// because its text and the text after it may have other tokens in another prompt.
fn tokens_before(model: &Model, tokens: &[Token], bytes: usize) -> Result<usize> {
    let mut piece = Vec::new();
    for (at, token) in tokens.iter().enumerate().rev() {
        model.piece_with(*token, true, &mut piece)?;
        if piece.len() > bytes {
            return Ok(at);
        }
    }
    Ok(0)
}
