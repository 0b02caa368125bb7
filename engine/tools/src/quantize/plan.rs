//! Plan of a quantisation: the new type and size of each tensor.

use std::collections::HashMap;

use build_info::Bytes;
use gguf::{GgmlType, GgufFile};
use llama::quantize::Type;
use serde::{Serialize, Serializer};

/// Types that lose nearly all accuracy without an importance matrix: llama.cpp's `tensor_requires_imatrix`.
const STARVED: [&str; 6] = ["iq3_xxs", "iq2_xxs", "iq2_xs", "iq2_s", "iq1_m", "iq1_s"];

/// Plan for the quantisation of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QuantizePlan {
    /// Tensors of the model.
    pub tensors: Vec<PlannedTensor>,
    /// Size of the file without its tensors, in bytes.
    pub header: Bytes,
}

/// Plan for the quantisation of one tensor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedTensor {
    /// Name of the tensor.
    pub name: String,
    /// Dimensions; the first is the number of elements in a row.
    pub dims: Vec<u64>,
    /// Current type.
    #[serde(serialize_with = "name_of")]
    pub from: GgmlType,
    /// New type.
    #[serde(serialize_with = "name_of")]
    pub to: GgmlType,
    /// New size in bytes.
    pub bytes: Bytes,
}

fn name_of<S: Serializer>(kind: &GgmlType, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(kind.name())
}

impl QuantizePlan {
    /// Creates the plan from `said`, llama.cpp's output for the tensors in `parts`. Tensors that the output does not
    /// mention keep their type.
    pub(super) fn read(parts: &[GgufFile], said: &str) -> Self {
        let types: HashMap<&str, GgmlType> = said.lines().filter_map(line).collect();
        let planned = |tensor: &gguf::TensorInfo| {
            let to = types.get(tensor.name.as_str()).copied().unwrap_or(tensor.kind);
            let rows: u64 = tensor.dims.iter().skip(1).product();
            let row = to.bytes_of(tensor.dims.first().copied().unwrap_or(1));
            PlannedTensor {
                name: tensor.name.clone(),
                dims: tensor.dims.clone(),
                from: tensor.kind,
                to,
                bytes: row.map_or(tensor.bytes, |row| Bytes(row.saturating_mul(rows))),
            }
        };
        let tensors = parts.iter().flat_map(GgufFile::tensors).map(planned).collect();
        let header = parts.iter().filter_map(|part| part.tensors().first()).map(|first| first.offset).sum();
        Self { tensors, header: Bytes(header) }
    }

    /// Returns the new size of all tensors in bytes.
    pub fn tensor_bytes(&self) -> Bytes {
        Bytes(self.tensors.iter().map(|tensor| tensor.bytes.0).sum())
    }

    /// Returns the approximate size of the new file in bytes, without the padding between tensors.
    pub fn file_bytes(&self) -> Bytes {
        Bytes(self.tensor_bytes().0.saturating_add(self.header.0))
    }

    /// Returns the mean number of bits per weight.
    pub fn bits_per_weight(&self) -> f64 {
        let elements: u64 = self.tensors.iter().map(PlannedTensor::elements).sum();
        8.0 * self.tensor_bytes().0 as f64 / elements as f64
    }

    /// Returns the first tensor that is already quantised and would be quantised to another type.
    pub fn quantised_twice(&self) -> Option<&PlannedTensor> {
        self.tensors.iter().find(|tensor| tensor.from.is_quantised() && tensor.from != tensor.to)
    }

    /// Returns the first tensor that needs an importance matrix if the model is quantised to `kind`.
    pub fn needs_imatrix(&self, kind: Type) -> Option<&PlannedTensor> {
        self.tensors.iter().find(|tensor| tensor.needs_imatrix(kind))
    }
}

impl PlannedTensor {
    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// True if an importance matrix affects the tensor. No importance matrix is collected for the embeddings and the
    /// output.
    pub fn is_weighed(&self) -> bool {
        let exempt = ["token_embd.weight", "per_layer_token_embd.weight", "output.weight"];
        self.from != self.to && self.to.is_quantised() && !exempt.contains(&self.name.as_str())
    }

    /// True if quantising the model to `kind` needs an importance matrix for this tensor, because the tensor would
    /// lose nearly all accuracy without one.
    pub(crate) fn needs_imatrix(&self, kind: Type) -> bool {
        // The k-types are accurate enough without an importance matrix, except in the smallest mixture.
        let starved =
            STARVED.contains(&self.to.name()) || (self.to.name() == "q2_K" && kind.name() == "Q2_K_S");
        self.is_weighed() && starved
    }
}

/// Parses a line such as `[   1/  38] blk.0.attn_k.weight - [ 256, …], type = f16, size = … MiB -> … MiB (q4_K)`.
/// Returns the tensor's name and its new type.
fn line(text: &str) -> Option<(&str, GgmlType)> {
    let (_, rest) = text.strip_prefix('[')?.split_once("] ")?;
    let (name, rest) = rest.split_once(" - [")?;
    let (_, to) = rest.split_once(" -> ")?;
    let kind = to.trim_end().strip_suffix(')')?.rsplit_once('(')?.1;
    Some((name.trim(), GgmlType::from_name(kind)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_llama_cpp() {
        let cases = [
            (
                "[   1/  38] blk.0.attn_k.weight                  - [   256,   128,     1,     1], type =    f16, \
                 size =     0.06 MiB ->     0.02 MiB (q4_K)",
                Some(("blk.0.attn_k.weight", "q4_K")),
            ),
            // A line without a new type means that the tensor does not change.
            ("[   2/  38] blk.0.attn_norm.weight - [ 256, 1, 1, 1], type = f32, size = 0.001 MiB", None),
            ("llama_model_quantize_impl: model size  =     6.56 MiB (16.05 BPW)", None),
            ("[   1/  38] x - [ 256], type = f16, size = 1 MiB -> 1 MiB (new)", None),
            ("[", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(line(text).map(|(name, kind)| (name, kind.name())), expected, "{text}");
        }
    }
}
