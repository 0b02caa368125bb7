//! Kernel libraries next to the program: loading them, and reading their scores from ggml.

use std::path::Path;

use llama_sys as sys;

use crate::error::{Error, Result};
use crate::message::{Message, c_path};

/// True if CPU kernels are available, either loaded or linked into the program.
pub fn has_cpu() -> bool {
    // SAFETY: no preconditions.
    unsafe { sys::anneal_has_cpu() }
}

/// Returns ggml's score of the kernels in `library` for this CPU. Higher is better; 0 means that the kernels cannot
/// run.
///
/// # Errors
/// [`Error::Kernels`] if the file is not a kernel library.
pub fn score(library: &Path) -> Result<u32> {
    let path = c_path(library)?;
    let mut message = Message::new();
    let (err, err_size) = message.parts();
    // SAFETY: `path` and the buffer outlive the call. Loading the library runs its constructors, which are compiled
    // for a CPU that the caller has compared with this CPU.
    let score = unsafe { sys::anneal_kernels_score(path.as_ptr(), err, err_size) };
    u32::try_from(score).map_err(|_| Error::Kernels { path: library.to_path_buf(), why: message.text() })
}

/// Loads the kernels in `library` for the rest of the process.
///
/// # Errors
/// [`Error::Kernels`] if they cannot be loaded.
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
