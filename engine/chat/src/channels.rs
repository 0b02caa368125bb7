//! Channels of gpt-oss (the format that OpenAI calls harmony). An answer consists of messages, and the header of each
//! message names its channel: `analysis` for thoughts, `final` for the answer, `commentary` for remarks and tool calls.
//!
//! Calls to functions that were not offered, and calls whose arguments do not begin like a JSON object, remain text. Once
//! the arguments have begun, they are emitted as they arrive.

use super::calls::overlap;
use super::message::{Json, Message, THOUGHTS};
use super::part::{Offered, Part};
use super::scan::Scan;
use super::thoughts::SEPARATOR;

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";
const MESSAGE: &str = "<|message|>";
const END: &str = "<|end|>";
const CALL: &str = "<|call|>";
const RETURN: &str = "<|return|>";

/// Markers, which are special tokens of the model. `<|call|>` and `<|return|>` end an answer, so they rarely appear in
/// its text.
pub(super) const MARKERS: [&str; 7] = [START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN];

/// Markers that end a message. A new header without an end marker also ends the message before it.
const ENDS: [&str; 5] = [END, CALL, RETURN, START, CHANNEL];

/// Text that ends thoughts.
pub(super) const CLOSE: &str = END;

/// Text that ends thoughts and begins the answer.
pub(super) const CLOSE_AND_ANSWER: &str = "<|end|><|start|>assistant<|channel|>final<|message|>";

/// Text that begins the answer after a prompt.
pub(super) const ANSWER: &str = "<|channel|>final<|message|>";

/// Returns a message of `thoughts`, and the start of the next message.
pub(super) fn thoughts(thoughts: &str) -> String {
    format!("{CHANNEL}analysis{MESSAGE}{thoughts}{END}{START}{ROLE}")
}

/// Role in the header of the model's messages.
const ROLE: &str = "assistant";

/// Maximum length of a header, in bytes. The name of a function has at most 64 characters in OpenAI's API.
const MAX_HEADER: usize = 512;

/// True if the template `source` uses channels.
pub(super) fn are_in(source: &str) -> bool {
    source.contains(CHANNEL) && source.contains(MESSAGE)
}

/// Incremental reader that splits an answer into thoughts, text and tool calls.
#[derive(Clone, Debug)]
pub struct ChannelReader {
    /// Functions that the client offered.
    offered: Vec<Offered>,
    at: ChannelState,
    /// Text that was received but not yet emitted.
    held: String,
    /// True if thoughts were emitted in an earlier message.
    has_thoughts: bool,
    /// True if text was emitted in an earlier message.
    has_text: bool,
    /// True if an earlier message is of the same kind and no part of this message has been emitted yet. A separator
    /// then precedes the text.
    separates: bool,
    /// True if thoughts are emitted as text, with their header and end marker.
    keeps_thoughts: bool,
    /// True if the message's end marker is emitted as text.
    keeps_end: bool,
    /// Number of bytes at the start of `held` that are not searched again: white space before a message or before the
    /// arguments of a call.
    searched: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ChannelState {
    /// Before a message.
    Between,
    /// In the header of a message.
    Header,
    /// In thoughts.
    Thought,
    /// In text for the user.
    Text,
    /// Before the arguments of a call to the function `name`. If no object follows, the text begins with `header`.
    Call { name: String, header: String },
    /// In the arguments of a call.
    Arguments(Scan),
    /// After the arguments of a call. Text before the end marker is dropped.
    AfterArguments,
}

impl ChannelReader {
    /// Creates a reader of an answer to `prompt`.
    pub fn new(prompt: &str) -> Self {
        let mut reader = ChannelReader {
            offered: Vec::new(),
            at: ChannelState::Between,
            held: String::new(),
            has_thoughts: false,
            has_text: false,
            separates: false,
            keeps_thoughts: false,
            keeps_end: false,
            searched: 0,
        };
        // The prompt may already contain the header of the answer, or a part of the answer.
        if let Some((_, header)) = prompt.rsplit_once(START)
            && header.contains(MESSAGE)
        {
            reader.push(START);
            // If the header were pushed in one piece, the text after each marker would be moved many times.
            for piece in header.split_inclusive('<') {
                reader.push(piece);
            }
            (reader.has_thoughts, reader.has_text, reader.separates) = (false, false, false);
            if matches!(reader.at, ChannelState::Thought | ChannelState::Text) {
                reader.held.clear();
            }
        }
        reader
    }

    /// Looks for calls to the functions in `offered`.
    #[must_use]
    pub fn offering(self, offered: Vec<Offered>) -> Self {
        ChannelReader { offered, ..self }
    }

    /// Emits thoughts as text, as the model wrote them.
    #[must_use]
    pub fn keeping_thoughts(self) -> Self {
        ChannelReader { keeps_thoughts: true, ..self }
    }

    /// True if thoughts are open.
    pub fn is_inside(&self) -> bool {
        self.at == ChannelState::Thought
    }

