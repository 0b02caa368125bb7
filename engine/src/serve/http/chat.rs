//! `POST /v1/chat/completions`

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::App;
use super::beside::return_tokens;
use super::completions::{choices, include_usage};
use super::other::is_called;
use super::out::{Asked, Shape, respond};
use crate::sampling::Constraint;
use crate::serve::conversation::Conversation;
use crate::serve::fields::{Fields, wrong};
use crate::serve::logprobs::MOST;
use crate::serve::refusal::Refusal;
use crate::serve::request::{Defaults, Generate, Prompt};
use crate::serve::server::Server;

/// `POST /v1/chat/completions`
pub async fn chat(State(front): App, request: Request) -> Response {
    respond(&front, request, Shape::Chat, read).await
}

/// The request. Fields that nobody knows are ignored: clients send many.
fn read(server: &Server, fields: &mut Fields) -> Result<Asked, Refusal> {
    server.template()?;
    take(fields, &server.name, &server.current().defaults)
}

/// The same of a server whose model is called `name`.
pub(super) fn take(fields: &mut Fields, name: &str, defaults: &Defaults) -> Result<Asked, Refusal> {
    if let Some(model) = fields.text("model")? {
        is_called(name, &model)?;
    }
    let choices = choices(fields)?;
    let logprobs = logprobs(fields)?;
    let include_usage = include_usage(fields)?;
    let return_tokens = return_tokens(fields)?;
    let messages = fields.take("messages");
    let messages =
        messages.ok_or_else(|| Refusal::field("messages", "is missing: the conversation to go on with"))?;
    let prompt = Prompt::Messages(Conversation::take(fields, messages)?);
    // Its new name, which goes before the old one.
    let max_tokens = fields.whole("max_completion_tokens", 1..=u32::MAX)?;
    let format = response_format(fields.take("response_format"))?;
    let mut generate = Generate::take(fields, prompt, defaults)?;
    generate.max_tokens = max_tokens.unwrap_or(generate.max_tokens);
    if let Some(format) = format {
        if generate.sampling.constraint.is_some() {
            let what = "give it, grammar, json_schema or a tool_choice that demands a call, not several";
            return Err(Refusal::field("response_format", what));
        }
        generate.sampling.constraint = Some(format);
    }
    generate.logprobs = logprobs;
    Ok(Asked { generate, choices, include_usage, return_tokens })
}

/// How many alternatives are told of each token, where log-probabilities are asked for.
fn logprobs(fields: &mut Fields) -> Result<Option<u32>, Refusal> {
    let wanted = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.whole("top_logprobs", 0..=MOST)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(Refusal::field("top_logprobs", "give \"logprobs\": true with it")),
    }
}

/// What the answer must be like.
fn response_format(value: Option<Value>) -> Result<Option<Constraint>, Refusal> {
    const NAME: &str = "response_format";
    let mut format = match value {
        None => return Ok(None),
        Some(Value::Object(format)) => format,
        Some(other) => return Err(wrong(NAME, "use an object", &other)),
    };
    let kind = format.remove("type").unwrap_or_default();
    match kind.as_str() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Constraint::JsonSchema(json!({ "type": "object" })))),
        Some("json_schema") => {
            let schema = format.get_mut("json_schema").and_then(|within| within.get_mut("schema"));
            match schema.map(Value::take) {
                Some(schema @ (Value::Object(_) | Value::Bool(_))) => {
                    Ok(Some(Constraint::JsonSchema(schema)))
                }
                Some(other) => Err(wrong("response_format.json_schema.schema", "use a JSON schema", &other)),
                None => Err(Refusal::field(
                    "response_format.json_schema.schema",
                    "is missing: what the answer must be like",
                )),
            }
        }
        _ => Err(wrong("response_format.type", "use text, json_object or json_schema", &kind)),
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
            (json!("json_object"), Err("response_format: use an object, not \"json_object\"")),
            (json!({}), Err("response_format.type: use text, json_object or json_schema, not null")),
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
            match (response_format(Some(value.clone())), expected) {
                (Ok(found), Ok(schema)) => assert_eq!(found, schema.map(Constraint::JsonSchema), "{value}"),
                (Err(refusal), Err(words)) => {
                    assert!(refusal.message.starts_with(words), "{value}: {refusal:?}")
                }
                (found, _) => panic!("{value}: {found:?}"),
            }
        }
    }
}
