//! Importance matrices: the mean square input of each column of each matrix. An importance matrix tells a quantiser
//! which columns are most sensitive to errors.
//!
//! The files have llama-imatrix's format: GGUF with `NAME.in_sum2` (sums of squares) and `NAME.counts` for each
//! matrix NAME. The older format can only be read.

mod collect;
mod file;

use std::path::Path;

use build_info::Bytes;
pub use collect::{Collected, collect};
pub use file::{read, write};
use gguf::GgufFile;
use llama::error::{Error, Result};
use llama::quantize::{Imatrix, Type};

use crate::quantize::{PlannedTensor, QuantizePlan};

/// Estimates the size of the importance matrix file of the model at `path`: one float for each column of each matrix
/// of each expert.
///
/// # Errors
/// If the file is not a readable model.
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

/// Checks that `imatrix` belongs to the model of `plan`, which quantises to `kind`.
///
/// # Errors
/// [`Error::Imatrix`] in these cases:
///
/// - The size of an entry differs from the size of its tensor.
/// - No tensor has an entry.
/// - A tensor that needs an entry does not have one.
pub(crate) fn check(imatrix: &Imatrix, plan: &QuantizePlan, kind: Type) -> Result<()> {
    let wrong = |why: String| Error::Imatrix { path: imatrix.path.clone(), why };
    let foreign = "it belongs to another model\nhint: collect an importance matrix from this model with `anneal \
                   imatrix`";
    let weighed: Vec<_> = plan.tensors.iter().filter(|tensor| tensor.is_weighed()).collect();
    for tensor in &weighed {
        let Some(entry) = imatrix.entries.get(&tensor.name) else { continue };
        let columns = tensor.dims.first().copied().unwrap_or(1) * tensor.dims.get(2).copied().unwrap_or(1);
        if entry.sums.len() as u64 != columns {
            let held = entry.sums.len();
            return Err(wrong(format!(
                "it has {held} values for {}, which has {columns} columns; {foreign}",
                tensor.name
            )));
        }
    }
    let lacking = |tensor: &&&PlannedTensor| !imatrix.entries.contains_key(&tensor.name);
    let lacks = weighed.iter().filter(lacking).count();
    if lacks > 0 && lacks == weighed.len() {
        let (count, first) =
            (imatrix.entries.len(), imatrix.entries.keys().next().map_or("nothing", String::as_str));
        return Err(wrong(format!(
            "none of its {count} entries ({first}, …) matches a tensor to quantise; {foreign}"
        )));
    }
    // Every expert has an entry, even if it was never chosen.
    if let Some(tensor) = weighed.iter().filter(lacking).find(|tensor| tensor.needs_imatrix(kind)) {
        let (name, to) = (&tensor.name, tensor.to);
        return Err(wrong(format!(
            "it has no entry for {name}, but quantising this tensor to {to} needs one; {foreign}"
        )));
    }
    Ok(())
}

/// Returns the names of the tensors of `plan` that have no entry in `imatrix`.
pub fn missing<'a>(imatrix: &Imatrix, plan: &'a QuantizePlan) -> Vec<&'a str> {
    let weighed = plan.tensors.iter().filter(|tensor| tensor.is_weighed());
    weighed.map(|tensor| tensor.name.as_str()).filter(|name| !imatrix.entries.contains_key(*name)).collect()
}