    /// Adds `piece` to the answer, and returns the parts that are now certain.
    pub fn push(&mut self, piece: &str) -> Vec<Part> {
        self.held.push_str(piece);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// Ends the answer, and returns the remaining parts.
    pub fn finish(&mut self) -> Vec<Part> {
        let held = std::mem::take(&mut self.held);
        let mut parts = Vec::new();
        match self.at.clone() {
            // A header that was cut off is not a part of the answer.
            ChannelState::Header if held.contains("<|") => {}
            ChannelState::Between if held.trim().is_empty() => {}
            ChannelState::Between | ChannelState::Header | ChannelState::Text => self.say(&held, &mut parts),
            ChannelState::Thought => self.think(&held, &mut parts),
            // A call without arguments.
            ChannelState::Call { name, .. } if held.trim().is_empty() => parts.extend(empty_call(name)),
            ChannelState::Call { header, .. } => self.not_a_call(&(header + &held), &mut parts),
            ChannelState::Arguments(_) if held.is_empty() => {}
            ChannelState::Arguments(_) => parts.push(Part::Arguments(held)),
            ChannelState::AfterArguments => {}
        }
        parts
    }

    /// Advances by one step. Returns true if another step may be possible.
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        match self.at {
            ChannelState::Between => self.between(),
            ChannelState::Header => self.header(parts),
            ChannelState::Thought | ChannelState::Text => {
                let (text, end) = self.until_end();
                match self.at {
                    ChannelState::Thought => self.think(&text, parts),
                    _ => self.say(&text, parts),
                }
                let Some(end) = end else { return false };
                if std::mem::take(&mut self.keeps_end) && ends_message(end) {
                    self.say(end, parts);
                }
                self.end(end);
                true
            }
            ChannelState::Call { .. } => self.before_arguments(parts),
            ChannelState::Arguments(scan) => self.arguments(scan, parts),
            ChannelState::AfterArguments => {
                let (_, end) = self.until_end();
                if let Some(end) = end {
                    self.end(end);
                }
                end.is_some()
            }
        }
    }

    /// Looks for the first character of a call's arguments.
    fn before_arguments(&mut self, parts: &mut Vec<Part>) -> bool {
        let rest = self.held[self.searched..].trim_start();
        self.searched = self.held.len() - rest.len();
        let end = ENDS.into_iter().find(|mark| rest.starts_with(mark));
        if end.is_none() && ENDS.into_iter().any(|mark| mark.starts_with(rest)) {
            return false;
        }
        let is_object = rest.starts_with('{');
        let rest = rest[end.map_or(0, str::len)..].to_string();
        let before = self.held[..self.searched].to_string();
        (self.held, self.searched) = (rest, 0);
        let ChannelState::Call { name, header } = std::mem::replace(&mut self.at, ChannelState::Text) else {
            return false;
        };
        if let Some(end) = end {
            parts.extend(empty_call(name));
            self.end(end);
        } else if is_object {
            self.at = ChannelState::Arguments(Scan::default());
            parts.push(Part::Call(name));
        } else {
            self.keeps_end = true;
            self.not_a_call(&(header + &before), parts);
        }
        true
    }

    /// Emits arguments up to their last bracket or the end of the message.
    fn arguments(&mut self, mut scan: Scan, parts: &mut Vec<Part>) -> bool {
        let (text, end) = self.until_end();
        let mut length = 0;
        for next in text.chars() {
            scan.follow(next);
            length += next.len_utf8();
            if scan.depth == 0 {
                break;
            }
        }
        if length > 0 {
            parts.push(Part::Arguments(text[..length].to_string()));
            self.at = ChannelState::Arguments(scan);
            if scan.depth == 0 {
                self.at = ChannelState::AfterArguments;
            }
        }
        if let Some(end) = end {
            self.end(end);
        }
        end.is_some()
    }

    /// Looks for the start of a message. Other text is an answer without a header.
    fn between(&mut self) -> bool {
        let rest = self.held[self.searched..].trim_start();
        self.searched = self.held.len() - rest.len();
        let headers = [START, CHANNEL, CONSTRAIN, MESSAGE, "to="];
        let ends = [END, CALL, RETURN];
        if let Some(mark) = ends.into_iter().find(|mark| rest.starts_with(mark)) {
            (self.held, self.searched) = (rest[mark.len()..].to_string(), 0);
            return true;
        }
        if headers.into_iter().any(|mark| rest.starts_with(mark)) {
            (self.held, self.at, self.searched) = (rest.to_string(), ChannelState::Header, 0);
            return true;
        }
        if headers.into_iter().chain(ends).any(|mark| mark.starts_with(rest)) {
            return false;
        }
        (self.at, self.searched) = (ChannelState::Text, 0);
        self.separates = self.has_text;
        true
    }

