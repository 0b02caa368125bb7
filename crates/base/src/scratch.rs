//! Temporary folders and files.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;

use tempfile::TempDir;

use crate::pending::{RANDOM, named};

/// Creates a private folder in the system's folder for temporary files. The folder's name begins with `prefix`. The
/// folder is removed on drop.
///
/// # Errors
/// If the folder cannot be created.
pub fn scratch(prefix: &str) -> io::Result<TempDir> {
    scratch_in(&std::env::temp_dir(), &format!("{prefix}-"))
}

/// Creates a private folder in `folder`. The new folder's name is `prefix` followed by random letters and digits. The
/// new folder is removed on drop.
///
/// # Errors
/// If the new folder cannot be created.
pub fn scratch_in(folder: &Path, prefix: &str) -> io::Result<TempDir> {
    named(OsStr::new(prefix), "", 0o700).tempdir_in(folder)
}

/// True if `name` is a possible name of a folder that [`scratch_in`] creates with `prefix`.
pub fn is_scratch(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|random| {
        random.len() == RANDOM && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

/// Creates a file without a name in the system's folder for temporary files. The system frees the file when it is
/// closed, even if the process is killed.
///
/// # Errors
/// If the file cannot be created.
pub fn unnamed() -> io::Result<File> {
    tempfile::tempfile()
}
