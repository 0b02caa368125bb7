//! Sources of this workspace: its pins, its patches and its store.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::origin::Origin;
use crate::patch::{self, Patch};
use crate::pins::Pins;
use crate::progress::FetchProgress;
use crate::store::Store;
use crate::tree::Tree;

/// Returns the tree of `origin` under `root` (xtask passes `target/anneal`). A missing tree is fetched, verified and
/// patched with this workspace's pins and patches. For an existing tree, only its `source.json` is read.
/// [`Origin::Path`] is an exception: the folder is hashed each time, because it may have changed.
///
/// # Errors
/// If the tree cannot be fetched, does not match its pin, or a patch does not apply.
pub fn ensure(origin: &Origin, root: &Path, progress: FetchProgress<'_>) -> Result<Tree> {
    Store::of_workspace(root)?.ensure(origin, progress)
}

/// Reads every file of `tree` again and compares the tree with its listing.
///
/// # Errors
/// If the tree changed or cannot be read; the error lists the files that differ.
pub fn check(tree: &Tree) -> Result<()> {
    tree.check()
}

/// Returns the pins of this workspace, from [`pins_file`].
///
/// # Errors
/// If the file cannot be read, or contains an invalid pin.
pub fn workspace_pins() -> Result<Pins> {
    Pins::read(&pins_file())
}

/// Returns the path of this workspace's `pins.toml`. A build script that calls [`ensure`] should rerun when the file
/// changes.
pub fn pins_file() -> PathBuf {
    own_folder().join("pins.toml")
}

/// Returns the folder of this workspace's patches. A build script that calls [`ensure`] should rerun when the folder
/// changes.
pub fn patches_dir() -> PathBuf {
    own_folder().join("patches")
}

/// Loads this workspace's patches in the order of application.
///
/// # Errors
/// If a patch cannot be read, or has no valid header.
pub fn patches() -> Result<Vec<Patch>> {
    patch::load(&patches_dir())
}

/// Returns the path of the manifest with which cargo fetches and pins the crate that contains llama.cpp.
pub fn crate_manifest() -> PathBuf {
    own_folder().join("crate").join("Cargo.toml")
}

/// Returns the store's root for a build script whose `OUT_DIR` is `out`: `target/anneal` for
/// `target/[triple/]debug/build/llama-sys-…/out`. xtask uses the same root.
///
/// # Errors
/// If `out` does not have that form.
pub fn root_for_build_script(out: &Path) -> Result<PathBuf> {
    let marked = out.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file());
    let target =
        marked.or_else(|| out.ancestors().nth(4)).context("OUT_DIR is not one of cargo's folders")?;
    let root = target.join("anneal");
    std::fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
    Ok(root)
}

/// Returns the folder of this crate in the current checkout.
fn own_folder() -> PathBuf {
    let compiled = env!("CARGO_MANIFEST_DIR");
    base::checkout(compiled).map_or_else(|| PathBuf::from(compiled), |root| root.join("vendor/source"))
}
