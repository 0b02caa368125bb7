//! Files of a crate.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the Rust files below `folder` in sorted order: the crate's library, programs, tests and build script.
/// Crates inside the folder are left out.
///
/// # Errors
/// If a folder cannot be read; the message contains its path.
pub fn rust_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let failed = |why: std::io::Error| format!("cannot read {}: {why}", folder.display());
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let (path, kind) = (entry.path(), entry.file_type().map_err(failed)?);
            if kind.is_dir() {
                if !path.join("Cargo.toml").exists() && entry.file_name() != "target" {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_scripts_and_tests_are_files_of_a_crate_and_inner_crates_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let all =
            ["Cargo.toml", "build.rs", "src/a/b.rs", "src/lib.rs", "src/x.txt", "tests/t.rs", "target/o.rs"];
        for name in all.iter().chain(&["inner/Cargo.toml", "inner/src/lib.rs"]) {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let found = rust_files(folder.path()).unwrap();
        let names: Vec<&Path> = found.iter().map(|path| path.strip_prefix(folder.path()).unwrap()).collect();
        assert_eq!(names, ["build.rs", "src/a/b.rs", "src/lib.rs", "tests/t.rs"].map(Path::new));
    }
}
