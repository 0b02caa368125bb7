//! Importance matrices: how large the inputs of each column of each matrix are, so that a quantiser knows where an error
//! costs most.
//!
//! Files are llama-imatrix's: GGUF, with `NAME.in_sum2` (sums of squares) and `NAME.counts` for each matrix NAME, and its
//! older format, which is only read.

mod collect;
mod file;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use build_info::Bytes;
pub use collect::{Collected, collect};
use gguf::GgufFile;

use crate::error::{Error, Result};
use crate::quantize::{Plan, Planned, Type};

/// Sums of squares of a matrix's inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// One for each column; of a matrix for each expert, one after the other.
    pub sums: Vec<f32>,
    /// How many inputs they are of; one number, or one for each expert.
    pub counts: Vec<f32>,
}

impl Entry {
    /// The mean squares that a quantiser weighs errors by. An expert that no token came to counts evenly.
    pub fn means(&self) -> Vec<f32> {
        let row = self.sums.len() / self.counts.len().max(1);
        let mean = |(index, sum): (usize, &f32)| match self.counts.get(index / row.max(1)) {
            Some(count) if *count > 0.0 => sum / count,
            _ => 1.0,
        };
        self.sums.iter().enumerate().map(mean).collect()
    }
}

/// An importance matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Imatrix {
    /// The file's name.
    pub file: String,
    /// Where it lies.
    pub path: PathBuf,
    /// By the names of the matrices.
    pub entries: BTreeMap<String, Entry>,
    /// What it was collected from.
    pub datasets: Vec<String>,
    /// Chunks of that.
    pub chunks: u32,
}

/// About the size of the file of an importance matrix of the model at `path`: a float for each column of each matrix, of
/// experts for each of them.
///
/// # Errors
/// When it is no model that can be read.
pub fn file_bytes(path: &Path) -> Result<Bytes> {
    let first = GgufFile::open(path)?;
    let rest = first.other_parts()?;
    let tensors = std::iter::once(&first).chain(&rest).flat_map(GgufFile::tensors);
    let of = |dims: &[u64]| match dims {
        [columns, _, rest @ ..] => columns * rest.iter().product::<u64>() * 4,
        _ => 0,
    };
    Ok(Bytes(tensors.map(|tensor| of(&tensor.dims)).sum()))
}

impl Imatrix {
    /// Sees that it is one of the model that `plan` is for, which quantises to `kind`.
    ///
    /// # Errors
    /// When an entry has another size, nothing has an entry, or something that cannot do without has none.
    pub(crate) fn check(&self, plan: &Plan, kind: Type) -> Result<()> {
        let wrong = |why: String| Error::Imatrix { path: self.path.clone(), why };
        let foreign = "it is of another model: collect one from this model with `anneal imatrix`";
        let weighed: Vec<_> = plan.tensors.iter().filter(|tensor| tensor.is_weighed()).collect();
        for tensor in &weighed {
            let Some(entry) = self.entries.get(&tensor.name) else { continue };
            let columns =
                tensor.dims.first().copied().unwrap_or(1) * tensor.dims.get(2).copied().unwrap_or(1);
            if entry.sums.len() as u64 != columns {
                let held = entry.sums.len();
                return Err(wrong(format!(
                    "it has {held} values for {}, which has {columns} columns; {foreign}",
                    tensor.name
                )));
            }
        }
        let lacking = |tensor: &&&Planned| !self.entries.contains_key(&tensor.name);
        let lacks = weighed.iter().filter(lacking).count();
        if lacks > 0 && lacks == weighed.len() {
            let (count, first) =
                (self.entries.len(), self.entries.keys().next().map_or("nothing", String::as_str));
            return Err(wrong(format!(
                "none of its {count} entries ({first}, …) is of a tensor that is quantised; {foreign}"
            )));
        }
        // Experts that are never chosen have an entry nevertheless.
        if let Some(tensor) = weighed.iter().filter(lacking).find(|tensor| tensor.needs_imatrix(kind)) {
            let (name, to) = (&tensor.name, tensor.to);
            return Err(wrong(format!(
                "it says nothing of {name}, which as {to} is garbage without; {foreign}"
            )));
        }
        Ok(())
    }

    /// The tensors of `plan` that it says nothing of though it could.
    pub fn missing<'a>(&self, plan: &'a Plan) -> Vec<&'a str> {
        let weighed = plan.tensors.iter().filter(|tensor| tensor.is_weighed());
        weighed.map(|tensor| tensor.name.as_str()).filter(|name| !self.entries.contains_key(*name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_of_each_expert() {
        let entry = |sums: &[f32], counts: &[f32]| Entry { sums: sums.into(), counts: counts.into() }.means();
        assert_eq!(entry(&[2.0, 4.0], &[2.0]), [1.0, 2.0]);
        assert_eq!(entry(&[2.0, 4.0, 9.0, 9.0, 6.0, 3.0], &[2.0, 0.0, 3.0]), [1.0, 2.0, 1.0, 1.0, 2.0, 1.0]);
        assert_eq!(entry(&[], &[]), [0.0f32; 0]);
    }
}
