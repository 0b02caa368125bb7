//! Writes calls as a model would, for templates that do not show the calls of earlier answers.

use serde_json::{Map, Value};

use super::format::{CallForm, CallFormat};
use crate::message::ToolCall;

impl CallFormat {
    /// Returns `calls` in this format.
    pub(crate) fn write(&self, calls: &[ToolCall]) -> String {
        let [open, close] = [&self.openers, &self.closers].map(|marks| marks.concat());
        let open = match &self.form {
            CallForm::Named { open: mark, .. } => open + mark,
            _ => open,
        };
        let object = |call: &ToolCall, name: &str, arguments: &str| {
            let [name, arguments] = [name, arguments].map(Value::from);
            format!("{{{name}: {}, {arguments}: {}}}", Value::from(call.name()), call.arguments_json())
        };
        let list = |one: &dyn Fn(&ToolCall) -> String| {
            let calls: Vec<String> = calls.iter().map(one).collect();
            format!("{open}[{}]{close}", calls.join(", "))
        };
        match &self.form {
            CallForm::Json { name: Some(key), arguments } => list(&|call| object(call, key, arguments)),
            // The text between a name and its arguments is unknown, but the reader also reads a list of objects.
            CallForm::Named { .. } => list(&|call| object(call, "name", "arguments")),
            CallForm::Json { name: None, .. } => {
                list(&|call| format!("{{{}: {}}}", Value::from(call.name()), call.arguments_json()))
            }
            CallForm::Python => list(&|call| {
                let arguments = arguments(call);
                let arguments: Vec<String> =
                    arguments.iter().map(|(key, value)| format!("{key}={value}")).collect();
                format!("{}({})", call.name(), arguments.join(", "))
            }),
            CallForm::Tags(tags) => calls
                .iter()
                .map(|call| {
                    let mut text = format!("{open}{}{}{}\n", tags.open, call.name(), tags.after_name);
                    for (key, value) in arguments(call) {
                        let value = value.as_str().map(str::to_string).unwrap_or_else(|| value.to_string());
                        text += &format!("{}{key}{}{value}{}\n", tags.key, tags.value, tags.after_value);
                    }
                    text + &tags.close + &close
                })
                .collect(),
        }
    }
}

/// Returns the arguments of `call`; none if they are not a JSON object.
fn arguments(call: &ToolCall) -> Map<String, Value> {
    serde_json::from_str(&call.arguments_json()).unwrap_or_default()
}
