//! Programs that lie beside each other.

use std::path::{Path, PathBuf};

/// Name of the file at `path`, without its folders.
pub fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The program beside `path` whose name has `to` where `path` has `from`: `clang-22` has `llvm-ar-22`.
pub fn sibling(path: &Path, from: &str, to: &str) -> PathBuf {
    path.with_file_name(file_name(path).replacen(from, to, 1))
}
