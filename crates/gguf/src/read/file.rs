//! Contents of a GGUF file.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use build_info::Bytes;

use crate::ggml_type::GgmlType;
use crate::value::{Scalar, Value, ValueType};

/// GGUF file whose header was read and validated.
#[derive(Clone, Debug)]
pub struct GgufFile {
    pub(super) path: PathBuf,
    pub(super) metadata: HashMap<String, Value>,
    pub(super) types: HashMap<String, ValueType>,
    pub(super) tensors: Vec<TensorInfo>,
}

/// Tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name of the tensor.
    pub name: String,
    /// Dimensions, at most four; the number of elements per row comes first.
    pub dims: Vec<u64>,
    /// Type of the tensor's data.
    pub kind: GgmlType,
    /// Size of the tensor's data.
    pub bytes: Bytes,
    /// Offset of the tensor's data in the file, in bytes.
    pub offset: u64,
    /// Position of the offset field in the header, for errors.
    pub(super) offset_at: u64,
}

/// Position of a file among the parts of a split model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Number of the part, from 0.
    pub number: u32,
    /// Number of parts.
    pub count: u32,
}

impl GgufFile {
    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns all keys with their values, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// Returns the type of the value of `key` in the file; [`get`](Self::get) merges types of different widths.
    pub fn value_type(&self, key: &str) -> Option<ValueType> {
        self.types.get(key).copied()
    }

    /// Returns the integer value of `key`, of any width and sign, if the value fits into 32 bits.
    pub fn u32(&self, key: &str) -> Option<u32> {
        match self.get(key)? {
            Value::Scalar(Scalar::Unsigned(value)) => u32::try_from(*value).ok(),
            Value::Scalar(Scalar::Signed(value)) => u32::try_from(*value).ok(),
            _ => None,
        }
    }

    /// Returns the tensors in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Returns the total size of all tensors. The sum cannot overflow, because each tensor lies within the file.
    pub fn total_tensor_bytes(&self) -> Bytes {
        Bytes(self.tensors.iter().map(|tensor| tensor.bytes.0).sum())
    }

    /// Returns this file's position among the parts of a split model; `None` if the model has one file.
    pub fn split(&self) -> Option<Split> {
        let count = self.u32("split.count").filter(|count| *count > 1)?;
        Some(Split { number: self.u32("split.no").unwrap_or(0), count })
    }
}
