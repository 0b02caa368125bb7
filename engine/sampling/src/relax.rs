//! Removal of keywords that llguidance refuses, and search for the invalid part of a schema.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::parts::{join, parts, visit};
use crate::patterns::allow_names;
use crate::plain::is_no_text;

/// Maximum number of parts of a refused schema that are compiled to find the refused parts.
const MAX_PARTS: usize = 500;

/// Maximum time for the search.
const MAX_TIME: Duration = Duration::from_secs(2);

/// Keywords that may be removed if llguidance's message contains the text.
const REMOVABLE: [(&str, &[&str]); 6] = [
    ("min/maxProperties only supported", &["minProperties", "maxProperties"]),
    ("Failed to generate regex for", &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
    ("patternProperty", &["patternProperties"]),
    ("Unable to determine if regex is empty", &["pattern", "format"]),
    ("has too many digits", &["multipleOf"]),
    ("circular references with sibling keys", BESIDE_REFERENCE),
];

/// Keywords that restrict a value beside a `$ref`.
const BESIDE_REFERENCE: &[&str] = &[
    "type",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "anyOf",
    "allOf",
    "oneOf",
];

/// Result of [`relax`].
#[derive(Debug, Default, PartialEq)]
pub(super) struct Relaxed {
    /// Paths of the removed keywords.
    pub ignored: Vec<String>,
    /// Path of the innermost part that is invalid by itself, and the reason.
    pub invalid: Option<(String, String)>,
}

/// Removes the keywords of `schema` that are valid, but that llguidance refuses. `why` is llguidance's reason for
/// refusing `schema`, and `refusal` returns the reason for another schema.
pub(super) fn relax(schema: &mut Value, why: &str, refusal: &dyn Fn(&Value) -> Option<String>) -> Relaxed {
    let begun = Instant::now();
    let mut relaxed = Relaxed::default();
    let places: Vec<(String, String)> =
        parts(schema).into_iter().take(MAX_PARTS).map(|part| (part.path, part.pointer)).collect();
    // Parts that may be refused because of a part to which they refer.
    let mut candidates = Vec::new();
    for (path, pointer) in places {
        while begun.elapsed() < MAX_TIME {
            let Some(part) = schema.pointer(&pointer).filter(|part| **part != false) else { break };
            let Some(found) = refusal(&alone(part, &pointer, schema)) else { break };
            // A part that no text matches, such as a property that must be missing, is not an error by itself.
            if is_no_text(&found) && (!is_no_text(why) || pointer.is_empty()) {
                break;
            }
            let mut keywords = removable(&found, part);
            let Some(last) = keywords.pop() else {
                if !has_references(part) {
                    relaxed.invalid = Some((path, found));
                    return relaxed;
                }
                candidates.push((path, pointer));
                break;
            };
            // The last keyword needs no check.
            let is_cause = |key: &&str| {
                let mut without = schema.clone();
                remove(&mut without, &pointer, key);
                without
                    .pointer(&pointer)
                    .is_some_and(|part| refusal(&alone(part, &pointer, &without)).is_none())
            };
            let key = keywords.into_iter().find(is_cause).unwrap_or(last);
            remove(schema, &pointer, key);
            relaxed.ignored.push(join(&path, key));
        }
    }
    relaxed.invalid = candidates.into_iter().find_map(|(path, pointer)| {
        let part = schema.pointer(&pointer).filter(|_| begun.elapsed() < MAX_TIME)?;
        Some((path, refusal(&alone(part, &pointer, schema))?))
    });
    relaxed
}

/// Returns the keywords of `part` that may cause the refusal `why`.
fn removable(why: &str, part: &Value) -> Vec<&'static str> {
    let known = REMOVABLE.iter().find(|(text, _)| why.contains(text));
    let is_circular = known.is_some_and(|(_, keywords)| *keywords == BESIDE_REFERENCE);
    let keywords = known.map_or(&[] as &[&str], |(_, keywords)| keywords).iter().copied();
    keywords.filter(|key| part.get(key).is_some() && (!is_circular || part.get("$ref").is_some())).collect()
}

