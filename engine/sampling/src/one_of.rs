//! `oneOf` in JSON schemas. llguidance enforces it as `anyOf`, which is equivalent if no value matches two options.

use serde_json::{Map, Value};

use crate::parts::parts;
use crate::references::known_pointer;

/// Maximum number of comparisons of schemas. Options that are not compared count as overlapping.
const MAX_COMPARISONS: usize = 300_000;

/// Maximum depth of compared schemas.
const MAX_DEPTH: usize = 16;

/// Returns the paths of the schemas in `whole` with a `oneOf` whose options may overlap.
pub(super) fn overlapping(whole: &Value) -> Vec<String> {
    let mut comparison = Comparison { whole, left: MAX_COMPARISONS };
    let mut found = Vec::new();
    for part in parts(whole) {
        let Some(Value::Array(options)) = part.schema.get("oneOf") else { continue };
        let overlaps = (0..options.len()).any(|one| {
            (one + 1..options.len()).any(|other| !comparison.differ(&options[one], &options[other], 0))
        });
        if overlaps {
            found.push(part.path);
        }
    }
    found
}

struct Comparison<'a> {
    whole: &'a Value,
    /// Number of schemas that may still be compared.
    left: usize,
}

impl<'a> Comparison<'a> {
    /// True if it is certain that no value matches both schemas.
    fn differ(&mut self, one: &Value, other: &Value, depth: usize) -> bool {
        if self.left == 0 || depth > MAX_DEPTH {
            return false;
        }
        self.left -= 1;
        if *one == false || *other == false {
            return true;
        }
        for (schema, second) in [(one, other), (other, one)] {
            let target = schema.get("$ref").and_then(Value::as_str).and_then(|text| self.target(text));
            if target.is_some_and(|target| self.differ(target, second, depth + 1)) {
                return true;
            }
            for key in ["anyOf", "oneOf"] {
                if let Some(Value::Array(options)) = schema.get(key)
                    && options.iter().all(|option| self.differ(option, second, depth + 1))
                {
                    return true;
                }
            }
        }
        let (Value::Object(one), Value::Object(other)) = (one, other) else { return false };
        let lists = [values(one), values(other)];
        let size = |list: &Option<Vec<&Value>>| list.as_ref().map_or(1, Vec::len);
        match self.left.checked_sub(lists.iter().map(size).product()) {
            Some(left) => self.left = left,
            None => return false,
        }
        if let [Some(values), Some(others)] = lists {
            return !values.iter().any(|value| others.contains(value));
        }
        let (Some(kinds), Some(others)) = (kinds(one), kinds(other)) else { return false };
        if !kinds.iter().any(|kind| others.contains(kind)) {
            return true;
        }
        kinds == ["object"] && others == ["object"] && self.properties_differ(one, other, depth)
    }

    /// True if the objects cannot have the same value because of a property.
    fn properties_differ(
        &mut self,
        one: &Map<String, Value>,
        other: &Map<String, Value>,
        depth: usize,
    ) -> bool {
        let required = [one, other].into_iter().filter_map(|fields| fields.get("required")?.as_array());
        required.flatten().filter_map(Value::as_str).any(|name| {
            self.left = self.left.saturating_sub(1);
            match (property(one, name), property(other, name)) {
                (Some(one), Some(other)) => self.differ(one, other, depth + 1),
                _ => false,
            }
        })
    }

    /// Returns the target of the reference `text`.
    fn target(&self, text: &str) -> Option<&'a Value> {
        self.whole.pointer(&known_pointer(text)?)
    }
}

/// Returns the schema of the property `name` in an object with these fields.
fn property<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let listed = fields.get("properties").and_then(|listed| listed.get(name));
    let others = || fields.get("additionalProperties").filter(|_| !fields.contains_key("patternProperties"));
    listed.or_else(others)
}

/// Returns the values that a schema with these fields lists.
fn values(fields: &Map<String, Value>) -> Option<Vec<&Value>> {
    match (fields.get("const"), fields.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

/// Returns the types of the values of a schema with these fields.
fn kinds(fields: &Map<String, Value>) -> Option<Vec<&str>> {
    let kind = |value: &Value| match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if let Some(values) = values(fields) {
        return Some(values.into_iter().map(kind).collect());
    }
    let known = |value: &'_ Value| match value.as_str() {
        Some("integer" | "number") => Some("number"),
        Some("null") => Some("null"),
        Some("boolean") => Some("boolean"),
        Some("string") => Some("string"),
        Some("array") => Some("array"),
        Some("object") => Some("object"),
        _ => None,
    };
    match fields.get("type")? {
        Value::Array(kinds) => kinds.iter().map(known).collect(),
        kind => Some(vec![known(kind)?]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_that_may_overlap_are_found() {
        let object = |name: &str, schema: Value| json!({ "type": "object", "properties": { name: schema }, "required": [name] });
        let closed = |name: &str| {
            let mut object = object(name, json!({ "type": "string" }));
            object["additionalProperties"] = json!(false);
            object
        };
        let kind = |name: &str| object("kind", json!({ "const": name }));
        let text = || json!({ "type": "string" });
        for (options, expected) in [
            (json!([{ "type": "string" }, { "type": ["null", "integer"] }, { "enum": [true] }]), false),
            (json!([{ "type": "number" }, { "type": "integer" }]), true),
            (json!([{ "enum": [1, 2] }, { "const": 3 }]), false),
            (json!([{ "enum": [1, 2] }, { "const": 2 }]), true),
            (json!([kind("a"), kind("b"), { "$ref": "#/$defs/c" }]), false),
            (json!([kind("a"), { "$ref": "#/$defs/c" }, { "$ref": "#/$defs/c" }]), true),
            (json!([closed("a"), closed("b")]), false),
            (json!([object("a", text()), object("b", text())]), true),
            (json!([{ "anyOf": [kind("a"), kind("b")] }, { "$ref": "#/$defs/c" }]), false),
            (json!([{ "$ref": "#/$defs/circle" }, { "type": "string" }]), true),
            (json!([{}, false]), false),
            (json!([{}, {}]), true),
        ] {
            let schema = json!({
                "items": { "oneOf": options }, "$defs": { "c": kind("c"), "circle": { "$ref": "#/$defs/circle" } },
            });
            let expected: &[&str] = if expected { &["items"] } else { &[] };
            assert_eq!(overlapping(&schema), expected, "{schema}");
        }
    }
}
