//! Detection of tool calls in a model's output, in the formats that the chat templates of well-known model families
//! use.
//!
//! Incomplete calls, invalid JSON, and calls to functions that were not offered remain text.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::markup::{No, glm, qwen_coder};
use super::part::{Offered, Part};

/// Notation in which a family of models writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFormat {
    /// Hermes, Qwen and many others: `<tool_call>{"name": …, "arguments": …}</tool_call>`, any number of times.
    Hermes,
    /// Qwen3-Coder: `<tool_call><function=name><parameter=name>value</parameter></function></tool_call>`.
    QwenCoder,
    /// GLM 4.5 and later: `<tool_call>name<arg_key>name</arg_key><arg_value>value</arg_value></tool_call>`.
    Glm,
    /// Llama 3.1 and later: the answer is `{"name": …, "parameters": …}`, either from its start or after
    /// `<|python_tag|>`. Several calls are separated by `;` or white space.
    Llama,
    /// Mistral: `[TOOL_CALLS][{"name": …, "arguments": …}]`, or `[TOOL_CALLS]name[ARGS]{…}` for each call.
    Mistral,
}

/// Opening and closing marks of a call in the formats of Hermes, Qwen3-Coder and GLM.
const BLOCK: (&str, &str) = ("<tool_call>", "</tool_call>");
/// Opening and closing marks of a function in the format of Qwen3-Coder, which sometimes leaves out the opening mark of
/// the block.
const FUNCTION: (&str, &str) = ("<function=", "</function>");
const PYTHON: &str = "<|python_tag|>";
const MISTRAL: &str = "[TOOL_CALLS]";

/// Number of closing marks that are tried while a call is incomplete. A closing mark may be part of a string in the
/// call.
const MOST_ENDS: u32 = 8;

impl CallFormat {
    /// Returns the format that the template `source` uses for calls in earlier turns. `None` if the format is unknown;
    /// calls then stay text.
    pub fn of_template(source: &str) -> Option<Self> {
        let has = |mark: &str| source.contains(mark);
        match () {
            () if has(BLOCK.0) && has("<function=") && has("<parameter=") => Some(CallFormat::QwenCoder),
            () if has(BLOCK.0) && has("<arg_key>") && has("<arg_value>") => Some(CallFormat::Glm),
            // The template need not contain the text between these marks, so the marks alone select Hermes. Content
            // that is not JSON stays text.
            () if has(BLOCK.0) => Some(CallFormat::Hermes),
            () if has(MISTRAL) => Some(CallFormat::Mistral),
            () if has(PYTHON) => Some(CallFormat::Llama),
            // Llama 3.2's template has no tag.
            () if has("\"parameters\": dictionary of argument name") => Some(CallFormat::Llama),
            () => None,
        }
    }

    /// Texts that begin or separate calls. In some models they are special tokens, which are not rendered as text
    /// unless requested.
    pub fn markers(self) -> &'static [&'static str] {
        match self {
            CallFormat::Hermes | CallFormat::QwenCoder => &[BLOCK.0, BLOCK.1],
            CallFormat::Glm => &[BLOCK.0, BLOCK.1, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
            CallFormat::Llama => &[PYTHON],
            CallFormat::Mistral => &[MISTRAL, "[CALL_ID]", "[ARGS]"],
        }
    }

    fn mark(self) -> &'static str {
        self.markers()[0]
    }

    /// Parses the call between the marks of a block. `is_closed` is true if the closing mark was found.
    fn block(self, text: &str, is_closed: bool, offered: &[Offered]) -> Result<Vec<Part>, No> {
        match self {
            CallFormat::QwenCoder => qwen_coder(text, offered),
            CallFormat::Glm => glm(text, is_closed, offered),
            CallFormat::Hermes | CallFormat::Llama | CallFormat::Mistral => hermes(text, offered),
        }
    }
}

/// Incremental parser that finds tool calls in streamed text.
#[derive(Clone, Debug)]
pub struct CallReader {
    format: CallFormat,
    /// Functions that the client offered.
    offered: Vec<Offered>,
    at: At,
    /// Text that was received but not yet emitted.
    held: String,
    /// Number of bytes of `held` that were already searched. Outside a call, these bytes are white space that may
    /// belong to a mark. Inside a call, they contain no closing mark.
    searched: usize,
    /// White space before the opening mark. Emitted as text if the block turns out not to be a call.
    before: String,
    ends: u32,
    called: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Only white space has been received.
    Beginning,
    /// Inside text.
    Text,
    /// Inside a possible call. `held` begins with the opening mark, if the format has one.
    Call,
    /// Inside a possible call without the block's opening mark. `held` begins with [`FUNCTION`]'s opening mark.
    Bare,
    /// After a call without the block's opening mark. The block's closing mark may follow.
    AfterBare,
}

