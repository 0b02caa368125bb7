//! Sources of this workspace: its pins, its patches, its store.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::origin::Origin;
use crate::patch::{self, Patch};
use crate::pins::Pins;
use crate::progress::FetchProgress;
use crate::store::Store;
use crate::tree::Tree;

/// The tree of `origin` under `root` (xtask passes `target/anneal`), fetched, verified and patched if it is
/// not there yet, by this workspace's pins and patches. When it is there, only its `source.json` is read
/// (but for [`Origin::Path`], whose folder is hashed each time, because it may have changed).
pub fn ensure(origin: &Origin, root: &Path, progress: FetchProgress<'_>) -> Result<Tree> {
    Store::of_workspace(root)?.ensure(origin, progress)
}

/// Reads every file of `tree` again and compares it with what was unpacked; the error names the files that
/// differ.
pub fn check(tree: &Tree) -> Result<()> {
    tree.check()
}

/// The pins of this workspace, from [`pins_file`].
pub fn workspace_pins() -> Result<Pins> {
    Pins::read(&pins_file())
}

/// `pins.toml` of this workspace. A build script that calls [`ensure`] should rerun when it changes.
pub fn pins_file() -> PathBuf {
    own_folder().join("pins.toml")
}

/// The folder of this workspace's patches. A build script that calls [`ensure`] should rerun when it changes.
pub fn patches_dir() -> PathBuf {
    own_folder().join("patches")
}

/// This workspace's patches, in the order in which they are applied.
pub fn patches() -> Result<Vec<Patch>> {
    patch::load(&patches_dir())
}

/// The manifest by which cargo fetches and pins the crate that carries llama.cpp.
pub fn crate_manifest() -> PathBuf {
    own_folder().join("crate").join("Cargo.toml")
}

/// Where the store of a target folder is, for a build script with this `OUT_DIR`: `target/anneal` for
/// `target/[triple/]debug/build/llama-sys-…/out`. xtask's is the same one.
pub fn root_for_build_script(out: &Path) -> Result<PathBuf> {
    let marked = out.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file());
    let target = marked.or_else(|| out.ancestors().nth(4)).context("OUT_DIR is no folder of cargo's")?;
    let root = target.join("anneal");
    std::fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
    Ok(root)
}

/// The folder of this crate, in the checkout at work.
fn own_folder() -> PathBuf {
    let compiled = env!("CARGO_MANIFEST_DIR");
    base::checkout(compiled).map_or_else(|| PathBuf::from(compiled), |root| root.join("vendor/source"))
}
