//! Simplification of JSON schemas. llguidance refuses a schema with a keyword or a format that it does not know.
//! According to JSON Schema, unknown keywords and formats are annotations, and client libraries add many of them
//! automatically. Therefore, this module replaces such a keyword with keywords that llguidance knows, or removes and
//! reports it.

use serde_json::{Map, Value, json};

use crate::parts::{join, parts, places, visit};
use crate::patterns::Patterns;
use crate::{numbers, one_of, references};

/// Formats of strings that llguidance enforces (`lookup_format` in llguidance 1.9).
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Keywords from any version of JSON Schema that restrict a value but that llguidance does not know.
const UNSUPPORTED: [&str; 15] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
];

/// Keywords that do not restrict a value and that llguidance does not know.
const ANNOTATIONS: [&str; 5] =
    ["deprecated", "$vocabulary", "$dynamicAnchor", "$recursiveAnchor", "contentSchema"];

/// Schema that llguidance can use.
#[derive(Clone, Debug, PartialEq)]
pub struct Simplified {
    /// The schema without the ignored keywords.
    pub schema: Value,
    /// Paths of the keywords that are not enforced, such as `properties.list.uniqueItems`.
    pub ignored: Vec<String>,
}

/// Returns `schema` in the form that llguidance compiles.
///
/// # Errors
/// The path of a reference that never ends, if no finite text matches `schema` because of it.
pub fn prepared(schema: &Value) -> Result<Simplified, String> {
    let Simplified { mut schema, mut ignored } = simplified(schema);
    references::resolve(&mut schema);
    if let Some(path) = references::remove_endless(&mut schema) {
        return Err(path);
    }
    close_objects(&mut schema);
    ignored.extend(one_of::overlapping(&schema).iter().map(|path| join(path, "oneOf")));
    Ok(Simplified { schema, ignored })
}

/// Simplifies `schema`.
fn simplified(schema: &Value) -> Simplified {
    let mut result = Simplified { schema: schema.clone(), ignored: Vec::new() };
    simplify(&mut result.schema, "", &mut result.ignored);
    let mut patterns = Patterns::default();
    visit(&mut result.schema, "", &mut |fields, path| {
        numbers::replace(fields);
        result.ignored.extend(patterns.replace(fields).into_iter().map(|key| join(path, key)));
    });
    result
}

/// Closes the objects in `schema` that list properties and do not say whether they may have others, as llama.cpp does.
/// A small model could otherwise add properties until the answer is cut off. Every answer still matches the schema.
///
/// A schema with `allOf` stays open, because the parts of an intersection must allow each other's properties.
fn close_objects(schema: &mut Value) {
    if parts(schema).iter().all(|part| part.schema.get("allOf").is_none()) {
        visit(schema, "", &mut |fields, _| close_one(fields));
    }
}

fn close_one(fields: &mut Map<String, Value>) {
    const OPENED_BY: [&str; 5] = ["additionalProperties", "patternProperties", "anyOf", "oneOf", "$ref"];
    let listed = fields.get("properties").and_then(Value::as_object).filter(|listed| !listed.is_empty());
    let required = fields.get("required").and_then(Value::as_array).into_iter().flatten();
    let lists_all =
        listed.is_some_and(|listed| required.filter_map(Value::as_str).all(|name| listed.contains_key(name)));
    if lists_all && OPENED_BY.iter().all(|key| !fields.contains_key(*key)) {
        fields.insert("additionalProperties".to_string(), Value::Bool(false));
    }
}

