//! Writes calls as a model would, for templates that do not show the calls of earlier answers.

use serde_json::{Map, Value};

use super::format::{CallForm, CallFormat};
use crate::message::ToolCall;

impl CallFormat {
    /// Returns `calls` in this format. `None` if the format does not define the text between a name and its
    /// arguments.
    pub(crate) fn write(&self, calls: &[ToolCall]) -> Option<String> {
        let [open, close] = [&self.openers, &self.closers].map(|marks| marks.concat());
        let list = |one: &dyn Fn(&ToolCall) -> String| {
            let calls: Vec<String> = calls.iter().map(one).collect();
            format!("{open}[{}]{close}", calls.join(", "))
        };
        Some(match &self.form {
            CallForm::Json { name: Some(key), arguments } => list(&|call| {
                let [key, arguments] = [key, arguments].map(|key| Value::from(key.as_str()));
                format!("{{{key}: {}, {arguments}: {}}}", Value::from(call.name()), call.arguments_json())
            }),
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
            CallForm::Named { .. } => return None,
        })
    }
}

/// Returns the arguments of `call`; none if they are not a JSON object.
fn arguments(call: &ToolCall) -> Map<String, Value> {
    serde_json::from_str(&call.arguments_json()).unwrap_or_default()
}
