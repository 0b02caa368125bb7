//! Patterns of JSON schemas. Client libraries write them in JavaScript's or Python's notation, but llguidance accepts a
//! smaller notation without assertions such as `(?!…)` and `\b`.

use llguidance::derivre::RegexBuilder;
use llguidance::regex_to_lark;
use serde_json::{Map, Value, json};

/// Maximum number of patterns that are checked in one schema. llguidance refuses further unsupported patterns.
const MAX_PATTERNS: usize = 5000;

/// Messages about patterns that are invalid in every notation.
const INVALID: [&str; 6] = [
    "unclosed group",
    "unopened group",
    "unclosed character class",
    "repetition operator missing expression",
    "the start must be <= the end",
    "incomplete escape sequence",
];

/// Replaces the patterns of a schema that llguidance refuses.
pub(super) struct Patterns {
    left: usize,
}

/// Pattern that llguidance accepts.
#[derive(Debug, PartialEq)]
enum Usable {
    /// Pattern with the same meaning.
    Exact(String),
    /// Pattern without the assertions, which matches more texts.
    Weaker(String),
    /// No pattern.
    Nothing,
}

impl Default for Patterns {
    fn default() -> Self {
        Patterns { left: MAX_PATTERNS }
    }
}

impl Patterns {
    /// Replaces or removes the patterns in `fields` that llguidance refuses. Returns the keywords that are no longer
    /// enforced completely.
    pub(super) fn replace(&mut self, fields: &mut Map<String, Value>) -> Vec<&'static str> {
        let mut ignored = Vec::new();
        if let Some(Value::String(pattern)) = fields.get("pattern") {
            let usable = self.usable(pattern);
            if !matches!(usable, Usable::Exact(_)) {
                ignored.push("pattern");
            }
            match usable {
                Usable::Exact(pattern) | Usable::Weaker(pattern) => fields["pattern"] = pattern.into(),
                Usable::Nothing => drop(fields.shift_remove("pattern")),
            }
        }
        let Some(Value::Object(map)) = fields.get_mut("patternProperties") else { return ignored };
        let (mut removed, mut is_exact) = (Vec::new(), true);
        for (pattern, schema) in std::mem::take(map) {
            let usable = self.usable(&pattern);
            is_exact &= matches!(usable, Usable::Exact(_));
            match usable {
                Usable::Exact(pattern) | Usable::Weaker(pattern) => drop(map.insert(pattern, schema)),
                Usable::Nothing => removed.push(schema),
            }
        }
        allow_names(fields, removed);
        if !is_exact {
            ignored.push("patternProperties");
        }
        ignored
    }

    fn usable(&mut self, pattern: &str) -> Usable {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 || refusal(pattern).is_none() {
            return Usable::Exact(pattern.to_string());
        }
        // llguidance's error describes a mistake.
        let is_mistake = |why: &str| INVALID.iter().any(|invalid| why.contains(invalid));
        let exact = translated(pattern, true);
        if refusal(&exact).is_none_or(|why| is_mistake(&why)) {
            return Usable::Exact(exact);
        }
        let weaker = translated(pattern, false);
        match refusal(&weaker) {
            None => Usable::Weaker(weaker),
            Some(why) if is_mistake(&why) => Usable::Exact(weaker),
            Some(_) => Usable::Nothing,
        }
    }
}

/// Allows more properties in a closed object after some of its `patternProperties`, with these schemas, were removed.
pub(super) fn allow_names(fields: &mut Map<String, Value>, removed: Vec<Value>) {
    if !removed.is_empty() && fields.get("additionalProperties").is_some_and(|value| *value == false) {
        fields.insert("additionalProperties".to_string(), json!({ "anyOf": removed }));
    }
}

/// Returns the reason why llguidance refuses `pattern`.
fn refusal(pattern: &str) -> Option<String> {
    let made = RegexBuilder::new().mk_regex_for_serach(&regex_to_lark(pattern, "dw"));
    made.err().map(|error| error.to_string())
}

