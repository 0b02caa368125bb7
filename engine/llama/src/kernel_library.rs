//! Kernels in libraries beside the program: what ggml thinks of them, and how they are loaded.

use std::path::Path;

use llama_sys as sys;

use crate::error::{Error, Result};
use crate::message::{Message, c_path};

/// Whether the CPU's kernels are there: part of the program, or loaded.
pub fn has_cpu() -> bool {
    // SAFETY: no preconditions.
    unsafe { sys::anneal_has_cpu() }
}

/// How ggml ranks the kernels in `library` for this CPU: the higher, the better; 0 where they cannot run.
///
/// # Errors
/// [`Error::Kernels`] where that is no library of kernels.
pub fn score(library: &Path) -> Result<u32> {
    let path = c_path(library)?;
    let mut message = Message::new();
    let (err, err_size) = message.parts();
    // SAFETY: `path` and the buffer outlive the call. What is loaded runs its constructors, which are compiled for the
    // CPU that was asked about before.
    let score = unsafe { sys::anneal_kernels_score(path.as_ptr(), err, err_size) };
    u32::try_from(score).map_err(|_| Error::Kernels { path: library.to_path_buf(), why: message.text() })
}

/// Loads the kernels in `library` for the rest of the process.
///
/// # Errors
/// [`Error::Kernels`]
pub fn load(library: &Path) -> Result<()> {
    let path = c_path(library)?;
    let mut message = Message::new();
    let (err, err_size) = message.parts();
    // SAFETY: as in `score`.
    match unsafe { sys::anneal_kernels_load(path.as_ptr(), err, err_size) } {
        true => Ok(()),
        false => Err(Error::Kernels { path: library.to_path_buf(), why: message.text() }),
    }
}
