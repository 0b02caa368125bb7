//! Converts literals to JSON: Python literals, and literals with unquoted keys and markers around strings.

use serde_json::Value;

use super::partial::No;
use crate::part::{Offered, Part};

/// Maximum nesting depth of a literal.
const MAX_DEPTH: u32 = 64;

/// Parser of literals.
struct Literals<'a> {
    rest: &'a str,
    /// Marker around strings. `None` if strings are quoted as in Python.
    quote: Option<&'a str>,
}

/// Returns the literal `text` as JSON; `None` if it is not a literal.
pub(super) fn literal(text: &str) -> Option<String> {
    let mut literals = Literals { rest: text.trim(), quote: None };
    let value = literals.value(0)?;
    literals.rest.trim().is_empty().then_some(value)
}

/// Returns the object `text` as JSON; `None` if it is not an object. Its strings are between `quote`, or quoted as in
/// Python. `convert` converts the value of each key.
pub(super) fn object(
    text: &str,
    quote: Option<&str>,
    convert: impl Fn(&str, String) -> String,
) -> Option<String> {
    let mut object = Literals { rest: text.trim(), quote };
    object.take('{').then_some(())?;
    let pair = |object: &mut Literals<'_>| {
        let (json, value) = object.pair(0)?;
        let key: String = serde_json::from_str(&json).ok()?;
        Some(format!("{json}: {}", convert(&key, value)))
    };
    let members = object.items('}', pair)?;
    object.rest.trim().is_empty().then(|| format!("{{{members}}}"))
}

/// Parses a list of calls, `[name(key=value, …), …]`. Values that are not literals are strings up to the next argument.
/// `is_over` is true if no more text follows, so that closing brackets may be missing. Returns the calls and the length
/// of the list.
pub(super) fn calls(
    text: &str,
    is_over: bool,
    offered: &[Offered],
    convert: impl Fn(&Offered, &str, String) -> String,
) -> Result<(Vec<Part>, usize), No> {
    let mut list = Literals { rest: text, quote: None };
    let mut parts = Vec::new();
    list.expect('[')?;
    loop {
        list.skip();
        let known = |function: &&Offered| {
            let after = list.rest.strip_prefix(&*function.name);
            after.is_some_and(|after| after.trim_start().starts_with('('))
        };
        let Some(function) = offered.iter().find(known) else {
            let begins = |function: &Offered| {
                let name = function.name.as_str();
                name.starts_with(list.rest)
                    || list.rest.strip_prefix(name).is_some_and(|after| after.trim().is_empty())
            };
            return Err(if offered.iter().any(begins) { No::Incomplete } else { No::Other });
        };
        list.rest = list.rest[function.name.len()..].trim_start();
        list.expect('(')?;
        let mut arguments = String::new();
        loop {
            list.skip();
            if list.rest.is_empty() && is_over || list.take(')') {
                break;
            }
            let (key, value) = list.rest.split_once('=').ok_or(No::Incomplete)?;
            let key = key.trim();
            if key.is_empty() || !key.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c)) {
                return Err(No::Other);
            }
            list.rest = value;
            let value = list.argument(is_over).ok_or(No::Incomplete)?;
            arguments.push_str(if arguments.is_empty() { "" } else { ", " });
            arguments.push_str(&format!("{}: {}", Value::from(key), convert(function, key, value)));
            list.skip();
            list.take(',');
        }
        parts.extend([Part::Call(function.name.clone()), Part::Arguments(format!("{{{arguments}}}"))]);
        list.skip();
        let next = list.take(',');
        list.skip();
        if list.take(']') || list.rest.is_empty() && is_over {
            return Ok((parts, text.len() - list.rest.len()));
        }
        if !next {
            return Err(if list.rest.is_empty() { No::Incomplete } else { No::Other });
        }
    }
}

