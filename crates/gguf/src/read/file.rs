//! What a file was found to hold.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use build_info::Bytes;

use crate::ggml_type::GgmlType;
use crate::value::{Scalar, Value, ValueType};

/// A GGUF file whose header was read and found good.
#[derive(Clone, Debug)]
pub struct GgufFile {
    pub(super) path: PathBuf,
    pub(super) metadata: HashMap<String, Value>,
    pub(super) types: HashMap<String, ValueType>,
    pub(super) tensors: Vec<TensorInfo>,
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Elements per row first, at most four.
    pub dims: Vec<u64>,
    /// Type of its data.
    pub kind: GgmlType,
    /// Size of its data.
    pub bytes: Bytes,
    /// Where its data begins in the file.
    pub offset: u64,
    /// Where its offset stands in the header, for errors.
    pub(super) offset_at: u64,
}

/// The place of a file among those that a model was split into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Its number, from 0.
    pub number: u32,
    /// How many there are.
    pub count: u32,
}

impl GgufFile {
    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All keys with their values, in no order.
    pub fn keys(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// What stands under `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// The type of what stands under `key`, as the file has it: [`get`](Self::get) makes one of several widths.
    pub fn value_type(&self, key: &str) -> Option<ValueType> {
        self.types.get(key).copied()
    }

    /// The whole number under `key`, of any width and sign, when it fits.
    pub fn u32(&self, key: &str) -> Option<u32> {
        match self.get(key)? {
            Value::Scalar(Scalar::Unsigned(value)) => u32::try_from(*value).ok(),
            Value::Scalar(Scalar::Signed(value)) => u32::try_from(*value).ok(),
            _ => None,
        }
    }

    /// The tensors in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Size of all tensors together. No overflow: each was found to lie within the file.
    pub fn total_tensor_bytes(&self) -> Bytes {
        Bytes(self.tensors.iter().map(|tensor| tensor.bytes.0).sum())
    }

    /// This file's place among the parts of a split model; `None` for a model in one file.
    pub fn split(&self) -> Option<Split> {
        let count = self.u32("split.count").filter(|count| *count > 1)?;
        Some(Split { number: self.u32("split.no").unwrap_or(0), count })
    }
}