impl CallReader {
    /// Creates a reader that looks for calls to the functions in `offered`.
    pub fn new(format: CallFormat, offered: Vec<Offered>) -> Self {
        let (held, before) = (String::new(), String::new());
        CallReader { format, offered, at: At::Beginning, held, searched: 0, before, ends: 0, called: false }
    }

    /// Adds `piece` to the input, and returns the parts that are now certain.
    pub fn push(&mut self, piece: &str) -> Vec<Part> {
        self.held.push_str(piece);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// Ends the input, and returns the remaining parts.
    pub fn finish(&mut self) -> Vec<Part> {
        let held = std::mem::take(&mut self.held);
        let calls = match (self.at, self.format) {
            (At::Call, CallFormat::Llama) => llama(&held, &self.offered),
            (At::Call, CallFormat::Mistral) => mistral(&held, &self.offered),
            (At::Call, format) => format.block(&held[BLOCK.0.len()..], false, &self.offered).ok(),
            // An unfinished closing mark.
            (At::AfterBare, _) if BLOCK.1.starts_with(held.trim_start()) => Some(Vec::new()),
            _ => None,
        };
        let text = std::mem::take(&mut self.before) + &held;
        match calls {
            Some(calls) => calls,
            // White space after the last call is dropped.
            None if text.is_empty() || self.called && text.trim().is_empty() => Vec::new(),
            None => vec![Part::Text(text)],
        }
    }

    /// Advances by one step. Returns true if another step may be possible.
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        match self.at {
            At::Beginning => {
                let new = &self.held[self.searched..];
                let begun = new.trim_start();
                if begun.is_empty() {
                    self.searched = self.held.len();
                    return false;
                }
                let bare = self.format == CallFormat::Llama && begun.starts_with('{');
                self.at = if bare { At::Call } else { At::Text };
                self.searched += new.len() - begun.len();
                true
            }
            At::Text => self.text(parts),
            At::Call if matches!(self.format, CallFormat::Llama | CallFormat::Mistral) => false,
            At::Call | At::Bare => self.block(parts),
            At::AfterBare => self.after_bare(),
        }
    }

    fn text(&mut self, parts: &mut Vec<Part>) -> bool {
        let marks: &[(&str, At)] = match self.format {
            CallFormat::QwenCoder => &[(BLOCK.0, At::Call), (FUNCTION.0, At::Bare)],
            format => &[(format.mark(), At::Call)],
        };
        // The bytes that were already searched are white space, so no mark begins in them.
        let new = &self.held[self.searched..];
        let found = marks.iter().filter_map(|(mark, at)| Some((new.find(mark)?, mark.len(), *at)));
        let found = found.min_by_key(|(begin, ..)| *begin);
        let overlap = marks.iter().map(|(mark, _)| overlap(new, mark)).max().unwrap_or_default();
        let body = found.map_or(new.len() - overlap, |(begin, ..)| begin);
        // White space before a mark belongs to the mark.
        let certain = match new[..body].trim_end().len() {
            0 => 0,
            solid => self.searched + solid,
        };
        let body = self.searched + body;
        if certain > 0 {
            let rest = self.held.split_off(certain);
            parts.push(Part::Text(std::mem::replace(&mut self.held, rest)));
        }
        self.searched = body - certain;
        if let Some((_, len, at)) = found {
            self.before = self.held.drain(..self.searched).collect();
            (self.at, self.searched, self.ends) = (at, len, 0);
        }
        found.is_some()
    }

    /// Drops the closing mark of a block that had no opening mark.
    fn after_bare(&mut self) -> bool {
        let rest = self.held.trim_start();
        if let Some(after) = rest.strip_prefix(BLOCK.1) {
            self.held = after.to_string();
        } else if BLOCK.1.starts_with(rest) {
            return false;
        }
        self.at = At::Text;
        true
    }

    /// Parses a complete block, or a function without the block's opening mark, without waiting for the end of the answer.
    fn block(&mut self, parts: &mut Vec<Part>) -> bool {
        // A function's marks are a part of the call, and a block's marks are not.
        let is_bare = self.at == At::Bare;
        let (begin, end) = if is_bare { FUNCTION } else { BLOCK };
        let Some(at) = self.held[self.searched..].find(end).map(|at| at + self.searched) else {
            let mut from = self.held.len().saturating_sub(end.len() - 1).max(self.searched);
            while !self.held.is_char_boundary(from) {
                from -= 1;
            }
            self.searched = from;
            return false;
        };
        let after = at + end.len();
        let inside = if is_bare { 0..after } else { begin.len()..at };
        let calls = self.format.block(&self.held[inside], true, &self.offered);
        if calls == Err(No::Incomplete) && self.ends < MOST_ENDS {
            (self.searched, self.ends) = (after, self.ends + 1);
            return true;
        }
        let rest = self.held.split_off(after);
        let whole = std::mem::replace(&mut self.held, rest);
        let before = std::mem::take(&mut self.before);
        (self.at, self.searched) = (At::Text, 0);
        match calls {
            Ok(calls) => {
                self.called = true;
                parts.extend(calls);
                if is_bare {
                    self.at = At::AfterBare;
                }
            }
            Err(_) => parts.push(Part::Text(before + &whole)),
        }
        true
    }
}

