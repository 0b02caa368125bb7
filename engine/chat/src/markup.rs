//! Tool calls in the tag notations of Qwen3-Coder and GLM.
//!
//! In both notations, string arguments are unquoted, and other values are JSON. Only the function's schema shows
//! whether an argument is a string.

use serde_json::{Map, Value};

use super::part::{Offered, Part};

/// Reason why a text is not a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum No {
    /// The text is an incomplete call.
    Incomplete,
    /// The text is not a call.
    Other,
}

/// Parses a Qwen3-Coder tool call: `<function=NAME>`, for each argument `<parameter=NAME>`, its value and
/// `</parameter>`, then `</function>`.
pub(super) fn qwen_coder(text: &str, offered: &[Offered]) -> Result<Vec<Part>, No> {
    let rest = text.trim_start();
    let rest = rest.strip_prefix("<function=").ok_or_else(|| beginning(rest, "<function="))?;
    let (name, mut rest) = rest.split_once('>').ok_or(No::Incomplete)?;
    let function = function(name, offered)?;
    let mut arguments = Arguments::default();
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix("</function>") {
            return if after.trim().is_empty() { Ok(arguments.call(function)) } else { Err(No::Other) };
        }
        let parameter = rest.strip_prefix("<parameter=").ok_or_else(|| beginning(rest, "<parameter="))?;
        let (key, value) = parameter.split_once('>').ok_or(No::Incomplete)?;
        let (value, after) = value.split_once("</parameter>").ok_or(No::Incomplete)?;
        // The newlines before and after the value belong to the notation.
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        arguments.add(key.trim(), value, function);
        rest = after;
    }
}

/// Parses a GLM tool call: the name, then `<arg_key>NAME</arg_key>` and `<arg_value>VALUE</arg_value>` for each
/// argument. `is_closed` is true if the closing mark was found; without it, a name without arguments may be incomplete.
pub(super) fn glm(text: &str, is_closed: bool, offered: &[Offered]) -> Result<Vec<Part>, No> {
    let end = text.find("<arg_key>").unwrap_or(text.len());
    if end == text.len() && !is_closed {
        return Err(No::Incomplete);
    }
    let function = function(text[..end].trim(), offered)?;
    let mut arguments = Arguments::default();
    let mut rest = &text[end..];
    while !rest.is_empty() {
        let key = rest.strip_prefix("<arg_key>").ok_or_else(|| beginning(rest, "<arg_key>"))?;
        let (key, after) = key.split_once("</arg_key>").ok_or(No::Incomplete)?;
        let after = after.trim_start();
        let value = after.strip_prefix("<arg_value>").ok_or_else(|| beginning(after, "<arg_value>"))?;
        let (value, after) = value.split_once("</arg_value>").ok_or(No::Incomplete)?;
        arguments.add(key.trim(), value, function);
        rest = after.trim_start();
    }
    Ok(arguments.call(function))
}

/// Returns [`No::Incomplete`] if `text` is a proper prefix of `mark`, so that more input could complete the mark.
fn beginning(text: &str, mark: &str) -> No {
    if mark.starts_with(text) { No::Incomplete } else { No::Other }
}

fn function<'a>(name: &str, offered: &'a [Offered]) -> Result<&'a Offered, No> {
    offered.iter().find(|function| function.name == name.trim()).ok_or(No::Other)
}

/// Content of a JSON object with the arguments, without the braces. Values keep their notation.
#[derive(Default)]
struct Arguments(String);

impl Arguments {
    fn add(&mut self, key: &str, value: &str, function: &Offered) {
        self.0.push_str(if self.0.is_empty() { "" } else { ", " });
        self.0.push_str(&Value::from(key).to_string());
        self.0.push_str(": ");
        self.0.push_str(&json(value, schema(function, key)));
    }

    fn call(self, function: &Offered) -> Vec<Part> {
        vec![Part::Call(function.name.clone()), Part::Arguments(format!("{{{}}}", self.0))]
    }
}

fn schema<'a>(function: &'a Offered, key: &str) -> Option<&'a Map<String, Value>> {
    function.parameters.as_ref()?.get("properties")?.get(key)?.as_object()
}

/// Returns `value` as JSON: as a string if `schema` requires one or if `value` is not valid JSON.
fn json(value: &str, schema: Option<&Map<String, Value>>) -> String {
    let is = |name: &str| match schema.and_then(|schema| schema.get("type")) {
        Some(Value::String(kind)) => kind == name,
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == name),
        _ => false,
    };
    // An `enum` of strings needs no `type`.
    let is_text = is("string")
        || schema
            .and_then(|schema| schema.get("enum")?.as_array())
            .is_some_and(|all| all.iter().all(Value::is_string));
    let trimmed = value.trim();
    if is_text {
        let is_null = is("null") && trimmed == "null";
        return if is_null { "null".to_string() } else { Value::from(value).to_string() };
    }
    match trimmed {
        // Templates are written in Python's style, so models may write Python's literals.
        "True" => "true".to_string(),
        "False" => "false".to_string(),
        "None" => "null".to_string(),
        // Valid JSON is copied unchanged, so that a number with many digits loses no precision.
        other if serde_json::from_str::<serde::de::IgnoredAny>(other).is_ok() => other.to_string(),
        _ => Value::from(value).to_string(),
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
            assert_eq!(json(value, schema[name].as_object()), expected, "{name} {value:?}");
        }
    }
}
