//! Metadata of a program's crates, from `cargo metadata`. `cargo metadata` merges the features of all workspace
//! members, so its output does not show which crates are linked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::crates::{self, Crate};
use crate::order::Rust;

/// Linked crate with its metadata.
#[derive(Clone, Debug)]
pub struct Described {
    /// Crate with its version and features.
    pub linked: Crate,
    /// Licence as an SPDX expression, as the crate's author wrote it.
    pub license: Option<String>,
    /// Licence file that the crate's author specified instead of an expression.
    pub license_file: Option<PathBuf>,
    /// Description of the crate.
    pub description: Option<String>,
    /// Folder of the crate's sources.
    pub folder: PathBuf,
}

/// Output of `cargo metadata`.
#[derive(Deserialize)]
struct CargoMetadata {
    packages: Vec<CargoPackage>,
}

#[derive(Deserialize)]
struct CargoPackage {
    name: String,
    version: String,
    license: Option<String>,
    license_file: Option<PathBuf>,
    description: Option<String>,
    manifest_path: PathBuf,
}

/// Returns the crates linked into a program for `target`, sorted by name and version. Crates that only build scripts
/// and macros use are left out.
///
/// # Errors
/// If cargo fails or prints unexpected output.
pub fn described(rust: &Rust, target: &str) -> Result<Vec<Described>> {
    let linked = crates::linked(rust, target)?;
    let told =
        crates::cargo(rust, ["metadata", "--locked", "--format-version", "1", "--filter-platform", target])?;
    let told: CargoMetadata =
        serde_json::from_slice(&told).context("cannot parse the output of `cargo metadata`")?;
    let mut known: BTreeMap<(String, String), CargoPackage> = told
        .packages
        .into_iter()
        .map(|package| ((package.name.clone(), package.version.clone()), package))
        .collect();
    linked
        .into_iter()
        .map(|linked| {
            let package =
                known.remove(&(linked.name.clone(), linked.version.clone())).with_context(|| {
                    format!("`cargo metadata` has no package {} {}", linked.name, linked.version)
                })?;
            let folder = package.manifest_path.parent().unwrap_or(Path::new(".")).to_path_buf();
            Ok(Described {
                linked,
                license: package.license,
                license_file: package.license_file,
                description: package.description,
                folder,
            })
        })
        .collect()
}
