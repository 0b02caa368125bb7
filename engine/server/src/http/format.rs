//! Field `response_format`: constraints on an answer, in the format of OpenAI's API.

use sampling::Constraint;
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::fields::{Fields, wrong, wrong_key};
use crate::request::Generate;
use crate::schema_field::SchemaField;

/// Constraint on an answer, and the field that contains its schema.
pub(super) type FieldConstraint = (Constraint, &'static str);

/// Takes the constraint out of `fields`.
pub(super) fn take(fields: &mut Fields) -> Result<Option<FieldConstraint>, ApiError> {
    constraint(fields.take("response_format"))
}

/// Sets `format` as the constraint of `generate`.
///
/// # Errors
/// If `generate` already has a constraint.
pub(super) fn apply(format: Option<FieldConstraint>, generate: &mut Generate) -> Result<(), ApiError> {
    let Some((constraint, field)) = format else { return Ok(()) };
    if generate.sampling.constraint.is_some() {
        let what =
            "give only one of response_format, grammar, json_schema and a tool_choice that requires a call";
        return Err(ApiError::field("response_format", what));
    }
    generate.constrain(constraint);
    generate.schema_field = SchemaField::Whole(field);
    Ok(())
}

fn constraint(value: Option<Value>) -> Result<Option<FieldConstraint>, ApiError> {
    const NAME: &str = "response_format";
    let mut format = match value {
        None => return Ok(None),
        Some(Value::Object(format)) => format,
        Some(other) => return Err(wrong(NAME, "use an object", &other)),
    };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        // As in llama-server, an object may have a schema.
        Some("json_object") => match format.remove("schema").unwrap_or_default() {
            Value::Null => Ok(Some((Constraint::JsonSchema(json!({ "type": "object" })), NAME))),
            schema => with_schema(schema, "response_format.schema"),
        },
        Some("json_schema") => {
            const FIELD: &str = "response_format.json_schema.schema";
            let schema = format.get_mut("json_schema").and_then(|within| within.get_mut("schema"));
            match schema.map(Value::take) {
                Some(schema) => with_schema(schema, FIELD),
                None => Err(ApiError::field(FIELD, "is missing: give the schema of the answer")),
            }
        }
        _ => Err(wrong_key(NAME, &Value::Object(format), "type", "use text, json_object or json_schema")),
    }
}

pub(super) fn with_schema(schema: Value, field: &'static str) -> Result<Option<FieldConstraint>, ApiError> {
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(Some((Constraint::JsonSchema(schema), field))),
        other => Err(wrong(field, "use a JSON schema", &other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_formats_are_constraints() {
        let schema = json!({ "type": "object", "properties": { "z": {}, "a": {} } });
        let cases = [
            (json!({ "type": "text" }), Ok(None)),
            (json!({ "type": "json_object" }), Ok(Some(json!({ "type": "object" })))),
            (
                json!({ "type": "json_schema", "json_schema": { "name": "x", "strict": true, "schema": schema } }),
                Ok(Some(schema.clone())),
            ),
            (json!({ "type": "json_object", "schema": schema }), Ok(Some(schema.clone()))),
            (json!({ "type": "json_object", "schema": null }), Ok(Some(json!({ "type": "object" })))),
            (
                json!({ "type": "json_object", "schema": [] }),
                Err("response_format.schema: use a JSON schema, not a list"),
            ),
            (json!("json_object"), Err("response_format: use an object, not \"json_object\"")),
            (json!({}), Err("response_format.type: is missing: use text, json_object or json_schema")),
            (json!({ "type": "xml" }), Err("response_format.type: use text")),
            (json!({ "type": "json_schema" }), Err("response_format.json_schema.schema: is missing")),
            (
                json!({ "type": "json_schema", "json_schema": [] }),
                Err("response_format.json_schema.schema: is missing"),
            ),
            (
                json!({ "type": "json_schema", "json_schema": { "schema": "x" } }),
                Err("response_format.json_schema.schema: use a JSON schema, not \"x\""),
            ),
        ];
        for (value, expected) in cases {
            match (constraint(Some(value.clone())), expected) {
                (Ok(found), Ok(schema)) => {
                    let found = found.map(|(constraint, _)| constraint);
                    assert_eq!(found, schema.map(Constraint::JsonSchema), "{value}");
                }
                (Err(refusal), Err(words)) => {
                    assert!(refusal.message.starts_with(words), "{value}: {refusal:?}")
                }
                (found, _) => panic!("{value}: {found:?}"),
            }
        }
    }
}
