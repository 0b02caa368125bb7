//! Tree in the store, and the record next to it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sha256::Sha256;

use crate::digest::Listing;
use crate::origin::Origin;

/// Name of the tree's folder.
pub(crate) const TREE: &str = "llama.cpp";
const RECORD: &str = "source.json";
const SUMS: &str = "SHA256SUMS";

/// llama.cpp tree that was fetched, verified and patched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// Folder that contains llama.cpp's CMakeLists.txt.
    #[serde(skip)]
    pub path: PathBuf,
    /// Origin of the tree.
    pub origin: Origin,
    /// Version within the origin: a crate version, a package version or a commit; `tree-` and 12 digits for a folder.
    pub version: String,
    /// Digest of the tree as unpacked, before the patches.
    pub digest: Sha256,
    /// Digest of the patched tree; equal to `digest` if there are no patches.
    pub patched_digest: Sha256,
    /// Names of the applied patches, in order.
    pub patches: Vec<String>,
    /// Names of optional patches that do not apply to this tree.
    #[serde(default)]
    pub left_out: Vec<String>,
    /// Version of llama.cpp in its CMakeLists.txt, for example `0.6.0`; `unknown` in older trees.
    pub llama_version: String,
    /// Version of ggml in its CMakeLists.txt, for example `0.26.0`; `unknown` in older trees.
    pub ggml_version: String,
    /// Build commit that llama.cpp reports: a commit if the origin knows it, otherwise an identifier of the tree.
    pub build_commit: String,
}

impl Tree {
    /// Returns the names of all patches that were tried, in order.
    pub fn tried(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.patches.iter().chain(&self.left_out).map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Returns CMake definitions for llama.cpp's version. Without these definitions, llama.cpp's CMake files would
    /// query the surrounding git repository, which is Anneal's. No origin knows the number of commits; 0 is
    /// llama.cpp's own default.
    ///
    /// ggml queries git separately and accepts no definition. Therefore, also set the environment variable of
    /// [`Tree::cmake_environment`].
    pub fn cmake_definitions(&self) -> [(&'static str, String); 2] {
        [("LLAMA_BUILD_NUMBER", "0".to_string()), ("LLAMA_BUILD_COMMIT", self.build_commit.clone())]
    }

    /// Folders with the headers of llama.cpp's C API, relative to the tree.
    pub const HEADERS: [&str; 2] = ["include", "ggml/include"];

    /// Returns the folders with the headers of llama.cpp's C API.
    pub fn headers(&self) -> [PathBuf; 2] {
        Self::HEADERS.map(|folder| self.path.join(folder))
    }

    /// Returns an environment variable for CMake. CMake runs git in the tree, and the variable prevents git from
    /// finding the surrounding repository.
    pub fn cmake_environment(&self) -> (&'static str, PathBuf) {
        // git resolves links before it looks for a repository.
        let path = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        ("GIT_CEILING_DIRECTORIES", path.parent().unwrap_or(&path).to_path_buf())
    }

    /// Reads every file again and compares the tree with its listing.
    ///
    /// # Errors
    /// If the tree changed or cannot be read; the error lists the files that differ.
    pub fn check(&self) -> Result<()> {
        let home = self.path.parent().context("the tree has no parent folder")?;
        let mend = format!("hint: remove {} and run `cargo xtask vendor` again", home.display());
        let sums = home.join(SUMS);
        let then = fs::read_to_string(&sums)
            .map_err(anyhow::Error::from)
            .and_then(|text| Listing::parse(&text))
            .with_context(|| format!("{} is damaged\n{mend}", sums.display()))?;
        if then.digest() != self.patched_digest {
            bail!("{} does not belong to the tree next to it\n{mend}", sums.display());
        }
        let now = Listing::of(&self.path)?;
        if now == then {
            return Ok(());
        }
        const SHOWN: usize = 10;
        let differences = then.differences(&now);
        let mut list: String =
            differences.iter().take(SHOWN).map(|difference| format!("    {difference}\n")).collect();
        if differences.len() > SHOWN {
            list += &format!("    and {} more\n", differences.len() - SHOWN);
        }
        bail!(
            "the sources in {} were changed after unpacking (digest {}, expected {}):\n{list}{mend}",
            self.path.display(),
            now.digest(),
            self.patched_digest
        )
    }

    /// Returns the tree in `home` if a complete tree exists.
    pub(crate) fn read(home: &Path) -> Option<Self> {
        let text = fs::read(home.join(RECORD)).ok()?;
        let mut tree: Tree = serde_json::from_slice(&text).ok()?;
        tree.path = home.join(TREE);
        tree.path.join("CMakeLists.txt").exists().then_some(tree)
    }

    /// Writes the record and the checksums into `home`, next to the tree.
    pub(crate) fn write(&self, home: &Path, listing: &Listing) -> Result<()> {
        let record = home.join(RECORD);
        fs::write(home.join(SUMS), listing.to_text())
            .and_then(|()| fs::write(&record, serde_json::to_string_pretty(self)? + "\n"))
            .with_context(|| format!("cannot write {}", record.display()))
    }
}

/// Returns the versions of llama.cpp and ggml in `tree`. Fails if the folder is not a llama.cpp tree.
pub(crate) fn versions(tree: &Path) -> Result<(String, String)> {
    let read = |path: &str| {
        fs::read_to_string(tree.join(path))
            .with_context(|| format!("{} is not a llama.cpp tree: it has no readable {path}", tree.display()))
    };
    let (llama, ggml) = (read("CMakeLists.txt")?, read("ggml/CMakeLists.txt")?);
    Ok((version(&llama, "LLAMA_VERSION"), version(&ggml, "GGML_VERSION")))
}

/// Parses the version from the line `set(<name>_MAJOR 1)` and the lines that follow.
fn version(cmake: &str, name: &str) -> String {
    let part = |part: &str| {
        let start = format!("set({name}_{part} ");
        cmake.lines().find_map(|line| line.trim().strip_prefix(&start)?.strip_suffix(')').map(str::trim))
    };
    match (part("MAJOR"), part("MINOR"), part("PATCH")) {
        (Some(major), Some(minor), Some(patch)) => format!("{major}.{minor}.{patch}"),
        _ => "unknown".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_where_it_stands() {
        let cmake = "project(x)\nset(GGML_VERSION_MAJOR 0)\n  set(GGML_VERSION_MINOR 26)\nset(GGML_VERSION_PATCH 3)\n";
        assert_eq!(version(cmake, "GGML_VERSION"), "0.26.3");
        assert_eq!(version(cmake, "LLAMA_VERSION"), "unknown");
    }
}
