//! Tool calls whose name and arguments are between tags, as in Qwen3-Coder, GLM and MiniMax.
//!
//! String arguments are unquoted, and other values are JSON. Only the function's schema determines whether an argument
//! is a string.

use std::ops::Range;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use super::arguments::Arguments;
use super::partial::{No, overlap};
use super::python;
use crate::part::{Offered, Part};

/// Markers of a call between tags. White space is ignored around all markers except the markers of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TagNotation {
    /// Marker before the name, for example `<function=`.
    pub(super) open: String,
    /// Marker between the name and the first argument. May be empty.
    pub(super) after_name: String,
    /// Marker before the name of an argument.
    pub(super) key: String,
    /// Marker between the name and the value of an argument.
    pub(super) value: String,
    /// Marker of string values that replaces `value`, if strings have their own marker.
    pub(super) text_value: Option<String>,
    /// Marker after a value.
    pub(super) after_value: String,
    /// Marker at the end of the call.
    pub(super) close: String,
}

impl TagNotation {
    /// Creates a format from its markers, in the order in which they appear in a call.
    pub(super) fn new([open, after_name, key, value, after_value, close]: [String; 6]) -> Self {
        TagNotation { open, after_name, key, value, text_value: None, after_value, close }
    }

    pub(super) fn marks(&self) -> Vec<&str> {
        let text_value = self.text_value.as_deref().unwrap_or_default();
        [&self.open, &self.after_name, &self.key, &self.value, text_value, &self.after_value, &self.close]
            .to_vec()
    }

    /// Parses the call at the start of `text`, after the marker `open`. `is_over` is true if no more text follows. The
    /// arguments of a call that was cut off remain without their closing bracket. Returns the call and its length.
    pub(super) fn call(
        &self,
        text: &str,
        is_over: bool,
        offered: &[Offered],
    ) -> Result<(Vec<Part>, usize), No> {
        // Without a marker after the name, the first argument or the end of the call follows.
        let end = match self.after_name.as_str() {
            "" => {
                let found = [&self.key, &self.close].into_iter().filter_map(|mark| text.find(&**mark)).min();
                let cut = text.len() - overlap(text, &self.close);
                found.or((is_over && !self.key.starts_with(&text[cut..])).then_some(cut))
            }
            mark => text.find(mark),
        };
        let end = end.ok_or(No::Incomplete)?;
        let name = text[..end].trim();
        let function = offered.iter().find(|function| function.name == name).ok_or(No::Other)?;
        let mut rest = text[end + self.after_name.len()..].trim_start();
        let mut arguments = Arguments::default();
        loop {
            if let Some(after) = rest.strip_prefix(&*self.close) {
                rest = after;
                break;
            }
            if rest.is_empty() && is_over && !arguments.is_empty() {
                break;
            }
            let argument = match rest.strip_prefix(&*self.key) {
                Some(argument) => argument,
                // The marker was cut off. Only the closing marker shows that all arguments are complete.
                None if is_over
                    && !rest.is_empty()
                    && self.close.starts_with(rest)
                    && !self.key.starts_with(rest) =>
                {
                    rest = "";
                    break;
                }
                None if is_over && !arguments.is_empty() && self.key.starts_with(rest) => {
                    arguments.cut_off();
                    rest = "";
                    break;
                }
                None => return Err(beginning(rest, &self.key)),
            };
            let found = self.key_and_value(argument);
            let Some((key, value, is_text)) = found else {
                if is_over && !arguments.is_empty() {
                    arguments.cut_off();
                    rest = "";
                    break;
                }
                return Err(No::Incomplete);
            };
            let end = self.after_value.trim_start();
            let (value, after) = match value.split_once(end) {
                Some((value, after)) => (value, Some(after)),
                None if is_over => (&value[..value.len() - overlap(value, end)], None),
                None => return Err(No::Incomplete),
            };
            // The newlines before and after the value belong to the format.
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            let text = || Value::from(value).to_string();
            let Some(after) = after else {
                let json = if is_text { text() } else { cut_off_json(value, function, key) };
                arguments.push_cut_off(key, &json);
                rest = "";
                break;
            };
            arguments.push(key, &if is_text { text() } else { json(value, function, key) });
            rest = after.trim_start();
        }
        Ok((arguments.call(function), text.len() - rest.len()))
    }

