//! Calls of tools in what a model writes, in the formats that the templates of well-known families ask for.
//!
//! What is no call stays text: one that is not complete or no JSON, and one of a function that was not offered.

use serde_json::Value;

/// How a family of models writes its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFormat {
    /// Hermes, Qwen and many others: `<tool_call>{"name": …, "arguments": …}</tool_call>`, as often as wanted.
    Hermes,
    /// Llama 3.1 and later: an answer that is `{"name": …, "parameters": …}` from its beginning, or from `<|python_tag|>`
    /// on; several are divided by `;` or white space.
    Llama,
    /// Mistral: `[TOOL_CALLS][{"name": …, "arguments": …}]`, or `[TOOL_CALLS]name[ARGS]{…}` for each.
    Mistral,
}

const HERMES: (&str, &str) = ("<tool_call>", "</tool_call>");
const PYTHON: &str = "<|python_tag|>";
const MISTRAL: &str = "[TOOL_CALLS]";

/// Ends of a call that are looked at while its JSON is not complete: one may be within a text of it.
const MOST_ENDS: u32 = 8;

impl CallFormat {
    /// The one that the template `source` teaches, by what it writes for calls of earlier turns.
    pub fn of_template(source: &str) -> Option<Self> {
        let marks = [
            (HERMES.0, CallFormat::Hermes),
            (MISTRAL, CallFormat::Mistral),
            (PYTHON, CallFormat::Llama),
            // Llama 3.2, which has no tag.
            ("\"parameters\": dictionary of argument name", CallFormat::Llama),
        ];
        marks.into_iter().find(|(mark, _)| source.contains(mark)).map(|(_, format)| format)
    }

    /// Texts that begin or divide calls. Some models have tokens for them that say nothing otherwise.
    pub fn markers(self) -> &'static [&'static str] {
        match self {
            CallFormat::Hermes => &[HERMES.0, HERMES.1],
            CallFormat::Llama => &[PYTHON],
            CallFormat::Mistral => &[MISTRAL, "[CALL_ID]", "[ARGS]"],
        }
    }

    fn mark(self) -> &'static str {
        self.markers()[0]
    }
}

/// A part of an answer: what is certain of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text.
    Text(String),
    /// A call begins: of the function of this name.
    Call(String),
    /// More of the arguments of the last call: JSON.
    Arguments(String),
}

/// Finds calls in a text that comes in pieces.
#[derive(Clone, Debug)]
pub struct CallReader {
    format: CallFormat,
    /// The functions that were offered.
    names: Vec<String>,
    at: At,
    /// What was not told yet.
    held: String,
    /// How many bytes of `held` were looked through.
    searched: usize,
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
    /// Looks for calls of the functions `names`.
    pub fn new(format: CallFormat, names: Vec<String>) -> Self {
        CallReader {
            format,
            names,
            at: At::Beginning,
            held: String::new(),
            searched: 0,
            ends: 0,
            called: false,
        }
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
        let mut parts = Vec::new();
        let held = std::mem::take(&mut self.held);
        let calls = match (self.at, self.format) {
            (At::Call, CallFormat::Hermes) => hermes(&held[HERMES.0.len()..], &self.names).ok(),
            (At::Call, CallFormat::Llama) => llama(&held, &self.names),
            (At::Call, CallFormat::Mistral) => mistral(&held, &self.names),
            _ => None,
        };
        match calls {
            Some(calls) => parts.extend(calls),
            // White space after a call is between it and nothing.
            None if !(held.is_empty() || self.called && held.trim().is_empty()) => {
                parts.push(Part::Text(held))
            }
            None => {}
        }
        parts
    }

