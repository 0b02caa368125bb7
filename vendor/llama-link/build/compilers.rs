//! Choice of the compilers for this crate's C and C++ code.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::link::Link;

/// Returns the C compiler that built the prefix, or the compiler that the `cc` crate chooses.
///
/// # Errors
/// If the `cc` crate finds no compiler.
pub fn c(link: &Link) -> Result<PathBuf> {
    match &link.cc {
        Some(path) => Ok(path.clone()),
        None => {
            let tool = cc::Build::new().try_get_compiler();
            Ok(tool
                .context("no C compiler was found\nhint: install gcc or clang, or set CC")?
                .path()
                .to_path_buf())
        }
    }
}
