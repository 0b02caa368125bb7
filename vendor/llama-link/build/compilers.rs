//! Which compilers build the C and C++ parts of this crate.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::link::Link;

/// The C compiler: the one that built the prefix, else cc's choice.
pub fn c(link: &Link) -> Result<PathBuf> {
    match &link.cc {
        Some(path) => Ok(path.clone()),
        None => {
            let tool = cc::Build::new().try_get_compiler();
            Ok(tool.context("no C compiler was found: install gcc or clang, or set CC")?.path().to_path_buf())
        }
    }
}
