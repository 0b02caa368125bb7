//! Model under validation, and its hyperparameters.

use std::fmt::Display;

use crate::read::{GgufFile, ReadError};
use crate::value::{Scalar, Value, ValueType};

/// Maximum number of layers, `LLAMA_MAX_LAYERS`.
pub(super) const MOST_LAYERS: i128 = 512;

/// Returns the text under `key`.
pub(super) fn text<'a>(file: &'a GgufFile, key: &str) -> Option<&'a str> {
    match file.get(key) {
        Some(Value::Scalar(Scalar::String(text))) => Some(text),
        _ => None,
    }
}

/// Model under validation.
pub(super) struct CheckedModel<'a> {
    pub(super) parts: &'a [&'a GgufFile],
    pub(super) first: &'a GgufFile,
    pub(super) architecture: &'a str,
}

impl<'a> CheckedModel<'a> {
    pub(super) fn new(parts: &'a [&'a GgufFile]) -> Option<Self> {
        let first = parts.first()?;
        Some(Self { parts, first, architecture: text(first, "general.architecture").unwrap_or_default() })
    }

    /// True if the architecture is in `list`.
    pub(super) fn is_one_of(&self, list: &[&str]) -> bool {
        list.contains(&self.architecture)
    }

    /// Returns the key of a hyperparameter: `llama.block_count` for `block_count`.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// Returns a hyperparameter that is a single integer.
    pub(super) fn number(&self, name: &str) -> Option<i128> {
        match self.first.get(&self.key(name))? {
            Value::Scalar(Scalar::Unsigned(value)) => Some(i128::from(*value)),
            Value::Scalar(Scalar::Signed(value)) => Some(i128::from(*value)),
            _ => None,
        }
    }

    /// Returns a hyperparameter that is an integer, or a list with one integer per layer.
    pub(super) fn per_layer(&self, name: &str) -> Result<Option<PerLayer>, ReadError> {
        let key = self.key(name);
        if let Some(number) = self.number(name) {
            return Ok(Some(PerLayer(vec![number])));
        }
        // llama.cpp rejects longer lists.
        match self.first.get(&key) {
            Some(Value::Array { len, .. }) if i128::from(*len) <= MOST_LAYERS => {
                Ok(self.first.integers(&key)?.filter(|values| !values.is_empty()).map(PerLayer))
            }
            _ => Ok(None),
        }
    }

    /// Returns an error that states `key`, the value found, and the allowed values.
    pub(super) fn wrong(&self, key: &str, found: impl Display, allowed: impl Display) -> ReadError {
        self.refuse(format!("{key} is {found}, but must be {allowed}"))
    }

    /// Returns an error for the whole model.
    pub(super) fn refuse(&self, what: String) -> ReadError {
        ReadError::Unusable {
            path: self.first.path().to_path_buf(),
            what,
            mend: "download or convert the model again",
        }
    }

    /// Checks the type of `split.no` in the later parts, because llama.cpp reads this value without checking its
    /// type.
    pub(super) fn check_parts(&self) -> Result<(), ReadError> {
        for part in &self.parts[1..] {
            if part.value_type("split.no") != Some(ValueType::U16) {
                return Err(ReadError::Unusable {
                    path: part.path().to_path_buf(),
                    what: "split.no is missing or not of type u16".to_string(),
                    mend: "download or split the model again",
                });
            }
        }
        Ok(())
    }
}

/// Hyperparameter with one value for all layers, or one per layer.
pub(super) struct PerLayer(Vec<i128>);

impl PerLayer {
    /// Returns the value for `layer`; for a layer beyond the list, the last value.
    pub(super) fn at(&self, layer: usize) -> i128 {
        self.0.get(layer).or(self.0.last()).copied().unwrap_or(0)
    }

    pub(super) fn values(&self) -> &[i128] {
        &self.0
    }

    pub(super) fn largest(&self) -> i128 {
        self.0.iter().copied().max().unwrap_or(0)
    }
}
