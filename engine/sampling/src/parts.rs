//! Parts of a JSON schema: the schemas in it, with their paths.

use serde_json::{Map, Value};

/// Keywords whose value is a schema.
const SCHEMAS: [&str; 3] = ["items", "additionalItems", "additionalProperties"];

/// Keywords whose value is a list of schemas. `items` may also be a list.
const LISTS: [&str; 5] = ["anyOf", "oneOf", "allOf", "prefixItems", "items"];

/// Keywords whose value is an object with schemas.
const MAPS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// Schema within another schema.
pub struct SubSchema<'a> {
    /// Path, such as `properties.list`.
    pub path: String,
    /// JSON pointer.
    pub pointer: String,
    pub schema: &'a Value,
}

/// Returns the schemas in `schema`, inner schemas first. The last one is `schema` itself.
pub fn parts(schema: &Value) -> Vec<SubSchema<'_>> {
    fn collect<'a>(schema: &'a Value, path: String, pointer: String, parts: &mut Vec<SubSchema<'a>>) {
        if let Value::Object(fields) = schema {
            for (key, place) in fields.iter().flat_map(|(key, value)| places(key, value)) {
                if let Some(within) = fields.get(key).and_then(|value| value.pointer(&place.pointer)) {
                    let pointer = format!("{pointer}/{key}{}", place.pointer);
                    collect(within, join(&path, &place.path), pointer, parts);
                }
            }
        }
        parts.push(SubSchema { path, pointer, schema });
    }
    let mut parts = Vec::new();
    collect(schema, String::new(), String::new(), &mut parts);
    parts
}

/// Returns the total length of the pointers of all schemas in `schema`.
pub fn pointer_bytes(schema: &Value) -> usize {
    fn add(schema: &Value, above: usize) -> usize {
        let Value::Object(fields) = schema else { return above };
        let places = fields.iter().flat_map(|(key, value)| places(key, value));
        let within = places.filter_map(|(key, place)| {
            let within = fields.get(key)?.pointer(&place.pointer)?;
            Some(add(within, above + 1 + key.len() + place.pointer.len()))
        });
        above + within.sum::<usize>()
    }
    add(schema, 0)
}

/// Calls `change` with the fields and the path of each schema in `schema`, which is at `path`. Outer schemas come first.
pub fn visit(schema: &mut Value, path: &str, change: &mut dyn FnMut(&mut Map<String, Value>, &str)) {
    let Value::Object(fields) = schema else { return };
    change(fields, path);
    for (key, value) in fields.iter_mut() {
        for (_, place) in places(key, value) {
            if let Some(within) = value.pointer_mut(&place.pointer) {
                visit(within, &join(path, &place.path), change);
            }
        }
    }
}

/// Place of a schema within the value of a keyword.
pub struct SchemaPlace {
    /// JSON pointer from the keyword's value.
    pub pointer: String,
    /// Path from the schema that has the keyword.
    pub path: String,
}

/// Returns the places of the schemas in the value of keyword `key`.
pub fn places<'a>(key: &'a str, value: &Value) -> Vec<(&'a str, SchemaPlace)> {
    let place = |pointer: String, path: String| (key, SchemaPlace { pointer, path });
    match value {
        Value::Array(list) if LISTS.contains(&key) => {
            (0..list.len()).map(|at| place(format!("/{at}"), format!("{key}[{at}]"))).collect()
        }
        Value::Object(map) if MAPS.contains(&key) => {
            map.keys().map(|name| place(format!("/{}", escaped(name)), format!("{key}.{name}"))).collect()
        }
        Value::Object(_) | Value::Bool(_) if SCHEMAS.contains(&key) => {
            vec![place(String::new(), key.to_string())]
        }
        _ => Vec::new(),
    }
}

/// Returns `name` as a segment of a JSON pointer (RFC 6901).
pub fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

pub fn join(path: &str, rest: &str) -> String {
    if path.is_empty() { rest.to_string() } else { format!("{path}.{rest}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn inner_schemas_come_first() {
        let schema = json!({ "properties": { "a/b": { "items": [true] } }, "enum": [{ "items": {} }] });
        let paths: Vec<String> = parts(&schema).into_iter().map(|part| part.path).collect();
        assert_eq!(paths, ["properties.a/b.items[0]", "properties.a/b", ""]);
        let pointers: Vec<String> = parts(&schema).into_iter().map(|part| part.pointer).collect();
        assert_eq!(pointers, ["/properties/a~1b/items/0", "/properties/a~1b", ""]);
        assert_eq!(pointer_bytes(&schema), pointers.concat().len());
    }
}
