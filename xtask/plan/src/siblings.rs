//! Programs in the same folder.

use std::path::{Path, PathBuf};

/// Returns the name of the file at `path`, without its folders.
pub fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the path of a program in the same folder as `path`, with `from` replaced by `to` in its name: `llvm-ar-22`
/// for `clang-22`.
pub fn sibling(path: &Path, from: &str, to: &str) -> PathBuf {
    path.with_file_name(file_name(path).replacen(from, to, 1))
}