/// Simplifies `schema`, which is at `path`. The recursion is bounded by the depth limit of the JSON parser.
fn simplify(schema: &mut Value, path: &str, ignored: &mut Vec<String>) {
    let Value::Object(fields) = schema else { return };
    // No value matches `not` of a schema that every value matches; zod writes z.never() in this way.
    if fields.get("not").is_some_and(is_true) {
        *schema = Value::Bool(false);
        return;
    }
    allow_null(fields);
    restrict_names(fields, path, ignored);
    close(fields);
    for key in ANNOTATIONS {
        fields.shift_remove(key);
    }
    for key in UNSUPPORTED {
        match fields.shift_remove(key) {
            None => {}
            // These values do not restrict anything.
            Some(value) if key == "not" && value == false => {}
            Some(value) if key == "uniqueItems" && value == false => {}
            Some(value) if key.starts_with("unevaluated") && is_true(&value) => {}
            Some(_) => ignored.push(join(path, key)),
        }
    }
    let is_unknown = |format: &Value| format.as_str().is_some_and(|name| !FORMATS.contains(&name));
    if fields.get("format").is_some_and(is_unknown) {
        fields.shift_remove("format");
        // The formats of numbers (int32, double) belong to OpenAPI and only say how a number is stored.
        if may_be_text(fields) {
            ignored.push(join(path, "format"));
        }
    }
    for (key, value) in fields.iter_mut() {
        for (_, place) in places(key, value) {
            if let Some(within) = value.pointer_mut(&place.pointer) {
                simplify(within, &join(path, &place.path), ignored);
            }
        }
    }
}