/// Translates `pattern` from JavaScript's notation. Without `keeps_assertions`, the result has none of the assertions
/// that restrict the text before or after a position, so it matches at least the same texts.
fn translated(pattern: &str, keeps_assertions: bool) -> String {
    let characters: Vec<char> = pattern.chars().collect();
    let at = |index: usize| characters.get(index).copied().unwrap_or_default();
    let (mut result, mut index, mut in_class) = (String::new(), 0, false);
    while index < characters.len() {
        let (character, next) = (characters[index], at(index + 1));
        index += 1;
        match character {
            '\\' => {
                index += 1;
                match next {
                    // In a class, this is a backspace.
                    'b' if in_class => result.push_str(r"\x08"),
                    'b' | 'B' if !keeps_assertions => result.push_str("(?:)"),
                    '<' | '>' => result.push(next),
                    _ => result.extend(['\\', next].iter().filter(|character| **character != '\0')),
                }
            }
            '[' if in_class => result.push_str(r"\["),
            '[' if next == '^' && at(index + 1) == ']' => {
                index += 2;
                result.push_str(r"(?s:.)");
            }
            '[' => {
                in_class = true;
                result.push('[');
            }
            ']' => {
                in_class = false;
                result.push(']');
            }
            '-' if in_class && next == '\\' && "dwsDWS".contains(at(index + 1)) => result.push_str(r"\-"),
            '{' if !in_class && !is_repetition(&characters[index..]) => result.push_str(r"\{"),
            '(' if !in_class && !keeps_assertions && is_assertion(&characters[index..]) => {
                index = group_end(&characters, index);
                result.push_str("(?:)");
            }
            other => result.push(other),
        }
    }
    result
}

/// True if `rest`, the text after `{`, is the rest of a repetition such as `{2,3}`.
fn is_repetition(rest: &[char]) -> bool {
    let inner: String = rest.iter().take_while(|character| **character != '}').collect();
    let (least, most) = inner.split_once(',').unwrap_or((&inner, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    rest.len() > inner.len() && !least.is_empty() && is_number(least) && is_number(most)
}

/// True if `rest`, the text after `(`, begins a look-around.
fn is_assertion(rest: &[char]) -> bool {
    let head: String = rest.iter().take(3).collect();
    ["?=", "?!", "?<=", "?<!"].iter().any(|start| head.starts_with(start))
}

/// Returns the index after the end of the group whose content begins at `index`.
fn group_end(characters: &[char], mut index: usize) -> usize {
    let (mut depth, mut in_class) = (1, false);
    while index < characters.len() && depth > 0 {
        match characters[index] {
            '\\' => index += 1,
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => depth += 1,
            ')' if !in_class => depth -= 1,
            _ => {}
        }
        index += 1;
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_replaced_by_one_that_llguidance_accepts() {
        let exact = |text: &str| Usable::Exact(text.to_string());
        let weaker = |text: &str| Usable::Weaker(text.to_string());
        let cases = [
            ("^[a-z]{2,3}$", exact("^[a-z]{2,3}$")),
            (r"^(?!\.)(?!.*\.\.)[(?!)]+@a(?:b|(?<=x\)[)](y))c)$", weaker(r"^(?:)(?:)[(?!)]+@a(?:b|(?:)c)$")),
            (r"\bcat\b", weaker("(?:)cat(?:)")),
            ("^{.*}$", exact(r"^\{.*}$")),
            ("[^[\\]]{2}", exact(r"[^\[\]]{2}")),
            (r"[+-\d][\b]", exact(r"[+\-\d][\x08]")),
            ("^[^]$", exact("^(?s:.)$")),
            (r"\<a\>", exact("<a>")),
            (r"(a)\1", Usable::Nothing),
            ("x^a", Usable::Nothing),
            // The mistakes are reported.
            ("(", exact("(")),
            ("[a", exact("[a")),
            ("*a", exact("*a")),
            ("[z-a]", exact("[z-a]")),
            ("(?=a)(", exact("(?:)(")),
        ];
        for (pattern, expected) in cases {
            assert_eq!(Patterns::default().usable(pattern), expected, "{pattern}");
        }
    }

    #[test]
    fn the_names_of_properties_stay_allowed() {
        let mut fields = json!({
            "patternProperties": { "^(?=a)": { "type": "null" }, r"(a)\1": { "type": "string" } },
            "additionalProperties": false,
        });
        let ignored = Patterns::default().replace(fields.as_object_mut().unwrap());
        assert_eq!(ignored, ["patternProperties"]);
        let expected = json!({
            "patternProperties": { "^(?:)": { "type": "null" } },
            "additionalProperties": { "anyOf": [{ "type": "string" }] },
        });
        assert_eq!(fields, expected);
    }
}
