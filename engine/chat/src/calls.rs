//! Calls of tools in what a model writes, in the formats that the templates of well-known families ask for.
//!
//! What is no call stays text: one that is not complete or no JSON, and one of a function that was not offered.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::markup::{No, glm, qwen_coder};
use super::part::{Offered, Part};

/// How a family of models writes its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFormat {
    /// Hermes, Qwen and many others: `<tool_call>{"name": …, "arguments": …}</tool_call>`, as often as wanted.
    Hermes,
    /// Qwen3-Coder: `<tool_call><function=name><parameter=name>value</parameter></function></tool_call>`.
    QwenCoder,
    /// GLM 4.5 and later: `<tool_call>name<arg_key>name</arg_key><arg_value>value</arg_value></tool_call>`.
    Glm,
    /// Llama 3.1 and later: an answer that is `{"name": …, "parameters": …}` from its beginning, or from `<|python_tag|>`
    /// on; several are divided by `;` or white space.
    Llama,
    /// Mistral: `[TOOL_CALLS][{"name": …, "arguments": …}]`, or `[TOOL_CALLS]name[ARGS]{…}` for each.
    Mistral,
}

/// What a call of Hermes, Qwen3-Coder and GLM is between.
const BLOCK: (&str, &str) = ("<tool_call>", "</tool_call>");
const PYTHON: &str = "<|python_tag|>";
const MISTRAL: &str = "[TOOL_CALLS]";

/// Ends of a call that are looked at while it is not complete: one may be within a text of it.
const MOST_ENDS: u32 = 8;

impl CallFormat {
    /// The one that the template `source` teaches, by what it writes for calls of earlier turns. None where it writes
    /// them in a way that is not known here: the calls stay text then.
    pub fn of_template(source: &str) -> Option<Self> {
        let has = |mark: &str| source.contains(mark);
        match () {
            () if has(BLOCK.0) && has("<function=") && has("<parameter=") => Some(CallFormat::QwenCoder),
            () if has(BLOCK.0) && has("<arg_key>") && has("<arg_value>") => Some(CallFormat::Glm),
            // What is written in it may not be in the template's own text. What turns out to be no JSON stays text.
            () if has(BLOCK.0) => Some(CallFormat::Hermes),
            () if has(MISTRAL) => Some(CallFormat::Mistral),
            () if has(PYTHON) => Some(CallFormat::Llama),
            // Llama 3.2, which has no tag.
            () if has("\"parameters\": dictionary of argument name") => Some(CallFormat::Llama),
            () => None,
        }
    }

    /// Texts that begin or divide calls. Some models have tokens for them that say nothing otherwise.
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

    /// The call between the marks of a block; `is_closed` is whether the second one came.
    fn block(self, text: &str, is_closed: bool, offered: &[Offered]) -> Result<Vec<Part>, No> {
        match self {
            CallFormat::QwenCoder => qwen_coder(text, offered),
            CallFormat::Glm => glm(text, is_closed, offered),
            CallFormat::Hermes | CallFormat::Llama | CallFormat::Mistral => hermes(text, offered),
        }
    }
}

/// Finds calls in a text that comes in pieces.
#[derive(Clone, Debug)]
pub struct CallReader {
    format: CallFormat,
    /// The functions that were offered.
    offered: Vec<Offered>,
    at: At,
    /// What was not told yet.
    held: String,
    /// How many bytes of `held` were looked through: in text they are white space, which may belong to a mark; in a call
    /// they have no end of it.
    searched: usize,
    /// White space before the mark of a call: where that is none, it is text.
    before: String,
    ends: u32,
    called: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Nothing but white space came.
    Beginning,
    /// In text.
    Text,
    /// In what may be a call: `held` begins with its mark, if it has one.
    Call,
}

impl CallReader {
    /// Looks for calls of the functions `offered`.
    pub fn new(format: CallFormat, offered: Vec<Offered>) -> Self {
        let (held, before) = (String::new(), String::new());
        CallReader { format, offered, at: At::Beginning, held, searched: 0, before, ends: 0, called: false }
    }

