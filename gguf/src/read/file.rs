//! What a file was found to hold.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use build_info::Bytes;

use crate::value::{Scalar, Value};
use crate::{GgmlType, file_type_name};

/// A GGUF file whose header was read and found good.
#[derive(Clone, Debug)]
pub struct GgufFile {
    pub(super) path: PathBuf,
    pub(super) size: Bytes,
    pub(super) version: u32,
    pub(super) metadata: Vec<(String, Value)>,
    pub(super) index: HashMap<String, usize>,
    pub(super) tensors: Vec<TensorInfo>,
    pub(super) data_offset: u64,
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
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size of the whole file.
    pub fn size(&self) -> Bytes {
        self.size
    }

    /// Version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Where the tensors' data begins in the file.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// All metadata in the order of the file.
    pub fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }

    /// What stands under `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|place| &self.metadata[*place].1)
    }

    fn scalar(&self, key: &str) -> Option<&Scalar> {
        match self.get(key)? {
            Value::Scalar(scalar) => Some(scalar),
            Value::Array { .. } => None,
        }
    }

    /// The text under `key`.
    pub fn string(&self, key: &str) -> Option<&str> {
        match self.scalar(key)? {
            Scalar::String(text) => Some(text),
            _ => None,
        }
    }

    /// The whole number under `key`, of any width and sign, when it fits.
    pub fn u32(&self, key: &str) -> Option<u32> {
        match self.scalar(key)? {
            Scalar::Unsigned(value) => u32::try_from(*value).ok(),
            Scalar::Signed(value) => u32::try_from(*value).ok(),
            _ => None,
        }
    }

    /// The floating-point number under `key`.
    pub fn f32(&self, key: &str) -> Option<f32> {
        match self.scalar(key)? {
            Scalar::Float(value) => Some(*value as f32),
            _ => None,
        }
    }

    /// Number of elements of the array under `key`.
    pub fn array_len(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Value::Array { len, .. } => Some(*len),
            Value::Scalar(_) => None,
        }
    }

    /// `general.architecture`: `llama`, `qwen2`, …
    pub fn architecture(&self) -> Option<&str> {
        self.string("general.architecture")
    }

    /// The whole number under the architecture's own `key`: `context_length` for `llama.context_length`.
    pub fn size_of_model(&self, key: &str) -> Option<u32> {
        self.u32(&format!("{}.{key}", self.architecture()?))
    }

    /// The tensors in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Size of all tensors together. No overflow: each was found to lie within the file.
    pub fn total_tensor_bytes(&self) -> Bytes {
        Bytes(self.tensors.iter().map(|tensor| tensor.bytes.0).sum())
    }

    /// Number of weights.
    pub fn parameters(&self) -> u64 {
        let elements = |tensor: &TensorInfo| tensor.dims.iter().product::<u64>();
        self.tensors.iter().fold(0, |sum, tensor| sum.saturating_add(elements(tensor)))
    }

    /// The mixture that the file says it was quantised to, `Q4_K_M`; where it does not say, the type that most of
    /// its bytes have.
    pub fn file_type(&self) -> Option<&'static str> {
        let named = self.u32("general.file_type").and_then(file_type_name);
        named.or_else(|| {
            let bytes_as = |kind: GgmlType| -> u64 {
                self.tensors.iter().filter(|tensor| tensor.kind == kind).map(|tensor| tensor.bytes.0).sum()
            };
            let most = GgmlType::all().max_by_key(|kind| bytes_as(*kind))?;
            (bytes_as(most) > 0).then(|| most.name())
        })
    }

    /// This file's place among the parts of a split model; `None` for a model in one file.
    pub fn split(&self) -> Option<Split> {
        let count = self.u32("split.count").filter(|count| *count > 1)?;
        Some(Split { number: self.u32("split.no").unwrap_or(0), count })
    }
}