    /// Splits the text after the marker `key` into the argument's name and the text from the value on. The last result
    /// is true if the marker says that the value is a string.
    fn key_and_value<'a>(&self, text: &'a str) -> Option<(&'a str, &'a str, bool)> {
        let found = |mark: &str| split_at_mark(text, mark);
        let plain = found(&self.value).map(|(key, value)| (key, value, false));
        let marked = self.text_value.as_deref().and_then(found).map(|(key, value)| (key, value, true));
        let first = [plain, marked].into_iter().flatten().min_by_key(|(key, ..)| key.len());
        let (key, value, is_text) = first?;
        Some((key.trim(), value, is_text))
    }
}

/// Splits `text` at `mark`, with any white space between the tags of the marker.
fn split_at_mark<'a>(text: &'a str, mark: &str) -> Option<(&'a str, &'a str)> {
    let mut tags = mark.split_inclusive('>').map(str::trim).filter(|tag| !tag.is_empty());
    let (key, mut rest) = text.split_once(tags.next()?)?;
    for tag in tags {
        rest = rest.trim_start().strip_prefix(tag)?;
    }
    Some((key, rest))
}

/// Returns [`No::Incomplete`] if `text` is a proper prefix of `mark`, so that more input could complete the marker.
fn beginning(text: &str, mark: &str) -> No {
    if mark.starts_with(text) { No::Incomplete } else { No::Other }
}

/// Maximum length of a tag, in bytes.
const MAX_TAG: usize = 80;

/// Returns the positions of the tags in `text`: `<…>`, or capital letters in brackets such as `[TOOL_CALLS]`. An
/// unfinished tag at the end counts.
pub(super) fn ranges(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(begin) = text[at..].find(['<', '[']).map(|begin| begin + at) {
        let rest = &text[begin + 1..];
        let end = match text.as_bytes()[begin] {
            b'<' => rest
                .find(['<', '>', '\n'])
                .map_or(Some(rest.len()), |end| rest[end..].starts_with('>').then_some(end + 1)),
            _ => rest
                .find(|c: char| !c.is_ascii_uppercase() && c != '_' && c != '/')
                .filter(|end| *end > 0 && rest[*end..].starts_with(']'))
                .map(|end| end + 1),
        };
        match end.filter(|end| *end > 0 && *end <= MAX_TAG) {
            Some(end) => {
                found.push(begin..begin + 1 + end);
                at = begin + 1 + end;
            }
            None => at = begin + 1,
        }
    }
    found
}

/// Maximum depth of references and combinations of schemas.
const MAX_DEPTH: u32 = 8;

/// Maximum number of schemas that are searched for one argument.
const MOST_SCHEMAS: u32 = 64;

/// Adds to `types` the types that `schema` allows. Local references are relative to the schema `root`. A schema without
/// any type adds nothing.
fn add_types<'a>(
    schema: &'a Map<String, Value>,
    root: &'a Map<String, Value>,
    depth: u32,
    budget: &mut u32,
    types: &mut Vec<&'a str>,
) {
    if depth > MAX_DEPTH || *budget == 0 {
        return;
    }
    *budget -= 1;
    let of_value = |value: &'a Value| match value {
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "boolean",
        Value::Null => "null",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    match schema.get("type") {
        Some(Value::String(kind)) => types.push(kind),
        Some(Value::Array(kinds)) => types.extend(kinds.iter().filter_map(Value::as_str)),
        // Constants need no `type`.
        _ => {
            types.extend(schema.get("const").map(of_value));
            types.extend(schema.get("enum").and_then(Value::as_array).into_iter().flatten().map(of_value));
        }
    }
    if let Some(Value::String(reference)) = schema.get("$ref")
        && let Some(target) = resolve(reference, root)
    {
        add_types(target, root, depth + 1, budget, types);
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        for one in
            schema.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
        {
            add_types(one, root, depth + 1, budget, types);
        }
    }
}

