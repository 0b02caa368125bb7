//! JSON in the notation of Python's `json.dumps`, which transformers uses for `tojson`: no HTML escapes, a space after
//! each comma and colon, and non-ASCII characters unescaped.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Options of `json.dumps`.
struct Style {
    ensure_ascii: bool,
    indent: Option<String>,
    comma: String,
    colon: String,
    sort_keys: bool,
}

/// Implements the filter `tojson`.
pub(super) fn tojson(value: &Value, ensure_ascii: Option<bool>, options: Kwargs) -> Result<String, Error> {
    let indent = match options.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => match (indent.as_str(), indent.as_usize()) {
            (Some(text), _) if text.len() <= MAX_INDENT => Some(text.to_string()),
            (_, Some(width)) if width <= MAX_INDENT => Some(" ".repeat(width)),
            _ => {
                return Err(invalid(format!(
                    "indent must be a number up to {MAX_INDENT} or a string of at most {MAX_INDENT} bytes"
                )));
            }
        },
    };
    let (comma, colon) = match options.get::<Option<Vec<String>>>("separators")? {
        None => (if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()),
        Some(separators) => {
            let mut separators = separators.into_iter();
            match (separators.next(), separators.next(), separators.next()) {
                (Some(comma), Some(colon), None) => (comma, colon),
                _ => return Err(invalid("separators must be a list of two strings".to_string())),
            }
        }
    };
    let style = Style {
        ensure_ascii: match ensure_ascii {
            Some(ascii) => ascii,
            None => options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        },
        indent,
        comma,
        colon,
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let mut text = String::new();
    style.write(value, 0, &mut text)?;
    Ok(text)
}

/// Implements the filter `fromjson`, which some templates use for arguments that are strings.
pub(super) fn fromjson(text: &str) -> Result<Value, Error> {
    serde_json::from_str(text).map_err(|error| {
        Error::new(ErrorKind::InvalidOperation, format!("fromjson: the text is not valid JSON: {error}"))
    })
}

const MAX_INDENT: usize = 64;

/// Maximum nesting depth of a value. Values cannot be cyclic, because they come from JSON or a template, but the
/// stack is finite.
const MAX_DEPTH: usize = 200;

fn invalid(why: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {why}"))
}

impl Style {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid(format!("the value is nested more than {MAX_DEPTH} levels deep")));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => {
                let _ = write!(out, "{value}");
            }
            ValueKind::Number => out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let mut items = value.try_iter()?.peekable();
                if items.peek().is_none() {
                    out.push_str("[]");
                    return Ok(());
                }
                out.push('[');
                for (index, item) in items.enumerate() {
                    self.between(index, depth + 1, out);
                    self.write(&item, depth + 1, out)?;
                }
                self.end(depth, out);
                out.push(']');
            }
            ValueKind::Map => self.map(value, depth, out)?,
            kind => return Err(invalid(format!("{kind} is not JSON"))),
        }
        Ok(())
    }

    fn map(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if keys.is_empty() {
            out.push_str("{}");
            return Ok(());
        }
        if self.sort_keys {
            keys.sort();
        }
        out.push('{');
        for (index, key) in keys.iter().enumerate() {
            self.between(index, depth + 1, out);
            let mut text = String::new();
            match key.as_str() {
                Some(key) => self.string(key, &mut text),
                // Python allows numbers, booleans and None as keys; in JSON they become strings.
                None => {
                    text.push('"');
                    self.write(key, depth + 1, &mut text)?;
                    text.push('"');
                }
            }
            out.push_str(&text);
            out.push_str(&self.colon);
            self.write(&value.get_item(key)?, depth + 1, out)?;
        }
        self.end(depth, out);
        out.push('}');
        Ok(())
    }

    fn between(&self, index: usize, depth: usize, out: &mut String) {
        if index > 0 {
            out.push_str(&self.comma);
        }
        self.line(depth, out);
    }

    fn end(&self, depth: usize, out: &mut String) {
        self.line(depth, out);
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// Formats a number like Python's `repr`.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_string();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_string();
    }
    let text = format!("{number:e}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    match exponent.parse::<i32>() {
        Ok(exponent) if (-4..16).contains(&exponent) => format!("{number:?}"),
        Ok(exponent) => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
        Err(_) => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_pythons() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ];
        for (number, expected) in cases {
            assert_eq!(float(number), expected);
        }
    }
}