/// Returns the length of the longest proper prefix of the ASCII text `mark` that `text` ends with, in bytes.
pub(super) fn overlap(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len() - 1);
    let ends = |length: &usize| text.as_bytes().ends_with(&mark.as_bytes()[..*length]);
    (1..=longest).rev().find(ends).unwrap_or(0)
}

/// Tool call as JSON. The arguments keep their notation, so numbers with many digits lose no precision.
#[derive(Deserialize)]
struct Written<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow)]
    parameters: Option<&'a RawValue>,
}

/// Parses `text` as one call in the Hermes format.
fn hermes(text: &str, offered: &[Offered]) -> Result<Vec<Part>, No> {
    let text = text.trim();
    // serde would also accept a JSON array for the fields of a struct.
    if !text.is_empty() && !text.starts_with('{') {
        return Err(No::Other);
    }
    let written = serde_json::from_str::<Written<'_>>(text);
    let written = written.map_err(|error| if error.is_eof() { No::Incomplete } else { No::Other })?;
    written.call(offered).map(Vec::from).ok_or(No::Other)
}

/// Parses `text` as a sequence of calls in Llama's format. `None` if any part of it is not a call.
fn llama(text: &str, offered: &[Offered]) -> Option<Vec<Part>> {
    let between = |text: &str| -> usize {
        let rest = text.trim_start().trim_start_matches(PYTHON);
        text.len() - rest.trim_start_matches([';', ' ', '\n', '\r', '\t']).len()
    };
    let mut rest = &text[between(text)..];
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let (written, after) = first::<Written<'_>>(rest)?;
        parts.extend(written.call(offered)?);
        rest = &after[between(after)..];
    }
    (!parts.is_empty()).then_some(parts)
}

/// Parses `text` as a sequence of calls in Mistral's older or newer format. `None` if any part of it is not a call.
fn mistral(text: &str, offered: &[Offered]) -> Option<Vec<Part>> {
    let mut rest = text.trim_start();
    let mut parts = Vec::new();
    while !rest.is_empty() {
        rest = rest.trim_start_matches(MISTRAL).trim_start();
        if rest.starts_with('[') {
            let (all, after) = first::<Vec<Written<'_>>>(rest)?;
            for written in all {
                parts.extend(written.call(offered)?);
            }
            rest = after.trim_start();
            continue;
        }
        let end = rest.find(['[', '{'])?;
        let name = rest[..end].trim();
        rest = &rest[end..];
        if let Some(after) = rest.strip_prefix("[CALL_ID]") {
            rest = &after[after.find("[ARGS]")?..];
        }
        let (arguments, after) = first::<&RawValue>(rest.strip_prefix("[ARGS]").unwrap_or(rest))?;
        let is_call = is_object(arguments) && offered.iter().any(|known| known.name == name);
        let arguments = Part::Arguments(arguments.get().to_string());
        parts.extend(is_call.then(|| [Part::Call(name.to_string()), arguments])?);
        rest = after.trim_start();
    }
    (!parts.is_empty()).then_some(parts)
}

/// Returns the JSON value at the start of `text`, and the text after it.
fn first<'a, T: Deserialize<'a>>(text: &'a str) -> Option<(T, &'a str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<T>();
    let value = values.next()?.ok()?;
    Some((value, &text[values.byte_offset()..]))
}

fn is_object(value: &RawValue) -> bool {
    value.get().starts_with('{')
}

impl Written<'_> {
    /// Converts to the parts of a call. The arguments must be an object, or a string that contains one.
    fn call(&self, offered: &[Offered]) -> Option<[Part; 2]> {
        if !offered.iter().any(|known| known.name == self.name) {
            return None;
        }
        let arguments = match self.arguments.or(self.parameters) {
            None => "{}".to_string(),
            Some(arguments) if is_object(arguments) => arguments.get().to_string(),
            Some(other) => {
                let text: String = serde_json::from_str(other.get()).ok()?;
                serde_json::from_str::<&RawValue>(&text).ok().filter(|arguments| is_object(arguments))?;
                text
            }
        };
        Some([Part::Call(self.name.to_string()), Part::Arguments(arguments)])
    }
}

#[cfg(test)]
mod tests;