/// Returns the schema to which the local `reference` refers, for example `#/$defs/city`.
fn resolve<'a>(reference: &str, root: &'a Map<String, Value>) -> Option<&'a Map<String, Value>> {
    let path = percent_decode_str(reference.strip_prefix('#')?).decode_utf8().ok()?;
    let mut steps = path.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~"));
    let Some(first) = steps.next() else { return Some(root) };
    let found = steps.try_fold(root.get(&first)?, |value, step| match value {
        Value::Array(list) => list.get(step.parse::<usize>().ok()?),
        value => value.get(&step),
    });
    found?.as_object()
}

/// Returns the types that the schema of the argument `key` allows. Empty if the schema specifies no types.
fn types<'a>(function: &'a Offered, key: &str) -> Vec<&'a str> {
    let mut types = Vec::new();
    if let Some(root) = &function.parameters
        && let Some(schema) = root.get("properties").and_then(|all| all.get(key)).and_then(Value::as_object)
    {
        let mut budget = MOST_SCHEMAS;
        add_types(schema, root, 0, &mut budget, &mut types);
    }
    types
}

/// Returns `value` as JSON, in the type that the schema of the argument `key` allows. Without a type, a value that is
/// not valid JSON is a string.
pub(super) fn json(value: &str, function: &Offered, key: &str) -> String {
    let types = types(function, key);
    let parsed = parsed(value.trim(), &types);
    let is_string = |json: &String| types.contains(&"string") && !is_allowed(json, &types);
    parsed.filter(|json| !is_string(json)).unwrap_or_else(|| Value::from(value).to_string())
}

/// Returns `value`, the start of an argument that was cut off, as JSON. A string keeps its start; another value that is
/// not complete becomes an empty text.
fn cut_off_json(value: &str, function: &Offered, key: &str) -> String {
    let types = types(function, key);
    let may_be_text = match types.as_slice() {
        [] => !value.trim_start().starts_with(['[', '{']),
        types => types.contains(&"string"),
    };
    let is_complete = parsed(value.trim(), &types).is_some();
    if may_be_text || is_complete { json(value, function, key) } else { String::new() }
}

/// Returns `value` as JSON of the type that the schema of the argument `key` requires; `None` if the schema requires no
/// type, or another type.
pub(super) fn typed(value: &str, function: &Offered, key: &str) -> Option<String> {
    let types = types(function, key);
    if types == ["string"] {
        return Some(Value::from(value).to_string());
    }
    parsed(value.trim(), &types).filter(|json| !types.contains(&"string") && is_allowed(json, &types))
}

/// Parses `text` as JSON, or as a Python literal where `types` allow one.
fn parsed(text: &str, types: &[&str]) -> Option<String> {
    match text {
        // Templates are written in Python's style, so models may write Python's literals.
        "True" => Some("true".to_string()),
        "False" => Some("false".to_string()),
        "None" if !types.contains(&"string") => Some("null".to_string()),
        // Valid JSON is copied unchanged, so that a number with many digits loses no precision.
        json if serde_json::from_str::<serde::de::IgnoredAny>(json).is_ok() => Some(json.to_string()),
        list if types.contains(&"array") || types.contains(&"object") => python::literal(list),
        _ => None,
    }
}