    /// Reads a header, which ends with [`MESSAGE`].
    fn header(&mut self, parts: &mut Vec<Part>) -> bool {
        let Some((header, body)) = self.held.split_once(MESSAGE) else {
            if self.held.len() <= MAX_HEADER {
                return false;
            }
            self.at = ChannelState::Text;
            self.separates = self.has_text;
            let text = std::mem::take(&mut self.held);
            self.say(&text, parts);
            return false;
        };
        let (header, body) = (header.to_string(), body.to_string());
        let channel = header.rsplit_once(CHANNEL).map(|(_, rest)| word(rest));
        let recipient = header.rsplit_once("to=").map(|(_, rest)| word(rest)).filter(|name| *name != ROLE);
        let function = recipient.map(|name| name.strip_prefix("functions.").unwrap_or(name));
        let own = header.strip_prefix(START).unwrap_or(&header);
        let written = format!("{}{MESSAGE}", own.strip_prefix(ROLE).unwrap_or(own).trim_start());
        self.held = body;
        match (function, channel) {
            (Some(name), _) if self.offered.iter().any(|offered| offered.name == name) => {
                self.at = ChannelState::Call { name: name.to_string(), header: written };
            }
            (None, Some("analysis")) if !self.keeps_thoughts => {
                self.at = ChannelState::Thought;
                self.separates = self.has_thoughts;
            }
            (function, _) => {
                self.at = ChannelState::Text;
                self.separates = self.has_text;
                // A call to a function that was not offered stays text.
                self.keeps_end = channel == Some("analysis");
                if function.is_some() || self.keeps_end {
                    self.say(&written, parts);
                }
            }
        }
        true
    }

    /// Takes the text before the next end marker, and the marker if it was found. Keeps the end of the text that may
    /// belong to a marker.
    fn until_end(&mut self) -> (String, Option<&'static str>) {
        let end = first_end(&self.held);
        let body = end.map_or_else(|| self.held.len() - self.overlap(), |(at, _)| at);
        let rest = self.held.split_off(body);
        let text = std::mem::replace(&mut self.held, rest);
        if let Some((_, mark)) = end {
            self.held.drain(..mark.len());
        }
        (text, end.map(|(_, mark)| mark))
    }

    /// Returns the number of bytes at the end of `held` that may belong to an end marker.
    fn overlap(&self) -> usize {
        ENDS.iter().map(|mark| overlap(&self.held, mark)).max().unwrap_or_default()
    }

    /// Enters the state after the marker `end`.
    fn end(&mut self, end: &'static str) {
        self.at = match end {
            START | CHANNEL => {
                self.held.insert_str(0, end);
                ChannelState::Header
            }
            _ => ChannelState::Between,
        };
    }

    fn think(&mut self, text: &str, parts: &mut Vec<Part>) {
        if !text.is_empty() {
            self.has_thoughts = true;
            parts.push(Part::Thought(self.separated(text)));
        }
    }

    fn say(&mut self, text: &str, parts: &mut Vec<Part>) {
        if !text.is_empty() {
            self.has_text = true;
            parts.push(Part::Text(self.separated(text)));
        }
    }

    fn separated(&mut self, text: &str) -> String {
        let separator = if std::mem::take(&mut self.separates) { SEPARATOR } else { "" };
        format!("{separator}{text}")
    }

    /// Emits `text`, the start of a message that addresses a function but contains no arguments.
    fn not_a_call(&mut self, text: &str, parts: &mut Vec<Part>) {
        self.separates = self.has_text;
        self.say(text, parts);
    }
}

/// Returns a call to `name` without arguments.
fn empty_call(name: String) -> [Part; 2] {
    [Part::Call(name), Part::Arguments("{}".to_string())]
}

/// True if the marker `end` ends a message instead of starting the next one.
fn ends_message(end: &str) -> bool {
    end != START && end != CHANNEL
}

/// Returns the position of the first end marker in `text`, and the marker.
fn first_end(text: &str) -> Option<(usize, &'static str)> {
    // All markers begin with the same two characters, which are rare in other text.
    text.match_indices("<|")
        .find_map(|(at, _)| ENDS.into_iter().find(|mark| text[at..].starts_with(mark)).map(|mark| (at, mark)))
}

/// Returns the first word of a part of a header.
fn word(text: &str) -> &str {
    let text = text.trim_start();
    &text[..text.find(|next: char| next.is_whitespace() || next == '<').unwrap_or(text.len())]
}

/// Returns `messages` with thoughts in the key `thinking`, which the templates of gpt-oss read. These templates reject
/// a message with both text and thoughts before its tool calls, so the text of such a message is removed.
pub(super) fn with_thinking(messages: &[Message]) -> Option<Vec<Message>> {
    const THEIRS: &str = "thinking";
    let lacks = |message: &Message| message.more.contains_key(THOUGHTS) && !message.more.contains_key(THEIRS);
    if !messages.iter().any(lacks) {
        return None;
    }
    let mut messages = messages.to_vec();
    for message in messages.iter_mut().filter(|message| lacks(message)) {
        let thoughts: Option<Json> = message.more.get(THOUGHTS).cloned();
        message.more.extend(thoughts.map(|thoughts| (THEIRS.to_string(), thoughts)));
        if message.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty()) {
            message.content = None;
        }
    }
    Some(messages)
}

#[cfg(test)]
mod tests;
