//! OpenBLAS from source, for machines whose distribution ships an OpenBLAS without kernels for the CPU. The source
//! archive is pinned and verified, and built with make.
//!
//! ```text
//! target/anneal/blas/<version>-<hash12>/     first 12 digits of the hash of archive, compiler and make's arguments
//!     lib/libopenblas.a  include/cblas.h     the library
//!     openblas.json                          its sources and recipe
//! target/anneal/blas/downloads/              archives
//! ```
//!
//! OpenBLAS is built before planning, because planning reads no files. The plan treats the library like an installed
//! library.

mod archive;
mod make;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base::exit;
use build_info::{Host, Sha256};
use plan::choose;
use plan::profile::{Blas, Profile};
use serde::{Deserialize, Serialize};
use toolchain::{BlasLibrary, BlasThreading, Toolchain};

use crate::fs;
use crate::scratch::Scratch;
use crate::ui::Ui;
use crate::workspace::Workspace;
pub use archive::Archive;
use make::Recipe;

/// Options for the source archive of OpenBLAS.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ArchiveArgs {
    /// Source archive of OpenBLAS (a file or a URL), for profiles that build OpenBLAS [default: the pinned release]
    #[arg(long, value_name = "FILE|URL")]
    blas_archive: Option<String>,
    /// SHA-256 of the archive; required if the archive is not a copy of the pinned one
    #[arg(long, value_name = "DIGITS", requires = "blas_archive")]
    blas_sha256: Option<String>,
}

/// Content of `vendor/openblas/pin.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pin {
    version: String,
    url: String,
    sha256: Sha256,
    #[serde(rename = "license")]
    _license: String,
}

fn pin() -> Result<Pin> {
    toml::from_str(include_str!("../../../../vendor/openblas/pin.toml"))
        .context("cannot parse vendor/openblas/pin.toml")
}

impl ArchiveArgs {
    /// Checks the options against the profile.
    ///
    /// # Errors
    /// A usage error if an archive is given but `profile` does not build OpenBLAS.
    pub fn check(&self, profile: &Profile) -> Result<()> {
        if self.blas_archive.is_none() || profile.blas == Blas::OpenblasSource {
            return Ok(());
        }
        Err(exit::usage(format!(
            "--blas-archive needs a profile that builds OpenBLAS, but {} has `blas = \"{}\"`\nhint: use \
             --profile native-openblas-source, or --set blas=openblas-source",
            profile.name, profile.blas
        )))
    }

    /// Returns the archive to build from.
    fn archive(&self) -> Result<Archive> {
        let pin = pin()?;
        let Some(place) = &self.blas_archive else {
            return Ok(Archive { place: pin.url, version: pin.version, sha256: pin.sha256 });
        };
        let Some(digits) = &self.blas_sha256 else {
            // The archive is the pinned file from another location, such as a mirror or a local disk.
            return Ok(Archive { place: place.clone(), version: pin.version, sha256: pin.sha256 });
        };
        let sha256 = Sha256::try_from(digits.clone())
            .map_err(|error| exit::usage(format!("--blas-sha256: {error}")))?;
        let name = place.rsplit('/').next().unwrap_or(place);
        let version = version_in(name).ok_or_else(|| {
            exit::usage(format!(
                "--blas-archive: the name {name:?} does not contain the version\nhint: rename the file to \
                 OpenBLAS-<version>.tar.gz"
            ))
        })?;
        Ok(Archive { place: place.clone(), version, sha256 })
    }
}

/// Returns the version in an archive's name, such as `0.3.21` in `openblas_0.3.21+ds.orig.tar.xz`.
fn version_in(name: &str) -> Option<String> {
    let at = name.find(|c: char| c.is_ascii_digit())?;
    let end = name[at..].find(|c: char| !c.is_ascii_digit() && c != '.').map_or(name.len(), |end| at + end);
    let version = name[at..end].trim_end_matches('.');
    (version.split('.').count() >= 2).then(|| version.to_string())
}

/// Record stored next to a built library.
#[derive(Debug, Serialize, Deserialize)]
struct LibraryRecord {
    version: String,
    archive: Sha256,
    recipe: Recipe,
}

