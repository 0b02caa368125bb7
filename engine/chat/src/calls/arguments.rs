//! Arguments of a call, collected one by one.

use serde_json::Value;

use crate::part::{Offered, Part};

/// JSON object of arguments.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    /// The object without its closing bracket.
    json: String,
    is_cut_off: bool,
}

impl Arguments {
    pub(super) fn is_empty(&self) -> bool {
        self.json.is_empty()
    }

    /// Adds the argument `key` with the value `json`.
    pub(super) fn push(&mut self, key: &str, json: &str) {
        let separator = if self.json.is_empty() { "{" } else { ", " };
        self.json.push_str(&format!("{separator}{}: {json}", Value::from(key)));
    }

    /// Adds the argument `key`, whose value was cut off after `json`. A string then has no closing quote.
    pub(super) fn push_cut_off(&mut self, key: &str, json: &str) {
        self.push(key, json.strip_suffix('"').unwrap_or(json));
        self.cut_off();
    }

    /// Leaves the object without its closing bracket, so that no client treats the arguments as complete.
    pub(super) fn cut_off(&mut self) {
        self.is_cut_off = true;
    }

    /// Returns the call to `function` with these arguments.
    pub(super) fn call(self, function: &Offered) -> Vec<Part> {
        let open = if self.json.is_empty() { "{" } else { "" };
        let close = if self.is_cut_off { "" } else { "}" };
        let arguments = format!("{open}{}{close}", self.json);
        vec![Part::Call(function.name.clone()), Part::Arguments(arguments)]
    }
}
