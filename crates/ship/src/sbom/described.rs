//! What the authors of a program's crates say of them: by `cargo metadata`, which joins the features of all members of a
//! workspace, so that it cannot tell which crates these are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::crates::{self, Crate};
use crate::order::Rust;

/// One crate that is linked, with its author's words.
#[derive(Clone, Debug)]
pub struct Described {
    /// The crate.
    pub linked: Crate,
    /// SPDX expression, as its author wrote it.
    pub license: Option<String>,
    /// File that its author named in place of an expression.
    pub license_file: Option<PathBuf>,
    /// What it is.
    pub description: Option<String>,
    /// Its source folder.
    pub folder: PathBuf,
}

/// What `cargo metadata` tells.
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

/// The crates of a program for `target`, by name and version: neither what build scripts nor what macros are made of.
pub fn described(rust: &Rust, target: &str) -> Result<Vec<Described>> {
    let linked = crates::linked(rust, target)?;
    let told =
        crates::cargo(rust, ["metadata", "--locked", "--format-version", "1", "--filter-platform", target])?;
    let told: CargoMetadata = serde_json::from_slice(&told).context("cannot understand `cargo metadata`")?;
    let mut known: BTreeMap<(String, String), CargoPackage> = told
        .packages
        .into_iter()
        .map(|package| ((package.name.clone(), package.version.clone()), package))
        .collect();
    linked
        .into_iter()
        .map(|linked| {
            let package = known
                .remove(&(linked.name.clone(), linked.version.clone()))
                .with_context(|| format!("`cargo metadata` knows no {} {}", linked.name, linked.version))?;
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
