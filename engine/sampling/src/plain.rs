//! llguidance's messages in plain words.

use std::borrow::Cow;

/// Reason if a constraint contradicts itself.
pub(super) const NO_TEXT: &str = "no text matches it";

const NO_TARGET: &str = "its $ref does not point to a part of this schema";

const UNSATISFIABLE: &str = "Unsatisfiable schema: ";

/// llguidance's error if no token is allowed.
const NO_TOKEN: &str = "NoExtensionBias";

/// Texts of llguidance about a whole constraint, and their plain words.
const WHOLE: [(&str, &str); 14] = [
    (NO_TOKEN, NO_TEXT),
    ("initial push failed", "only the empty text matches it"),
    ("schema must be an object or boolean", "a schema must be an object or boolean"),
    ("type must be a string", "type: use the name of a type, or a list of names"),
    ("circular references with sibling keys", "a $ref leads back to a schema that restricts it further"),
    ("Reference segment", NO_TARGET),
    ("Only absolute $ref", NO_TARGET),
    ("invalid multiple of", "multipleOf: use a number above 0"),
    ("schema too large", "it is too large: make it simpler"),
    ("grammar) too big", "it is too large: make it simpler"),
    ("stack level exceeded", "its parts are combined too deeply: make it simpler"),
    (
        "min/maxProperties only supported",
        "minProperties and maxProperties are supported only if all properties are required",
    ),
    ("are not disjoint", "patternProperties: two patterns match the same names"),
    ("Failed to generate regex", "a bound is too large"),
];

/// Texts of llguidance about a schema that no text matches, and their plain words.
const CONTRADICTIONS: [(&str, &str); 7] = [
    ("schema is false", "the schema is false"),
    ("is empty:", "its rules for the text contradict each other"),
    ("Of is empty", "a list of alternatives is empty"),
    ("incompatible types", "its parts have incompatible types"),
    ("incompatible boolean", "its parts have incompatible values"),
    ("required item", "nothing matches a required item"),
    ("All options", "nothing matches any of its alternatives"),
];

/// Values that llguidance expects, and their plain names.
const EXPECTED: [(&str, &str); 5] = [
    ("f64", "a number"),
    ("string", "a text"),
    ("array", "a list"),
    ("object", "an object"),
    ("positive integer", "a whole number of at least 0"),
];

/// True if `why` says that no text matches a schema.
pub(super) fn is_no_text(why: &str) -> bool {
    why.starts_with(NO_TEXT) || why.starts_with(UNSATISFIABLE) || why == NO_TOKEN
}

/// Returns the message `why`, which must be one line, in plain words.
pub(super) fn plain(why: &str) -> String {
    if let Some(contradiction) = why.strip_prefix(UNSATISFIABLE) {
        return format!("{NO_TEXT}: {}", contradiction_in_plain_words(contradiction));
    }
    if let Some((_, words)) = WHOLE.iter().find(|(text, _)| why.contains(text)) {
        return (*words).to_string();
    }
    if let Some((place, rest)) = why.split_once("regex parse error") {
        let fault = rest.split_once("; error: ").map_or("too complex", |(_, fault)| fault);
        let kind = if place.is_empty() { "invalid regular expression: " } else { "" };
        return format!("{place}{kind}{fault}");
    }
    if let Some((place, _)) = why.split_once("lookarounds not supported yet; ") {
        return format!(
            "{place}assertions such as \\b, and an inner ^ or $, are not supported in regular expressions"
        );
    }
    let used = || {
        let (kind, rest) = why.strip_prefix("Expected ")?.split_once(" for '")?;
        let (key, found) = rest.split_once(", got ")?;
        let (_, words) = EXPECTED.iter().find(|(text, _)| *text == kind)?;
        let (key, item) = key.split_once('\'')?;
        let words = if item.is_empty() { *words } else { "a list of texts" };
        Some(format!("{key}: use {words}, not {found}"))
    };
    let listed = || {
        let (key, kind) = why.split_once(" must be an ")?;
        let (_, words) = EXPECTED.iter().find(|(text, _)| *text == kind)?;
        Some(format!("{key}: use {words}"))
    };
    let kind = || {
        let kind = why.strip_prefix("Invalid type: ")?;
        Some(format!("type: use string, number, integer, boolean, array, object or null, not \"{kind}\""))
    };
    let field = || {
        let (field, _) = why.split_once(", expected one of `item_separator`")?;
        Some(format!("x-guidance: {field}"))
    };
    used().or_else(listed).or_else(kind).or_else(field).unwrap_or_else(|| why.to_string())
}

fn contradiction_in_plain_words(text: &str) -> Cow<'_, str> {
    if let Some((_, words)) = CONTRADICTIONS.iter().find(|(part, _)| text.contains(part)) {
        return (*words).into();
    }
    let between = |start: &str, end: &str| text.strip_prefix(start)?.split_once(end).map(|(inner, _)| inner);
    if let Some(name) = between("required property '", "' is unsatisfiable") {
        return format!("nothing matches the required property '{name}'").into();
    }
    if let Some(at) = between("prefixItems[", "] is unsatisfiable") {
        return format!("nothing matches the required item prefixItems[{at}]").into();
    }
    if let Some(value) = between("Constant ", " doesn't match length constraints") {
        return format!("the constant {value} is too short or too long").into();
    }
    text.replace(" > ", " is greater than ").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_plain() {
        for (message, expected) in [
            (NO_TOKEN, NO_TEXT),
            ("Unsatisfiable schema: schema is false", "no text matches it: the schema is false"),
            (
                "Unsatisfiable schema: Regex is empty:  (And (Literal \"a\") (SearchRegex /^b$/))",
                "no text matches it: its rules for the text contradict each other",
            ),
            (
                "Unsatisfiable schema: required property 'x' is unsatisfiable",
                "no text matches it: nothing matches the required property 'x'",
            ),
            (
                "Unsatisfiable schema: minimum (5) is greater than maximum (3)",
                "no text matches it: minimum (5) is greater than maximum (3)",
            ),
            (
                "Unsatisfiable schema: required > maxProperties",
                "no text matches it: required is greater than maxProperties",
            ),
            ("regex parse error:; (; ^; error: unclosed group", "invalid regular expression: unclosed group"),
            ("at 2(8): regex parse error:; (; error: unclosed group", "at 2(8): unclosed group"),
            ("regex parse error:; (; error…", "invalid regular expression: too complex"),
            ("Reference segment 'x' not found in '#/x'.", NO_TARGET),
            (
                "lookarounds not supported yet; WordUnicode in regex /a\\bb/",
                "assertions such as \\b, and an inner ^ or $, are not supported in regular expressions",
            ),
            ("Expected f64 for 'maximum', got \"x\"", "maximum: use a number, not \"x\""),
            (
                "Expected positive integer for 'maxLength', got -3",
                "maxLength: use a whole number of at least 0, not -3",
            ),
            ("Expected string for 'required' item, got 1", "required: use a list of texts, not 1"),
            ("enum must be an array", "enum: use a list"),
            ("properties must be an object", "properties: use an object"),
            (
                "Invalid type: strng",
                "type: use string, number, integer, boolean, array, object or null, not \"strng\"",
            ),
            (
                "unknown field `foo`, expected one of `item_separator`, `key_separator`",
                "x-guidance: unknown field `foo`",
            ),
            ("Internal error: initial push failed; please report a bug", "only the empty text matches it"),
            ("at 2(8): unknown name: \"foo\"", "at 2(8): unknown name: \"foo\""),
        ] {
            assert_eq!(plain(message), expected, "{message}");
        }
    }
}
