//! Converts literals to JSON: Python literals, and literals with unquoted keys and markers around strings.

use serde_json::Value;

use super::arguments::Arguments;
use super::partial::{No, overlap};
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

/// Parses the object `text`, whose strings are between `quote`, or quoted as in Python. `convert` converts the value of
/// each key. `is_over` is true if no more text follows, so that the object may be cut off. Returns the arguments and
/// the length of the object; `None` if `text` is not an object.
pub(super) fn object(
    text: &str,
    is_over: bool,
    quote: Option<&str>,
    convert: impl Fn(&str, String) -> String,
) -> Option<(Arguments, usize)> {
    let mut object = Literals { rest: text.trim_start(), quote };
    object.take('{').then_some(())?;
    let mut arguments = Arguments::default();
    loop {
        object.skip();
        if object.take('}') {
            return Some((arguments, text.len() - object.rest.len()));
        }
        let pair = object.key().filter(|_| {
            object.skip();
            object.take(':')
        });
        let key: Option<String> = pair.and_then(|json| serde_json::from_str(&json).ok());
        let Some(key) = key.filter(|_| !object.rest.is_empty()) else {
            arguments.cut_off();
            return is_over.then_some((arguments, text.len()));
        };
        if is_over && let Some(value) = object.cut_off() {
            arguments.push_cut_off(&key, &value);
            return Some((arguments, text.len()));
        }
        let value = object.value(1)?;
        arguments.push(&key, &convert(&key, value));
        object.skip();
        if !object.take(',') && !object.rest.starts_with('}') {
            arguments.cut_off();
            return (is_over && object.rest.is_empty()).then_some((arguments, text.len()));
        }
    }
}

/// Parses a list of calls, `[name(key=value, …), …]`. Values that are not literals are strings up to the next argument.
/// `is_over` is true if no more text follows, so that closing brackets may be missing. If a string or a list was cut
/// off, the arguments also count as cut off. Returns the calls and the length of the list.
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
        let mut arguments = Arguments::default();
        loop {
            list.skip();
            if list.rest.is_empty() && is_over || list.take(')') {
                break;
            }
            let Some((key, value)) = list.rest.split_once('=') else {
                // Without a complete first argument, the text may not be a call.
                if !is_over || arguments.is_empty() {
                    return Err(No::Incomplete);
                }
                arguments.cut_off();
                list.rest = "";
                break;
            };
            let key = key.trim();
            if key.is_empty() || !key.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c)) {
                return Err(No::Other);
            }
            list.rest = value;
            if is_over && let Some(value) = list.cut_off() {
                arguments.push_cut_off(key, &value);
                list.rest = "";
                break;
            }
            let value = list.argument(is_over).ok_or(No::Incomplete)?;
            arguments.push(key, &convert(function, key, value));
            list.skip();
            list.take(',');
        }
        parts.extend(arguments.call(function));
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

    /// Parses the value of an argument: a literal, or bare text up to the next argument or the end of the call.
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
            // More input may complete the literal. If it were read as bare text, it would end at a bracket inside a
            // string.
            return None;
        }
        let end = begin.find([',', ')']).or(is_over.then_some(begin.len()))?;
        self.rest = &begin[end..];
        Some(Value::from(begin[..end].trim()).to_string())
    }

    /// Returns the start of a string, a list or an object without an end, as JSON; `None` if the value has an end.
    fn cut_off(&self) -> Option<String> {
        let begin = self.rest.trim_start();
        if let Some(text) = self.quote.and_then(|quote| begin.strip_prefix(quote)) {
            let quote = self.quote.unwrap_or_default();
            let text = &text[..text.len() - overlap(text, quote)];
            return (!text.contains(quote)).then(|| Value::from(text).to_string());
        }
        // An apostrophe may begin a text without quotes, which ends with its call.
        if begin.starts_with('\'') && begin.contains(")]") {
            return None;
        }
        let mut value = Literals { rest: begin, quote: self.quote };
        if !begin.starts_with(['"', '\'', '[', '{', '('])
            || value.value(0).is_some()
            || !value.rest.is_empty()
        {
            return None;
        }
        match begin.strip_prefix(['"', '\'']) {
            Some(text) => Some(Value::from(unescaped(text)).to_string()),
            None => Some(String::new()),
        }
    }

    fn value(&mut self, depth: u32) -> Option<String> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.skip();
        if let Some(quote) = self.quote
            && let Some(after) = self.rest.strip_prefix(quote)
        {
            let Some((text, after)) = after.split_once(quote) else {
                self.rest = "";
                return None;
            };
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
        let quote = self.rest.chars().next()?;
        let begin = &self.rest[quote.len_utf8()..];
        let mut escaped = false;
        let end = begin.find(|next| {
            let is_end = next == quote && !escaped;
            escaped = next == '\\' && !escaped;
            is_end
        });
        self.rest = end.map_or("", |end| &begin[end + quote.len_utf8()..]);
        Some(Value::from(unescaped(&begin[..end?])).to_string())
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

/// Returns `text` with its escapes replaced by the characters that they represent. Invalid escapes remain as they are.
fn unescaped(text: &str) -> String {
    let mut read = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        read.push_str(before);
        let escape = after.chars().next();
        rest = &after[escape.map_or(0, char::len_utf8)..];
        match escape {
            Some('n') => read.push('\n'),
            Some('t') => read.push('\t'),
            Some('r') => read.push('\r'),
            Some(same @ ('\\' | '\'' | '"' | '/')) => read.push(same),
            Some(kind @ ('x' | 'u')) => match code_point(rest, if kind == 'x' { 2 } else { 4 }) {
                Some((character, after)) => {
                    read.push(character);
                    rest = after;
                }
                None => read.extend(['\\', kind]),
            },
            other => read.extend(std::iter::once('\\').chain(other)),
        }
    }
    read + rest
}

/// Splits off the character whose code point is the hexadecimal number of `digits` digits at the start of `text`.
fn code_point(text: &str, digits: usize) -> Option<(char, &str)> {
    let (code, rest) = text.split_at_checked(digits)?;
    let is_number = code.bytes().all(|digit| digit.is_ascii_hexdigit());
    let code = is_number.then(|| u32::from_str_radix(code, 16).ok())??;
    Some((char::from_u32(code).unwrap_or('\u{fffd}'), rest))
}
