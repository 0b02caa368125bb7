//! Checks of floating-point hyperparameters and of enumerations that are stored as text.

use super::hyperparameters::{CheckedModel, text};
use crate::read::ReadError;
use crate::value::{Scalar, Value};

/// Names of RoPE scaling types, `LLAMA_ROPE_SCALING_TYPES`.
const ROPE_SCALING: [&str; 4] = ["none", "linear", "yarn", "longrope"];

pub(super) fn check(model: &CheckedModel<'_>) -> Result<(), ReadError> {
    let prefix = model.key("");
    let mut floats: Vec<(&str, f64)> = model
        .first
        .keys()
        .filter_map(|(key, value)| match value {
            Value::Scalar(Scalar::Float(value)) => Some((key, *value)),
            _ => None,
        })
        .filter(|(key, _)| key.starts_with(&prefix))
        .collect();
    // The keys are sorted, so that every run reports the same error regardless of the map's order.
    floats.sort_by_key(|(key, _)| *key);
    for (key, value) in floats {
        let is_epsilon = key.ends_with("epsilon");
        let is_rope = key[prefix.len()..].starts_with("rope.");
        let is_base = key.contains("rope.freq_base");
        if (is_epsilon || is_base) && !(value.is_finite() && value >= 0.0) {
            return Err(model.wrong(key, value, "finite and at least 0"));
        }
        if value.is_nan() || is_rope && value.is_infinite() {
            return Err(model.wrong(key, value, "a finite number"));
        }
    }
    let key = model.key("rope.scaling.type");
    match text(model.first, &key) {
        Some(found) if !ROPE_SCALING.contains(&found) => {
            let allowed = format!("one of {}", ROPE_SCALING.join(", "));
            Err(model.wrong(&key, format!("{:?}", shortened(found)), allowed))
        }
        _ => Ok(()),
    }
}

/// Returns the beginning of a text from a file, because the text may be long.
pub(super) fn shortened(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}
