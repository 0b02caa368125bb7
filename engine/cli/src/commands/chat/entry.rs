//! Chat entries: a single line, several lines joined by backslashes, or lines enclosed in `"""`.

/// Marker at the start and end of a multi-line entry.
const BLOCK: &str = "\"\"\"";

/// True if `text` is a complete entry. `text` contains all lines typed so far.
pub fn is_whole(text: &str) -> bool {
    match text.trim_start().strip_prefix(BLOCK) {
        Some(block) => block.trim_end().ends_with(BLOCK),
        None => !ends_with_backslash(text),
    }
}

/// Returns the entry in `text` without its markers. Accepts an entry that is incomplete because the input ended.
pub fn meaning(text: &str) -> String {
    if let Some(block) = text.trim_start().strip_prefix(BLOCK) {
        let block = block.strip_prefix('\n').unwrap_or(block);
        let trimmed = block.trim_end();
        let block = trimmed.strip_suffix(BLOCK).unwrap_or(block);
        return block.strip_suffix('\n').unwrap_or(block).to_string();
    }
    let mut lines: Vec<&str> = text.split('\n').collect();
    let last = lines.len() - 1;
    for line in &mut lines[..last] {
        *line = line.strip_suffix('\\').unwrap_or(line);
    }
    lines.join("\n")
}

fn ends_with_backslash(text: &str) -> bool {
    text.ends_with('\\')
}

/// Command of the chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatCommand {
    /// Empty entry.
    Empty,
    /// Message for the model.
    Say(String),
    /// `/help`.
    Help,
    /// `/clear`.
    Clear,
    /// `/system TEXT`. Without TEXT, the command shows the system prompt.
    System(Option<String>),
    /// `/save FILE`.
    Save(String),
    /// `/regen`.
    Again,
    /// `/stats`.
    Stats,
    /// `/exit`.
    Exit,
    /// Invalid command, with a message for the user.
    Unknown(String),
}

/// Text of `/help`.
pub const HELP: &str = "\
/help           this list
/clear          clear the conversation, but keep the system prompt
/system [TEXT]  set the system prompt to TEXT; without TEXT, show it
/save FILE      write the conversation to FILE as JSON
/regen          discard the last answer and generate another
/stats          show the context use and the speeds
/exit           end the chat; ctrl-D does the same
A line that ends with \\ continues on the next line.
\"\"\" begins and ends a multi-line message.
Ctrl-C stops an answer.";

impl ChatCommand {
    /// Parses a complete entry.
    pub fn read(text: &str) -> ChatCommand {
        let said = meaning(text);
        if said.trim().is_empty() {
            return ChatCommand::Empty;
        }
        // In a multi-line text, or after a space, a slash is part of the message.
        let line = said.trim_end();
        if !line.starts_with('/') || line.contains('\n') || text.trim_start().starts_with(BLOCK) {
            return ChatCommand::Say(said);
        }
        let (command, rest) = match line.split_once(char::is_whitespace) {
            Some((command, rest)) => (command, rest.trim()),
            None => (line, ""),
        };
        let alone = |entry: ChatCommand| match rest {
            "" => entry,
            _ => ChatCommand::Unknown(format!("{command} takes no arguments")),
        };
        match command {
            "/help" | "/?" => alone(ChatCommand::Help),
            "/clear" => alone(ChatCommand::Clear),
            "/system" => ChatCommand::System((!rest.is_empty()).then(|| rest.to_string())),
            "/save" if rest.is_empty() => ChatCommand::Unknown("/save needs a file name".to_string()),
            "/save" => ChatCommand::Save(rest.to_string()),
            "/regen" => alone(ChatCommand::Again),
            "/stats" => alone(ChatCommand::Stats),
            "/exit" | "/quit" | "/bye" => alone(ChatCommand::Exit),
            _ => ChatCommand::Unknown(format!(
                "unknown command {command}\nhint: /help lists the commands; to send a message that begins with /, type a \
                space before it"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_line_or_several() {
        let cases = [
            ("hello", true, "hello"),
            ("", true, ""),
            ("a\\", false, "a\\"),
            ("a\\\nb", true, "a\nb"),
            ("a\\\nb\\\nc", true, "a\nb\nc"),
            ("a\\\nb\\", false, "a\nb\\"),
            // Pasted lines.
            ("a\nb", true, "a\nb"),
            ("\"\"\"", false, ""),
            ("\"\"\"\na\\\n\nb", false, "a\\\n\nb"),
            ("\"\"\"\na\\\n\nb\n\"\"\"", true, "a\\\n\nb"),
            ("\"\"\"a b\"\"\"", true, "a b"),
            ("  \"\"\"a\nb\"\"\"  ", true, "a\nb"),
            ("say \"\"\"", true, "say \"\"\""),
            ("\"\"\"\"", false, "\""),
            ("\"\"\"\"\"\"", true, ""),
        ];
        for (text, whole, said) in cases {
            assert_eq!((is_whole(text), meaning(text).as_str()), (whole, said), "{text:?}");
        }
    }

    #[test]
    fn a_command_begins_with_a_slash() {
        let say = |text: &str| ChatCommand::Say(text.to_string());
        let cases = [
            ("/help", ChatCommand::Help),
            ("/clear ", ChatCommand::Clear),
            ("/system Be brief.", ChatCommand::System(Some("Be brief.".to_string()))),
            ("/system", ChatCommand::System(None)),
            ("/save a b.json", ChatCommand::Save("a b.json".to_string())),
            ("/regen", ChatCommand::Again),
            ("/stats", ChatCommand::Stats),
            ("/exit", ChatCommand::Exit),
            (" /exit", say(" /exit")),
            ("/a\\\nb", say("/a\nb")),
            ("\"\"\"/exit\"\"\"", say("/exit")),
            ("  ", ChatCommand::Empty),
            ("\"\"\"\n\"\"\"", ChatCommand::Empty),
        ];
        for (text, entry) in cases {
            assert_eq!(ChatCommand::read(text), entry, "{text:?}");
        }
        for text in ["/usr/bin", "/save", "/exit now", "/clear all", "/"] {
            assert!(matches!(ChatCommand::read(text), ChatCommand::Unknown(_)), "{text:?}");
        }
        for command in ["/help", "/clear", "/system", "/save", "/regen", "/stats", "/exit"] {
            assert!(HELP.contains(command), "{command} is not in the help");
        }
    }
}
