//! Outcome of writing a model or an adapter: a summary, or an error.

use std::path::PathBuf;

use build_info::Bytes;

use crate::partial::PlaceError;

/// A model that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Number of tensors.
    pub tensors: usize,
    /// Number of weights.
    pub parameters: u64,
    /// Size of all tensors.
    pub tensor_bytes: Bytes,
}

/// Reason why a model was not made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be written or put in its place.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The progress callback said so.
    #[error("stopped before {} was complete: nothing was written there", path.display())]
    Stopped {
        /// The file that was not written.
        path: PathBuf,
    },
    /// There is nothing that an adapter could change.
    #[error("{} has no query and value matrices that an adapter could change", path.display())]
    NoMatrices {
        /// The model.
        path: PathBuf,
    },
}