/// True if `types` contain the type of `json`.
fn is_allowed(json: &str, types: &[&str]) -> bool {
    let is = |kind: &str| types.contains(&kind);
    match json.as_bytes().first() {
        Some(b'{') => is("object"),
        Some(b'[') => is("array"),
        Some(b'"') => false,
        Some(b't' | b'f') => is("boolean"),
        Some(b'n') => is("null"),
        _ => is("number") || is("integer"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_what_their_schema_says() {
        let schema = json!({
            "text": { "type": "string" }, "maybe": { "type": ["string", "null"] }, "number": { "type": "integer" },
            "yes": { "type": "boolean" }, "list": { "type": "array" }, "one": { "enum": ["1", "2"] }, "any": {},
        });
        let cases = [
            ("text", "7", "\"7\""),
            ("text", " a \"b\"\n", "\" a \\\"b\\\"\\n\""),
            ("text", "null", "\"null\""),
            ("maybe", "null", "null"),
            ("maybe", "7", "\"7\""),
            ("number", "123456789012345678901234567890", "123456789012345678901234567890"),
            ("number", " 7 ", "7"),
            ("number", "many", "\"many\""),
            ("yes", "True", "true"),
            ("yes", "false", "false"),
            ("list", "[1, {\"a\": 1.10}]", "[1, {\"a\": 1.10}]"),
            ("one", "1", "\"1\""),
            ("any", "{\"a\": 1}", "{\"a\": 1}"),
            ("any", "{\"a\": 1", "\"{\\\"a\\\": 1\""),
            ("unknown", "None", "null"),
        ];
        for (name, value, expected) in cases {
            let parameters = json!({ "properties": schema }).as_object().cloned();
            let function = Offered { name: "f".to_string(), parameters };
            assert_eq!(super::json(value, &function, name), expected, "{name} {value:?}");
        }
    }

    #[test]
    fn types_are_found_behind_references_and_combinations() {
        let parameters = json!({
            "properties": {
                "ref": { "$ref": "#/$defs/city" }, "number": { "$ref": "#/$defs/numbers/0" },
                "any": { "anyOf": [{ "type": "integer" }, { "type": "null" }] },
                "either": { "oneOf": [{ "$ref": "#/$defs/city" }, { "type": "integer" }] },
                "all": { "allOf": [{ "$ref": "#/$defs/a~1b" }] },
                "const": { "const": "1" }, "circle": { "$ref": "#/$defs/circle" }, "lost": { "$ref": "#/nowhere" },
                "encoded": { "$ref": "#/$defs/list%5Bcity%5D~1%C3%A9" },
                "far": { "$ref": "other.json#/x" }, "wide": { "$ref": "#/$defs/wide" },
                "list": { "type": "array" }, "word": { "type": ["string", "array"] },
            },
            "$defs": {
                "city": { "type": "string" }, "numbers": [{ "type": "number" }], "a/b": { "type": "string" },
                "list[city]/é": { "type": "string" },
                "circle": { "anyOf": [{ "$ref": "#/$defs/circle" }, { "type": "string" }] },
                "wide": { "anyOf": vec![json!({ "$ref": "#/$defs/wide" }); 50] },
            },
        });
        let function = Offered { name: "f".to_string(), parameters: parameters.as_object().cloned() };
        for (key, value, expected) in [
            ("ref", "7", "\"7\""),
            ("number", "7", "7"),
            ("any", "null", "null"),
            ("any", "7", "7"),
            ("either", "7", "7"),
            ("either", "Linz", "\"Linz\""),
            ("either", "true", "\"true\""),
            ("all", "7", "\"7\""),
            ("encoded", "7", "\"7\""),
            ("const", "1", "\"1\""),
            ("circle", "7", "\"7\""),
            ("lost", "7", "7"),
            ("far", "Linz", "\"Linz\""),
            ("wide", "7", "7"),
            (
                "list",
                "[1, {'a': True, 'b': None, 'c': 'it\\'s'}]",
                r#"[1, {"a": true, "b": null, "c": "it's"}]"#,
            ),
            ("list", "[1, {'a': ", "\"[1, {'a': \""),
            ("word", "[1]", "[1]"),
        ] {
            assert_eq!(super::json(value, &function, key), expected, "{key} {value:?}");
        }
    }

    #[test]
    fn tags_are_found_in_any_text() {
        let tags =
            |text: &'static str| ranges(text).into_iter().map(|range| &text[range]).collect::<Vec<_>>();
        assert_eq!(
            tags("a <b> [TOOL_CALLS][{ <f=x> [x] [/END] <|é|>"),
            ["<b>", "[TOOL_CALLS]", "<f=x>", "[/END]", "<|é|>"]
        );
        assert_eq!(tags("1 < 2\n <a <b> [A <c=\""), ["<b>", "<c=\""]);
        assert!(ranges(&format!("<{}>", "x".repeat(MAX_TAG))).is_empty());
        assert_eq!(ranges(&"<a>[B".repeat(10_000)).len(), 10_000);
    }
}