    /// Goes on as far as it can; whether there may be more to do.
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        match self.at {
            At::Beginning => {
                let begun = self.held.trim_start();
                if begun.is_empty() {
                    return false;
                }
                let bare = self.format == CallFormat::Llama && begun.starts_with('{');
                self.at = if bare { At::Call } else { At::Text };
                true
            }
            At::Text => self.text(parts),
            At::Call if self.format == CallFormat::Hermes => self.hermes(parts),
            // Told at the end.
            At::Call => false,
        }
    }

    fn text(&mut self, parts: &mut Vec<Part>) -> bool {
        let mark = self.format.mark();
        let found = self.held.find(mark);
        // The white space before a mark belongs to it.
        let (certain, is_call) = match found {
            Some(at) => (self.held[..at].trim_end().len(), true),
            None => (self.held[..self.held.len() - overlap(&self.held, mark)].trim_end().len(), false),
        };
        let rest = self.held.split_off(certain);
        let text = std::mem::replace(&mut self.held, rest);
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        if is_call {
            let space = self.held.len() - self.held.trim_start().len();
            self.held.drain(..space);
            (self.at, self.searched, self.ends) = (At::Call, mark.len(), 0);
        }
        is_call
    }

    /// A call of Hermes ends before the answer does.
    fn hermes(&mut self, parts: &mut Vec<Part>) -> bool {
        let (begin, end) = HERMES;
        let Some(at) = self.held[self.searched..].find(end).map(|at| at + self.searched) else {
            let mut from = self.held.len().saturating_sub(end.len() - 1).max(self.searched);
            while !self.held.is_char_boundary(from) {
                from -= 1;
            }
            self.searched = from;
            return false;
        };
        let after = at + end.len();
        let calls = hermes(&self.held[begin.len()..at], &self.names);
        if calls.as_ref().is_err_and(|incomplete| *incomplete) && self.ends < MOST_ENDS {
            (self.searched, self.ends) = (after, self.ends + 1);
            return true;
        }
        let rest = self.held.split_off(after);
        let whole = std::mem::replace(&mut self.held, rest);
        match calls {
            Ok(calls) => {
                self.called = true;
                parts.extend(calls);
            }
            Err(_) => parts.push(Part::Text(whole)),
        }
        self.at = At::Text;
        true
    }
}

/// Bytes at the end of `text` that `mark`, which is ASCII, begins with; less than all of it.
fn overlap(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len() - 1);
    let ends = |length: &usize| text.as_bytes().ends_with(&mark.as_bytes()[..*length]);
    (1..=longest).rev().find(ends).unwrap_or(0)
}

/// The call in `text`; an error says whether its JSON only lacks its end.
fn hermes(text: &str, names: &[String]) -> Result<Vec<Part>, bool> {
    let value = serde_json::from_str(text.trim()).map_err(|error| error.is_eof())?;
    call(&value, names).map(Vec::from).ok_or(false)
}

/// The calls that all of `text` is.
fn llama(text: &str, names: &[String]) -> Option<Vec<Part>> {
    let mut rest = text.trim_start().trim_start_matches(PYTHON);
    let mut parts = Vec::new();
    while !rest.trim_matches([';', ' ', '\n', '\r', '\t']).is_empty() {
        let (value, after) = first(rest.trim_start_matches([';', ' ', '\n', '\r', '\t']))?;
        parts.extend(call(&value, names)?);
        rest = after.trim_start().trim_start_matches(PYTHON);
    }
    (!parts.is_empty()).then_some(parts)
}

/// The same in Mistral's older and newer formats.
fn mistral(text: &str, names: &[String]) -> Option<Vec<Part>> {
    let mut rest = text;
    let mut parts = Vec::new();
    while !rest.trim().is_empty() {
        rest = rest.trim_start().trim_start_matches(MISTRAL).trim_start();
        if rest.starts_with('[') {
            let (value, after) = first(rest)?;
            for value in value.as_array()? {
                parts.extend(call(value, names)?);
            }
            rest = after;
            continue;
        }
        let end = rest.find(['[', '{'])?;
        let name = rest[..end].trim();
        rest = &rest[end..];
        if let Some(after) = rest.strip_prefix("[CALL_ID]") {
            rest = &after[after.find("[ARGS]")?..];
        }
        let (value, after) = first(rest.strip_prefix("[ARGS]").unwrap_or(rest))?;
        let is_call = value.is_object() && names.iter().any(|known| known == name);
        parts.extend(is_call.then(|| [Part::Call(name.to_string()), Part::Arguments(value.to_string())])?);
        rest = after;
    }
    (!parts.is_empty()).then_some(parts)
}

/// The JSON value that `text` begins with, and what follows.
fn first(text: &str) -> Option<(Value, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    Some((value, &text[values.byte_offset()..]))
}

/// A call as an object: its arguments are an object, or a text that is one.
fn call(value: &Value, names: &[String]) -> Option<[Part; 2]> {
    let name = value.get("name")?.as_str()?;
    if !names.iter().any(|known| known == name) {
        return None;
    }
    let arguments = match value.get("arguments").or_else(|| value.get("parameters")) {
        None | Some(Value::Null) => "{}".to_string(),
        Some(arguments @ Value::Object(_)) => arguments.to_string(),
        Some(Value::String(text))
            if serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object()) =>
        {
            text.clone()
        }
        Some(_) => return None,
    };
    Some([Part::Call(name.to_string()), Part::Arguments(arguments)])
}

#[cfg(test)]
#[path = "calls_tests.rs"]
mod tests;
