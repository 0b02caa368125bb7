//! Errors of serde in plain words.

/// Minimum similarity, from 0 to 1, of a misspelt name and the name that was probably meant.
const SIMILAR: f64 = 0.8;

/// Returns the error for the profile key `key` from serde's `message`. For an unknown key, `more` are valid keys that
/// serde does not know. The error of a nested key already names its key and is returned unchanged.
pub(super) fn explain(key: &str, message: &str, more: &[&str]) -> String {
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
        let expected = match expected {
            "a boolean" => "true or false",
            "a sequence" => "a list",
            "a map" => "a table",
            other => other,
        };
        let found = match found {
            "sequence" => "a list".to_string(),
            "map" => "a table".to_string(),
            other => format!("the {other}"),
        };
        return format!("`{key}` must be {expected}, not {found}");
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

/// Returns the entry of `names` that was probably meant by the misspelt `name`.
fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = names.map(|known| (strsim::jaro_winkler(name, known), known));
    let (similarity, best) = near.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    (similarity > SIMILAR).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_serde_become_plain_words() {
        let cases = [
            (
                "treading",
                "unknown field `treading`, expected one of `lto`, `threading`",
                "unknown key `treading`\nhint: did you mean threading?",
            ),
            (
                "repak",
                "unknown field `repak`, expected `lto` or `threading`",
                "unknown key `repak`\nhint: did you mean repack?",
            ),
            (
                "foo",
                "unknown field `foo`, expected `lto` or `threading`",
                "unknown key `foo`\nhint: supported keys: lto, threading, repack",
            ),
            (
                "lto",
                "unknown variant `thinn`, expected one of `off`, `thin`, `fat`",
                "`lto` has no value \"thinn\"\nhint: did you mean thin? Supported values: off, thin, fat",
            ),
            (
                "lto",
                "unknown variant `yes`, expected `off` or `thin`",
                "`lto` has no value \"yes\"\nhint: supported values: off, thin",
            ),
            (
                "repack",
                "invalid type: string \"maybe\", expected a boolean",
                "`repack` must be true or false, not the string \"maybe\"",
            ),
            ("isa", "invalid type: sequence, expected a string", "`isa` must be a string, not a list"),
            ("glibc", "\"x\" is not a version", "`glibc`: \"x\" is not a version"),
            ("defaults", "`defaults` has no key `ngl`", "`defaults` has no key `ngl`"),
        ];
        for (key, message, expected) in cases {
            assert_eq!(explain(key, message, &["repack"]), expected);
        }
    }
}