/// True if every value matches `schema`.
fn is_true(schema: &Value) -> bool {
    match schema {
        Value::Bool(value) => *value,
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// True if a text may match a schema with these fields.
fn may_be_text(fields: &Map<String, Value>) -> bool {
    match fields.get("type") {
        Some(Value::String(kind)) => kind == "string",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "string"),
        _ => true,
    }
}

/// Replaces OpenAPI's `nullable`.
fn allow_null(fields: &mut Map<String, Value>) {
    if fields.shift_remove("nullable").is_none_or(|nullable| nullable != true) {
        return;
    }
    if let Some(Value::String(kind)) = fields.get("type") {
        fields.insert("type".to_string(), json!([kind, "null"]));
    }
    if let Some(Value::Array(values)) = fields.get_mut("enum")
        && !values.contains(&Value::Null)
    {
        values.push(Value::Null);
    }
}

/// Replaces `propertyNames`, which zod writes for records.
fn restrict_names(fields: &mut Map<String, Value>, path: &str, ignored: &mut Vec<String>) {
    let Some(names) = fields.shift_remove("propertyNames") else { return };
    // Every name is a text.
    let says_nothing = |names: &Map<String, Value>| {
        names.iter().all(|(key, value)| key == "type" && value == "string" || key.starts_with('$'))
    };
    let values = fields.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    let is_open = !fields.contains_key("patternProperties") && !fields.contains_key("properties");
    match &names {
        names if is_true(names) => {}
        Value::Object(names) if says_nothing(names) => {}
        Value::Object(names) if is_open && names.contains_key("enum") => {
            let texts = names["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let properties: Map<String, Value> =
                texts.map(|name| (name.to_string(), values.clone())).collect();
            fields.insert("properties".to_string(), Value::Object(properties));
            fields.insert("additionalProperties".to_string(), Value::Bool(false));
        }
        Value::Object(names) if is_open && names.get("pattern").is_some_and(Value::is_string) => {
            let pattern = names["pattern"].as_str().unwrap_or_default().to_string();
            fields.insert("patternProperties".to_string(), json!({ pattern: values }));
            fields.insert("additionalProperties".to_string(), Value::Bool(false));
        }
        _ => ignored.push(join(path, "propertyNames")),
    }
}

/// Replaces `unevaluatedProperties: false` in a schema without other schemas that evaluate properties.
fn close(fields: &mut Map<String, Value>) {
    const OTHERS: [&str; 6] = ["anyOf", "oneOf", "allOf", "$ref", "if", "dependentSchemas"];
    let is_closed = fields.get("unevaluatedProperties").is_some_and(|value| *value == false);
    if is_closed && !OTHERS.iter().any(|key| fields.contains_key(*key)) {
        fields.shift_remove("unevaluatedProperties");
        fields.entry("additionalProperties").or_insert(Value::Bool(false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(schema: Value, expected: Value, ignored: &[&str]) {
        let found = simplified(&schema);
        assert_eq!(found.schema, expected, "{schema}");
        assert_eq!(found.ignored, ignored, "{schema}");
    }

    #[test]
    fn an_object_that_lists_its_properties_has_no_others() {
        let object = |more: Value| {
            let mut object = json!({ "properties": { "a": { "type": "null" } } });
            object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            object
        };
        let closed = object(json!({ "additionalProperties": false }));
        for (schema, expected) in [
            (object(json!({})), closed.clone()),
            (json!({ "items": object(json!({})) }), json!({ "items": closed })),
            (json!({ "$defs": { "x": object(json!({})) } }), json!({ "$defs": { "x": closed } })),
            (json!({ "anyOf": [object(json!({})), true] }), json!({ "anyOf": [closed, true] })),
        ] {
            let mut found = schema.clone();
            close_objects(&mut found);
            assert_eq!(found, expected, "{schema}");
        }
        for open in [
            json!({ "type": "object" }),
            json!({ "properties": {} }),
            object(json!({ "additionalProperties": true })),
            object(json!({ "patternProperties": { "^b": true } })),
            object(json!({ "required": ["b"] })),
            object(json!({ "anyOf": [{ "required": ["a"] }] })),
            json!({ "allOf": [object(json!({})), { "properties": { "b": true } }] }),
        ] {
            let mut found = open.clone();
            close_objects(&mut found);
            assert_eq!(found, open);
        }
    }

    #[test]
    fn what_says_nothing_is_left_out_silently() {
        for says_nothing in [
            json!({ "propertyNames": { "type": "string" } }),
            json!({ "propertyNames": true }),
            json!({ "uniqueItems": false }),
            json!({ "not": false }),
            json!({ "unevaluatedProperties": {} }),
            json!({ "deprecated": true }),
            json!({ "nullable": false }),
        ] {
            check(says_nothing, json!({}), &[]);
        }
        check(json!({ "type": "integer", "format": "int32" }), json!({ "type": "integer" }), &[]);
    }

    #[test]
    fn what_cannot_be_enforced_is_reported_with_its_path() {
        let inner =
            json!({ "type": "array", "uniqueItems": true, "items": { "type": "string", "format": "path" } });
        let simple = json!({ "type": "array", "items": { "type": "string" } });
        check(
            json!({ "properties": { "a.b/c": inner }, "anyOf": [true, { "not": { "const": 1 } }] }),
            json!({ "properties": { "a.b/c": simple }, "anyOf": [true, {}] }),
            &["properties.a.b/c.uniqueItems", "properties.a.b/c.items.format", "anyOf[1].not"],
        );
        check(json!({ "propertyNames": { "maxLength": 3 } }), json!({}), &["propertyNames"]);
        // A property may have the name of a keyword, and a value may look like a schema.
        let names = json!({ "properties": { "not": { "const": { "not": {} } }, "format": true } });
        check(names.clone(), names, &[]);
    }

    #[test]
    fn what_can_be_enforced_otherwise_is_replaced() {
        check(json!({ "items": { "not": {} } }), json!({ "items": false }), &[]);
        check(
            json!({ "propertyNames": { "enum": ["a", "b"] }, "additionalProperties": { "type": "null" } }),
            json!({ "properties": { "a": { "type": "null" }, "b": { "type": "null" } }, "additionalProperties": false }),
            &[],
        );
        check(
            json!({ "propertyNames": { "pattern": "^a" } }),
            json!({ "patternProperties": { "^a": true }, "additionalProperties": false }),
            &[],
        );
        check(
            json!({ "properties": {}, "unevaluatedProperties": false }),
            json!({ "properties": {}, "additionalProperties": false }),
            &[],
        );
        check(
            json!({ "type": "string", "enum": ["a"], "nullable": true }),
            json!({ "type": ["string", "null"], "enum": ["a", null] }),
            &[],
        );
    }
}