    /// What is certain after `piece`.
    pub fn push(&mut self, piece: &str) -> Vec<Part> {
        self.held.push_str(piece);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// The rest, at the end of the answer.
    pub fn finish(&mut self) -> Vec<Part> {
        let held = std::mem::take(&mut self.held);
        let calls = match (self.at, self.format) {
            (At::Call, CallFormat::Llama) => llama(&held, &self.offered),
            (At::Call, CallFormat::Mistral) => mistral(&held, &self.offered),
            (At::Call, format) => format.block(&held[BLOCK.0.len()..], false, &self.offered).ok(),
            _ => None,
        };
        let text = std::mem::take(&mut self.before) + &held;
        match calls {
            Some(calls) => calls,
            // White space after a call is between it and nothing.
            None if text.is_empty() || self.called && text.trim().is_empty() => Vec::new(),
            None => vec![Part::Text(text)],
        }
    }

    /// Goes on as far as it can; whether there may be more to do.
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
            At::Call => self.block(parts),
        }
    }

    fn text(&mut self, parts: &mut Vec<Part>) -> bool {
        let mark = self.format.mark();
        // What was looked through is white space, in which no mark begins.
        let new = &self.held[self.searched..];
        let found = new.find(mark);
        let body = found.unwrap_or_else(|| new.len() - overlap(new, mark));
        // The white space before a mark belongs to it.
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
        if found.is_some() {
            self.before = self.held.drain(..self.searched).collect();
            (self.at, self.searched, self.ends) = (At::Call, mark.len(), 0);
        }
        found.is_some()
    }

    /// A call in a block ends before the answer does.
    fn block(&mut self, parts: &mut Vec<Part>) -> bool {
        let (begin, end) = BLOCK;
        let Some(at) = self.held[self.searched..].find(end).map(|at| at + self.searched) else {
            let mut from = self.held.len().saturating_sub(end.len() - 1).max(self.searched);
            while !self.held.is_char_boundary(from) {
                from -= 1;
            }
            self.searched = from;
            return false;
        };
        let after = at + end.len();
        let calls = self.format.block(&self.held[begin.len()..at], true, &self.offered);
        if calls == Err(No::Incomplete) && self.ends < MOST_ENDS {
            (self.searched, self.ends) = (after, self.ends + 1);
            return true;
        }
        let rest = self.held.split_off(after);
        let whole = std::mem::replace(&mut self.held, rest);
        let before = std::mem::take(&mut self.before);
        match calls {
            Ok(calls) => {
                self.called = true;
                parts.extend(calls);
            }
            Err(_) => parts.push(Part::Text(before + &whole)),
        }
        (self.at, self.searched) = (At::Text, 0);
        true
    }
}

/// Bytes at the end of `text` that `mark`, which is ASCII, begins with; less than all of it.
fn overlap(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len() - 1);
    let ends = |length: &usize| text.as_bytes().ends_with(&mark.as_bytes()[..*length]);
    (1..=longest).rev().find(ends).unwrap_or(0)
}

/// A call as JSON; its arguments stay as they were written, numbers of many digits too.
#[derive(Deserialize)]
struct Written<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow)]
    parameters: Option<&'a RawValue>,
}

/// The call in `text`.
fn hermes(text: &str, offered: &[Offered]) -> Result<Vec<Part>, No> {
    let text = text.trim();
    // A list would do for the fields of an object.
    if !text.is_empty() && !text.starts_with('{') {
        return Err(No::Other);
    }
    let written = serde_json::from_str::<Written<'_>>(text);
    let written = written.map_err(|error| if error.is_eof() { No::Incomplete } else { No::Other })?;
    written.call(offered).map(Vec::from).ok_or(No::Other)
}

/// The calls that all of `text` is.
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

/// The same in Mistral's older and newer formats.
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

/// The JSON value that `text` begins with, and what follows.
fn first<'a, T: Deserialize<'a>>(text: &'a str) -> Option<(T, &'a str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<T>();
    let value = values.next()?.ok()?;
    Some((value, &text[values.byte_offset()..]))
}

fn is_object(value: &RawValue) -> bool {
    value.get().starts_with('{')
}

impl Written<'_> {
    /// The call: its arguments are an object, or a text that is one.
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