/// Removes the keyword `key` of the part of `schema` at `pointer`.
fn remove(schema: &mut Value, pointer: &str, key: &str) {
    let Some(Value::Object(fields)) = schema.pointer_mut(pointer) else { return };
    if let (Some(Value::Object(removed)), "patternProperties") = (fields.shift_remove(key), key) {
        allow_names(fields, removed.into_iter().map(|(_, schema)| schema).collect());
    }
}

fn has_references(schema: &Value) -> bool {
    parts(schema).iter().any(|part| part.schema.get("$ref").is_some())
}

/// Returns a schema that is equivalent to `part`, which is at `pointer` in `whole`.
fn alone(part: &Value, pointer: &str, whole: &Value) -> Value {
    if pointer.is_empty() || !has_references(part) {
        return part.clone();
    }
    let [part, whole] = [part, whole].map(|schema| {
        let mut schema = schema.clone();
        visit(&mut schema, "", &mut |fields: &mut Map<String, Value>, _| {
            if let Some(Value::String(text)) = fields.get_mut("$ref")
                && let Some(rest) = text.strip_prefix('#')
            {
                *text = format!("#/$defs/whole{rest}");
            }
        });
        schema
    });
    json!({ "allOf": [part], "$defs": { "whole": whole } })
}

#[cfg(test)]
mod tests {
    use llguidance::api::ParserLimits;
    use llguidance::{GrammarBuilder, JsonCompileOptions};

    use super::*;

    fn refusal(schema: &Value) -> Option<String> {
        let builder = GrammarBuilder::new(None, ParserLimits::default());
        let made = JsonCompileOptions::default().json_to_llg_with_overrides(builder, schema.clone());
        made.err().map(|error| error.to_string())
    }

    #[test]
    fn only_the_refused_keywords_are_removed() {
        let fine = json!({ "type": "string", "maxLength": 3 });
        let number = json!({ "type": "number", "minimum": 1e300, "maximum": 1e301 });
        let few = json!({ "type": "object", "properties": { "a": fine, "b": fine }, "minProperties": 1 });
        let overlap = json!({
            "type": "object", "patternProperties": { "^a": fine, "^ab": true }, "additionalProperties": false,
        });
        let node = json!({
            "type": "object", "properties": { "next": { "$ref": "#/$defs/node", "type": "object" } },
        });
        let mut schema = json!({
            "type": "object",
            "properties": { "number": number, "few/": few, "overlap": overlap, "node": { "$ref": "#/$defs/node" } },
            "$defs": { "node": node },
        });
        let why = refusal(&schema).expect("a refused schema");
        let relaxed = relax(&mut schema, &why, &refusal);
        assert_eq!(refusal(&schema), None);
        let expected = [
            "properties.number.maximum",
            "properties.number.minimum",
            "properties.few/.minProperties",
            "properties.overlap.patternProperties",
            "$defs.node.properties.next.type",
        ];
        assert_eq!(relaxed.invalid, None);
        assert_eq!(relaxed.ignored, expected);
        assert_eq!(schema["properties"]["few/"]["properties"]["b"]["maxLength"], 3);
        let names = json!({ "type": "object", "additionalProperties": { "anyOf": [fine, true] } });
        assert_eq!(schema["properties"]["overlap"], names);
    }

    #[test]
    fn the_invalid_part_is_found() {
        let tool = |kind: &str| json!({ "properties": { "a/b": { "$ref": "#/anyOf/1/$defs/c" } }, "$defs": { "c": { "type": kind } } });
        let mut schema = json!({ "anyOf": [tool("string"), tool("strng")] });
        let why = refusal(&schema).expect("a refused schema");
        let relaxed = relax(&mut schema, &why, &refusal);
        let invalid = Some(("anyOf[1].$defs.c".to_string(), "Invalid type: strng".to_string()));
        assert_eq!(relaxed, Relaxed { ignored: Vec::new(), invalid });
    }
}