/// Adds the OpenBLAS that `profile` builds, if any, to `toolchain` without downloading or building it.
///
/// # Errors
/// If the archive is unknown or the recipe cannot be determined.
pub fn announce(
    workspace: &Workspace,
    profile: &Profile,
    host: &Host,
    args: &ArchiveArgs,
    toolchain: &mut Toolchain,
) -> Result<()> {
    if profile.blas == Blas::OpenblasSource {
        let library = wanted(workspace, profile, host, args, toolchain)?.library;
        toolchain.blas.push(library);
    }
    Ok(())
}

/// Adds the OpenBLAS that `profile` builds, if any, to `toolchain`. Downloads and builds the library if it does not
/// exist yet.
///
/// # Errors
/// If the archive cannot be downloaded or verified, or the build fails.
pub fn provide(
    workspace: &Workspace,
    profile: &Profile,
    host: &Host,
    args: &ArchiveArgs,
    toolchain: &mut Toolchain,
    ui: &Ui,
) -> Result<()> {
    if profile.blas != Blas::OpenblasSource {
        return Ok(());
    }
    let wanted = wanted(workspace, profile, host, args, toolchain)?;
    if !wanted.is_built() {
        wanted.build(ui)?;
    }
    toolchain.blas.push(wanted.library);
    Ok(())
}

/// Library that may not be built yet.
struct PlannedLibrary {
    archive: Archive,
    recipe: Recipe,
    folder: PathBuf,
    library: BlasLibrary,
}

fn wanted(
    workspace: &Workspace,
    profile: &Profile,
    host: &Host,
    args: &ArchiveArgs,
    toolchain: &Toolchain,
) -> Result<PlannedLibrary> {
    let archive = args.archive()?;
    let recipe =
        make::recipe(&profile.isa, host, &choose::compiler(profile, toolchain, &mut Vec::new())?, toolchain)?;
    let key = Sha256::of(&serde_json::to_vec(&(&archive.sha256, &recipe))?);
    let folder = workspace.anneal().join("blas").join(format!("{}-{}", archive.version, key.short()));
    let library = BlasLibrary {
        vendor: "openblas".to_string(),
        version: archive.version.clone(),
        pkg_config: None,
        threading: Some(BlasThreading::Pthread),
        include: folder.join("include"),
        libraries: vec![folder.join("lib/libopenblas.a")],
        source: Some(archive.sha256.to_string()),
    };
    Ok(PlannedLibrary { archive, recipe, folder, library })
}

impl PlannedLibrary {
    fn is_built(&self) -> bool {
        // The record is the last file that is written before the folder gets its name.
        self.folder.join("openblas.json").is_file() && self.library.libraries[0].is_file()
    }

    fn build(&self, ui: &Ui) -> Result<()> {
        let blas = self.folder.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(blas).with_context(|| format!("cannot create {}", blas.display()))?;
        let scratch = Scratch::among_others(blas, ".building")?;
        let log = crate::process::Log::new(blas.join("build.log"), ui.verbose());
        let file = self.archive.fetch(&blas.join("downloads"), &log, ui)?;
        let source = archive::unpack(&file, scratch.path(), &log)?;
        let prefix = scratch.path().join("prefix");
        make::run(&self.recipe, &source, &prefix, &log, ui)?;
        let record = LibraryRecord {
            version: self.archive.version.clone(),
            archive: self.archive.sha256.clone(),
            recipe: self.recipe.clone(),
        };
        fs::write_atomically(&prefix.join("openblas.json"), &serde_json::to_vec_pretty(&record)?)?;
        if self.folder.exists() {
            // Anneal renames only complete folders, so the record or the library was removed later.
            std::fs::remove_dir_all(&self.folder)
                .with_context(|| format!("cannot replace {}", self.folder.display()))?;
        }
        std::fs::rename(&prefix, &self.folder)
            .with_context(|| format!("cannot move {} into place", self.folder.display()))?;
        ui.done("built", format_args!("OpenBLAS {} in {}", self.archive.version, self.folder.display()));
        Ok(())
    }
}
