//! What a quantisation makes of each tensor, before it is done.

use std::collections::HashMap;

use build_info::Bytes;
use gguf::{GgmlType, GgufFile};
use llama::quantize::Type;
use serde::{Serialize, Serializer};

/// Types that are garbage without an importance matrix; llama.cpp's `tensor_requires_imatrix`.
const STARVED: [&str; 6] = ["iq3_xxs", "iq2_xxs", "iq2_xs", "iq2_s", "iq1_m", "iq1_s"];

/// What becomes of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QuantizePlan {
    /// Its tensors.
    pub tensors: Vec<PlannedTensor>,
    /// Bytes of the file that are no tensors.
    pub header: Bytes,
}

/// What becomes of a tensor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedTensor {
    /// Its name.
    pub name: String,
    /// Elements per row first.
    pub dims: Vec<u64>,
    /// The type it has.
    #[serde(serialize_with = "name_of")]
    pub from: GgmlType,
    /// The type it will have.
    #[serde(serialize_with = "name_of")]
    pub to: GgmlType,
    /// The size it will have.
    pub bytes: Bytes,
}

fn name_of<S: Serializer>(kind: &GgmlType, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(kind.name())
}

impl QuantizePlan {
    /// What llama.cpp `said` of the tensors in `parts`; those that it did not speak of stay as they are.
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

    /// Bytes that the tensors will take.
    pub fn tensor_bytes(&self) -> Bytes {
        Bytes(self.tensors.iter().map(|tensor| tensor.bytes.0).sum())
    }

    /// Bytes that the file will take, nearly: without what stands between tensors.
    pub fn file_bytes(&self) -> Bytes {
        Bytes(self.tensor_bytes().0.saturating_add(self.header.0))
    }

    /// Bits of each weight, on average.
    pub fn bits_per_weight(&self) -> f64 {
        let elements: u64 = self.tensors.iter().map(PlannedTensor::elements).sum();
        8.0 * self.tensor_bytes().0 as f64 / elements as f64
    }

    /// The first tensor that is quantised already and would be again.
    pub fn quantised_twice(&self) -> Option<&PlannedTensor> {
        self.tensors.iter().find(|tensor| tensor.from.is_quantised() && tensor.from != tensor.to)
    }

    /// The first tensor that would be garbage without an importance matrix, quantising to `kind`.
    pub fn needs_imatrix(&self, kind: Type) -> Option<&PlannedTensor> {
        self.tensors.iter().find(|tensor| tensor.needs_imatrix(kind))
    }
}

impl PlannedTensor {
    /// Its values.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// Whether an importance matrix has a say in it: not in the embeddings and the output, of which none is collected.
    pub fn is_weighed(&self) -> bool {
        let exempt = ["token_embd.weight", "per_layer_token_embd.weight", "output.weight"];
        self.from != self.to && self.to.is_quantised() && !exempt.contains(&self.name.as_str())
    }

    /// Whether it would be garbage without an importance matrix, quantising to `kind`.
    pub(crate) fn needs_imatrix(&self, kind: Type) -> bool {
        // The k-types do well without, but for those of the smallest mixture.
        let starved =
            STARVED.contains(&self.to.name()) || (self.to.name() == "q2_K" && kind.name() == "Q2_K_S");
        self.is_weighed() && starved
    }
}

/// `[   1/  38] blk.0.attn_k.weight - [ 256, …], type = f16, size = … MiB -> … MiB (q4_K)`.
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
            // Stays as it is.
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
