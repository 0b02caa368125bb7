//! System messages for templates that show only one of them, or none.

use super::message::Message;

/// Conversion of messages to a form that more templates support.
type Form = fn(&[Message]) -> Vec<Message>;

/// Forms with one system message. The first form changes less.
pub(super) const FORMS: [Form; 2] = [merged, |messages| in_user_messages(&merged(messages), true)];

/// True if `message` gives instructions to the model.
pub(super) fn is_system(message: &Message) -> bool {
    matches!(message.role.as_str(), "system" | "developer")
}

/// Returns `messages` with a unique text as the content of each system message, and these texts.
pub(super) fn marked(messages: &[Message]) -> (Vec<Message>, Vec<String>) {
    let (mut messages, mut marks) = (messages.to_vec(), Vec::new());
    for message in messages.iter_mut().filter(|message| is_system(message)) {
        let mark = format!("needle_{}_of_anneal", marks.len());
        message.content = Some(mark.clone());
        marks.push(mark);
    }
    (messages, marks)
}

/// Returns `messages` with all system messages at the start merged into the first one.
fn merged(messages: &[Message]) -> Vec<Message> {
    let leading = messages.iter().take_while(|message| is_system(message)).count();
    let (leading, rest) = messages.split_at(leading);
    let first = leading.iter().cloned().reduce(|mut first, next| {
        append(&mut first, next.content.as_deref().unwrap_or_default());
        first
    });
    first.into_iter().chain(rest.iter().cloned()).collect()
}

/// Returns `messages` with the text of system messages at the start of the next user message. If `keeps_first` is true,
/// a system message at the start of the conversation stays.
pub(super) fn in_user_messages(messages: &[Message], keeps_first: bool) -> Vec<Message> {
    let mut result: Vec<Message> = Vec::with_capacity(messages.len());
    let mut moved: Option<Message> = None;
    for (index, message) in messages.iter().enumerate() {
        let mut message = message.clone();
        if is_system(&message) && !(keeps_first && index == 0) {
            let text = message.content.unwrap_or_default();
            append(moved.get_or_insert_with(|| Message::new("user", "")), &text);
            continue;
        }
        if message.role == "user"
            && let Some(mut text) = moved.take()
        {
            append(&mut text, message.content.as_deref().unwrap_or_default());
            message.content = text.content;
        }
        result.push(message);
    }
    match (moved, result.last_mut()) {
        (Some(moved), Some(last)) if last.role == "user" => {
            append(last, moved.content.as_deref().unwrap_or_default())
        }
        (Some(moved), _) => result.push(moved),
        (None, _) => {}
    }
    result
}

/// Appends `text` to the content of `message`, after an empty line.
fn append(message: &mut Message, text: &str) {
    let content = message.content.get_or_insert_default();
    if !content.is_empty() && !text.is_empty() {
        content.push_str("\n\n");
    }
    content.push_str(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk(messages: &[(&str, &str)]) -> Vec<Message> {
        messages.iter().map(|(role, text)| Message::new(*role, *text)).collect()
    }

    #[test]
    fn system_messages_at_the_start_become_one() {
        for (given, expected) in [
            (
                &[("system", "a"), ("developer", "b"), ("user", "c")][..],
                &[("system", "a\n\nb"), ("user", "c")][..],
            ),
            (
                &[("system", "a"), ("user", "b"), ("system", "c"), ("system", "d")],
                &[("system", "a"), ("user", "b"), ("system", "c"), ("system", "d")],
            ),
            (&[("user", "a"), ("system", "b")], &[("user", "a"), ("system", "b")]),
        ] {
            assert_eq!(merged(&talk(given)), talk(expected), "{given:?}");
        }
    }

    #[test]
    fn system_messages_move_into_the_next_user_message() {
        for (given, keeps_first, expected) in [
            (&[("system", "a"), ("user", "b")][..], false, &[("user", "a\n\nb")][..]),
            (&[("system", "a"), ("developer", "b"), ("user", "c")], false, &[("user", "a\n\nb\n\nc")]),
            (&[("system", "a"), ("user", "b")], true, &[("system", "a"), ("user", "b")]),
            (
                &[("system", "a"), ("user", "b"), ("system", "c"), ("assistant", "d"), ("user", "e")],
                true,
                &[("system", "a"), ("user", "b"), ("assistant", "d"), ("user", "c\n\ne")],
            ),
            (&[("user", "a"), ("system", "b")], true, &[("user", "a\n\nb")]),
            (&[("system", "a")], false, &[("user", "a")]),
            (
                &[("user", "a"), ("assistant", "b"), ("system", "c")],
                true,
                &[("user", "a"), ("assistant", "b"), ("user", "c")],
            ),
        ] {
            assert_eq!(in_user_messages(&talk(given), keeps_first), talk(expected), "{given:?}");
        }
    }
}
