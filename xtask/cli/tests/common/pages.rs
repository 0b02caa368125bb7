//! Pages of the documentation.

use std::path::{Path, PathBuf};

/// Returns the root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the Markdown files in and below `folder`, a path relative to the root, sorted.
pub fn pages(folder: &str) -> Vec<PathBuf> {
    let mut pages = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// Returns README.md and the pages of the book.
pub fn readme_and_book() -> Vec<PathBuf> {
    [vec![root().join("README.md")], pages("docs/src")].concat()
}
