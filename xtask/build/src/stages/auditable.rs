//! List of crates that is embedded in the engine, in the format of cargo-auditable:
//! <https://github.com/rust-secure-code/cargo-auditable/blob/master/PARSING.md>. An archive's bill of materials is a
//! separate file and can be lost, but the embedded list cannot.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde::Serialize;
use ship::crates::{self, Crate};
use ship::order::Rust;

use crate::workspace::Workspace;

/// Top level of the format.
#[derive(Serialize)]
struct VersionInfo<'a> {
    packages: Vec<Package<'a>>,
}

#[derive(Serialize)]
struct Package<'a> {
    name: &'a str,
    version: &'a str,
    source: &'static str,
    #[serde(skip_serializing_if = "<[usize]>::is_empty")]
    dependencies: Vec<usize>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    root: bool,
}

/// Writes the list for `rust` on `target` to a file that is named after its digest, so that builds with equal lists
/// pass equal arguments to cargo.
///
/// # Errors
/// If the crates cannot be listed or the file cannot be written.
pub fn write(workspace: &Workspace, rust: &Rust, target: &str) -> Result<PathBuf> {
    let text = serde_json::to_vec(&list(&crates::linked(rust, target)?, &rust.package))?;
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&text)?;
    let packed = packed.finish()?;
    let folder = workspace.anneal().join("auditable");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let file = folder.join(build_info::Sha256::of(&packed).short());
    // An unchanged file is not rewritten, because cargo also checks its modification time.
    if !std::fs::read(&file).is_ok_and(|there| there == packed) {
        crate::fs::write_atomically(&file, &packed)?;
    }
    Ok(file)
}

fn list<'a>(crates: &'a [Crate], root: &str) -> VersionInfo<'a> {
    let package = |part: &'a Crate| Package {
        name: &part.name,
        version: &part.version,
        source: source(part.source.as_deref()),
        dependencies: part.needs.iter().copied().collect(),
        root: part.name == root,
    };
    VersionInfo { packages: crates.iter().map(package).collect() }
}

/// Returns the format's name for the origin of a crate.
fn source(cargo: Option<&str>) -> &'static str {
    match cargo {
        None => "local",
        // Cargo uses this identifier for crates.io even if a mirror serves the crate.
        Some("registry+https://github.com/rust-lang/crates.io-index") => "crates.io",
        Some(other) if other.starts_with("git+") => "git",
        Some(_) => "registry",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_have_the_words_of_the_format() {
        let words = [
            (None, "local"),
            (Some("registry+https://github.com/rust-lang/crates.io-index"), "crates.io"),
            (Some("registry+https://crates.example.org/index"), "registry"),
            (Some("git+https://example.org/x?rev=1#1"), "git"),
        ];
        for (cargo, word) in words {
            assert_eq!(source(cargo), word, "{cargo:?}");
        }
    }
}
