//! Folders and files that exist only while they are used.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;

use tempfile::TempDir;

use crate::pending::{RANDOM, named};

/// Makes a folder for this user alone in the system's folder for temporary files. Its name begins with `prefix`; it is
/// removed when it is dropped.
///
/// # Errors
/// If it cannot be made.
pub fn scratch(prefix: &str) -> io::Result<TempDir> {
    scratch_in(&std::env::temp_dir(), &format!("{prefix}-"))
}

/// Makes a folder for this user alone in `folder`. Its name is `prefix` followed by random letters and digits; it is
/// removed when it is dropped.
///
/// # Errors
/// If it cannot be made.
pub fn scratch_in(folder: &Path, prefix: &str) -> io::Result<TempDir> {
    named(OsStr::new(prefix), "", 0o700).tempdir_in(folder)
}

/// True if [`scratch_in`] makes folders of this name for `prefix`.
pub fn is_scratch(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|random| {
        random.len() == RANDOM && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

/// Makes a file without a name in the system's folder for temporary files. The system removes it when it is closed,
/// however the process ends.
///
/// # Errors
/// If it cannot be made.
pub fn unnamed() -> io::Result<File> {
    tempfile::tempfile()
}
