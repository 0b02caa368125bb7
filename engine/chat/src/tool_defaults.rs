//! Defaults for the optional keys of tools, for templates that fail without these keys.

use serde_json::{Map, Value, json};

use super::message::Json;

/// Returns `tools` with a default for each missing key that templates may need: descriptions, and schemas of arguments.
/// `None` if no key is missing.
pub(super) fn with_defaults(tools: &Json) -> Option<Json> {
    let given = serde_json::to_value(tools).ok()?;
    let mut filled = given.clone();
    let tools = filled.as_array_mut().into_iter().flatten();
    let functions = tools.filter_map(|tool| tool.get_mut("function")?.as_object_mut());
    for function in functions {
        set_default(function, "description", json!(""));
        set_default(function, "parameters", json!({}));
        if let Some(schema) = function["parameters"].as_object_mut() {
            set_default(schema, "type", json!("object"));
            set_default(schema, "properties", json!({}));
            fill(schema);
        }
    }
    (filled != given).then(|| Json::from(&filled))
}

/// Completes the properties of `schema`. The depth limit of the JSON parser bounds the recursion.
fn fill(schema: &mut Map<String, Value>) {
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten();
    for property in properties.filter_map(|(_, property)| property.as_object_mut()) {
        set_default(property, "description", json!(""));
        // Some templates call themselves for each character of "null".
        if let Some(Value::Array(types)) = property.get_mut("type") {
            types.retain(|kind| kind != "null");
            if let [kind] = types.as_slice() {
                property["type"] = kind.clone();
            }
        }
        fill(property);
    }
}

/// Sets `key` to `value` if the key is missing or null.
fn set_default(object: &mut Map<String, Value>, key: &str, value: Value) {
    let given = object.entry(key).or_insert(Value::Null);
    if given.is_null() {
        *given = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_keys_get_defaults() {
        let tool = |function: Value| json!([{ "type": "function", "function": function }]);
        let empty = json!({ "type": "object", "properties": {} });
        let properties = |properties: Value| json!({ "type": "object", "properties": properties });
        let described =
            |parameters: Value| json!({ "name": "f", "description": "", "parameters": parameters });
        for (given, expected) in [
            (json!({ "name": "f" }), Some(described(empty.clone()))),
            (json!({ "name": "f", "description": null, "parameters": null }), Some(described(empty.clone()))),
            (described(json!({})), Some(described(empty.clone()))),
            (described(empty), None),
            (
                described(properties(json!({ "a": { "type": ["string", "null"] }, "b": true }))),
                Some(described(properties(
                    json!({ "a": { "type": "string", "description": "" }, "b": true }),
                ))),
            ),
            (
                described(properties(json!({ "a": { "type": ["string", "integer"], "description": "d" } }))),
                None,
            ),
            (
                described(properties(json!({ "a": { "description": "d", "properties": { "b": {} } } }))),
                Some(described(properties(
                    json!({ "a": { "description": "d", "properties": { "b": { "description": "" } } } }),
                ))),
            ),
        ] {
            let found = with_defaults(&Json::from(&tool(given.clone())));
            let found = found.map(|tools| serde_json::to_value(tools).expect("JSON"));
            assert_eq!(found, expected.map(tool), "{given}");
        }
        assert!(with_defaults(&Json::from(&json!([7, { "function": 7 }, {}]))).is_none());
    }
}
