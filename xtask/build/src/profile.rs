//! Reader of build profiles.

use std::path::Path;

use anyhow::{Context, Result};
use plan::profile::{self, Files, Override, Profile};

/// Folder with the profile files.
struct ProfileFolder<'a>(&'a Path);

impl Files for ProfileFolder<'_> {
    fn folder(&self) -> &Path {
        self.0
    }

    fn all(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let entries = std::fs::read_dir(self.0)
            .with_context(|| format!("cannot list profiles in {}", self.0.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "toml")
                && let Some(stem) = path.file_stem().and_then(|stem| stem.to_str())
            {
                names.push(stem.to_string());
            }
        }
        Ok(names)
    }

    fn has(&self, name: &str) -> bool {
        self.0.join(format!("{name}.toml")).is_file()
    }

    fn text(&self, name: &str) -> Result<String> {
        crate::fs::text(&self.0.join(format!("{name}.toml")))
    }
}

/// Returns the names of the profiles in `folder` that can be built.
///
/// # Errors
/// If the folder cannot be read.
pub fn names(folder: &Path) -> Result<Vec<String>> {
    profile::names(&ProfileFolder(folder))
}

/// Returns the names of the profiles in `folder` whose programs use a GPU.
///
/// # Errors
/// If the folder cannot be read.
pub fn names_for_gpus(folder: &Path) -> Result<Vec<String>> {
    profile::names_for_gpus(&ProfileFolder(folder))
}

/// Reads the profile `name` from `folder`. A name may contain overrides, as in `native+threading=openmp`. Such a name
/// denotes a separate profile with its own current build.
///
/// # Errors
/// If there is no profile `name`, or its file or an override is invalid.
pub fn load(folder: &Path, name: &str) -> Result<Profile> {
    load_with(folder, name, &[])
}

/// Reads the profile `name` and applies `overrides`.
///
/// # Errors
/// If there is no profile `name`, or its file or an override is invalid.
pub fn load_with(folder: &Path, name: &str, overrides: &[Override]) -> Result<Profile> {
    profile::load_with(&ProfileFolder(folder), name, overrides)
}