impl Literals<'_> {
    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, character: char) -> bool {
        let after = self.rest.strip_prefix(character);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn expect(&mut self, character: char) -> Result<(), No> {
        match self.take(character) {
            true => Ok(()),
            false => Err(if self.rest.is_empty() { No::Incomplete } else { No::Other }),
        }
    }

    /// Parses the value of an argument: a literal, or a bare text up to the next argument or the end of the call.
    fn argument(&mut self, is_over: bool) -> Option<String> {
        let begin = self.rest;
        if let Some(value) = self.value(0) {
            let after = self.rest.trim_start();
            let is_key = |text: &str| {
                let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
                end.is_some_and(|end| end > 0 && text[end..].starts_with('='))
            };
            if after.is_empty() || after.starts_with([',', ')']) || is_key(after) {
                return Some(value);
            }
        } else if !is_over && self.rest.trim_start().is_empty() {
            // More input may complete the literal. Read as a bare text, it would end at a bracket inside a string.
            return None;
        }
        let end = begin.find([',', ')']).or(is_over.then_some(begin.len()))?;
        self.rest = &begin[end..];
        Some(Value::from(begin[..end].trim()).to_string())
    }

    fn value(&mut self, depth: u32) -> Option<String> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.skip();
        if let Some(quote) = self.quote
            && let Some(after) = self.rest.strip_prefix(quote)
        {
            let (text, after) = after.split_once(quote)?;
            self.rest = after;
            return Some(Value::from(text).to_string());
        }
        match self.rest.chars().next()? {
            open @ ('[' | '(') => {
                self.take(open);
                let close = if open == '[' { ']' } else { ')' };
                Some(format!("[{}]", self.items(close, |list| list.value(depth + 1))?))
            }
            '{' => {
                self.take('{');
                let pair =
                    |object: &mut Self| object.pair(depth).map(|(key, value)| format!("{key}: {value}"));
                Some(format!("{{{}}}", self.items('}', pair)?))
            }
            '"' | '\'' => self.text(),
            _ => self.word(),
        }
    }

    /// Parses a key and its value, both as JSON.
    fn pair(&mut self, depth: u32) -> Option<(String, String)> {
        let key = self.key()?;
        self.skip();
        self.take(':').then_some(())?;
        Some((key, self.value(depth + 1)?))
    }

    /// Parses items that are separated by commas, up to `close`.
    fn items(&mut self, close: char, mut item: impl FnMut(&mut Self) -> Option<String>) -> Option<String> {
        let mut items = String::new();
        loop {
            self.skip();
            if self.take(close) {
                return Some(items);
            }
            items.push_str(if items.is_empty() { "" } else { ", " });
            items.push_str(&item(self)?);
            self.skip();
            if !self.take(',') && !self.rest.starts_with(close) {
                return None;
            }
        }
    }

    fn key(&mut self) -> Option<String> {
        self.skip();
        let is_quoted = self.quote.is_some_and(|quote| self.rest.starts_with(quote));
        if is_quoted || self.rest.starts_with(['"', '\'']) {
            return self.value(MAX_DEPTH);
        }
        // Only a format with a marker around strings has unquoted keys.
        self.quote?;
        let (key, _) = self.rest.split_once(':')?;
        self.rest = &self.rest[key.len()..];
        Some(Value::from(key.trim()).to_string())
    }

    /// Parses a string in quotes. If its end is missing, no text remains.
    fn text(&mut self) -> Option<String> {
        let mut characters = self.rest.char_indices();
        let (_, quote) = characters.next()?;
        let mut text = String::new();
        while let Some((at, character)) = characters.next() {
            match character {
                '\\' => match characters.next()?.1 {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    digits @ ('x' | 'u') => {
                        let length = if digits == 'x' { 2 } else { 4 };
                        let code: String = characters.by_ref().take(length).map(|(_, digit)| digit).collect();
                        text.push(char::from_u32(u32::from_str_radix(&code, 16).ok()?).unwrap_or('\u{fffd}'));
                    }
                    other @ ('\\' | '\'' | '"' | '/') => text.push(other),
                    other => text.extend(['\\', other]),
                },
                end if end == quote => {
                    self.rest = &self.rest[at + 1..];
                    return Some(Value::from(text).to_string());
                }
                other => text.push(other),
            }
        }
        self.rest = "";
        None
    }

    /// Parses a number or a constant.
    fn word(&mut self) -> Option<String> {
        let end = self.rest.find(|c: char| !c.is_alphanumeric() && !"+-._".contains(c));
        let word = &self.rest[..end.unwrap_or(self.rest.len())];
        let json = match word {
            "True" | "true" => "true",
            "False" | "false" => "false",
            "None" | "null" => "null",
            number if serde_json::from_str::<serde_json::Number>(number).is_ok() => number,
            _ => return None,
        };
        self.rest = &self.rest[word.len()..];
        Some(json.to_string())
    }
}
