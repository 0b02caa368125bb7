//! Errors of serde in plain words.

use build_info::words::nearest;
use toml::Value;

/// Returns the error for the profile key `key` with the value `value`, from serde's `message`. For an unknown key,
/// `more` are valid keys that serde does not know. The error of a nested key already names its key and is returned
/// unchanged.
pub(super) fn explain(key: &str, value: &Value, message: &str, more: &[&str]) -> String {
    let message = message.trim();
    let expected = || message.rsplit_once(", expected ").map_or("", |(_, names)| names);
    let names = || expected().split('`').skip(1).step_by(2);
    if message.starts_with("unknown field ") {
        let known: Vec<&str> = names().chain(more.iter().copied()).collect();
        return format!("unknown key `{key}`{}", key_hint(key, &known));
    }
    if message.starts_with("unknown variant ") {
        let given = message.split('`').nth(1).unwrap_or_default();
        let all = names().collect::<Vec<_>>().join(", ");
        let hint = match nearest(given, names()) {
            Some(near) => format!("did you mean {near}? Supported values: {all}"),
            None => format!("supported values: {all}"),
        };
        return format!("`{key}` has no value {given:?}\nhint: {hint}");
    }
    let mistyped = message.strip_prefix("invalid type: ").and_then(|rest| rest.rsplit_once(", expected "));
    if let Some((found, expected)) = mistyped {
        // The message does not say whether it is about the whole list or table, or about an element.
        let is_element = matches!(value, Value::Array(_)) && found != "sequence"
            || matches!(value, Value::Table(_)) && found != "map";
        let expected = match (expected, is_element) {
            ("a boolean", _) => "true or false",
            ("a sequence", false) => "a list",
            ("a sequence", true) => "lists",
            ("a map", false) => "a table",
            ("a map", true) => "tables",
            ("a string", true) => "strings",
            (other, _) => other,
        };
        let subject = if is_element { format!("the values of `{key}`") } else { format!("`{key}`") };
        let found = match found {
            "sequence" => "a list".to_string(),
            "map" => "a table".to_string(),
            other => format!("the {other}"),
        };
        return format!("{subject} must be {expected}, not {found}");
    }
    if message.starts_with('`') { message.to_string() } else { format!("`{key}`: {message}") }
}

/// Returns the hint line for the unknown key `key`: the nearest of the keys `known`, or all of them.
pub(super) fn key_hint(key: &str, known: &[&str]) -> String {
    match nearest(key, known.iter().copied()) {
        Some(near) => format!("\nhint: did you mean {near}?"),
        None => format!("\nhint: supported keys: {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_serde_become_plain_words() {
        let cases = [
            (
                "treading = true",
                "unknown field `treading`, expected one of `lto`, `threading`",
                "unknown key `treading`\nhint: did you mean threading?",
            ),
            (
                "repak = true",
                "unknown field `repak`, expected `lto` or `threading`",
                "unknown key `repak`\nhint: did you mean repack?",
            ),
            (
                "foo = true",
                "unknown field `foo`, expected `lto` or `threading`",
                "unknown key `foo`\nhint: supported keys: lto, threading, repack",
            ),
            (
                "lto = 'thinn'",
                "unknown variant `thinn`, expected one of `off`, `thin`, `fat`",
                "`lto` has no value \"thinn\"\nhint: did you mean thin? Supported values: off, thin, fat",
            ),
            (
                "lto = 'yes'",
                "unknown variant `yes`, expected `off` or `thin`",
                "`lto` has no value \"yes\"\nhint: supported values: off, thin",
            ),
            (
                "repack = 'maybe'",
                "invalid type: string \"maybe\", expected a boolean",
                "`repack` must be true or false, not the string \"maybe\"",
            ),
            ("isa = []", "invalid type: sequence, expected a string", "`isa` must be a string, not a list"),
            (
                "cuda_arch = [90]",
                "invalid type: integer `90`, expected a string",
                "the values of `cuda_arch` must be strings, not the integer `90`",
            ),
            (
                "definitions = { X = 1 }",
                "invalid type: integer `1`, expected a string",
                "the values of `definitions` must be strings, not the integer `1`",
            ),
            (
                "cuda_arch = 90",
                "invalid type: integer `90`, expected a sequence",
                "`cuda_arch` must be a list, not the integer `90`",
            ),
            ("glibc = 'x'", "\"x\" is not a version", "`glibc`: \"x\" is not a version"),
            ("defaults = { ngl = 1 }", "`defaults` has no key `ngl`", "`defaults` has no key `ngl`"),
        ];
        for (line, message, expected) in cases {
            let table: toml::Table = line.parse().unwrap();
            let (key, value) = table.iter().next().unwrap();
            assert_eq!(explain(key, value, message, &["repack"]), expected);
        }
    }
}
