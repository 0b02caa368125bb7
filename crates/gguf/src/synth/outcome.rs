//! Outcome of writing a model or an adapter: a summary, or an error.

use std::path::PathBuf;

use build_info::Bytes;

use crate::partial::PlaceError;

/// Summary of a generated model or adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Number of tensors.
    pub tensors: usize,
    /// Number of weights.
    pub parameters: u64,
    /// Size of all tensors.
    pub tensor_bytes: Bytes,
}

/// Reason why a model was not generated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be written or renamed to its destination.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The progress callback stopped the generation.
    #[error("generation was stopped before {} was complete; no file was written", path.display())]
    Stopped {
        /// Path of the file that was not written.
        path: PathBuf,
    },
    /// The model has no matrices that an adapter could change.
    #[error("cannot create an adapter for {}: the model has no query and value matrices", path.display())]
    NoMatrices {
        /// Path of the model.
        path: PathBuf,
    },
}
