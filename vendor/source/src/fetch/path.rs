//! Origin `path`: a copy of a folder of the user's.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use sha256::Sha256;

use super::Fetched;
use crate::digest::Listing;
use crate::progress::FetchProgress;
use crate::{folder, tree};

/// The digest of the sources in `dir`, and whether they can be copied to the store under `root`.
pub(crate) fn digest(dir: &Path, root: &Path, progress: FetchProgress<'_>) -> Result<Sha256> {
    let real = dir.canonicalize().with_context(|| format!("cannot open the folder {}", dir.display()))?;
    tree::versions(dir)?;
    // The store may not be there yet; what is there of it decides.
    let store = root.ancestors().find_map(|above| above.canonicalize().ok());
    ensure!(
        store.is_none_or(|store| !store.starts_with(&real)),
        "{} contains the folder {} that its copy would go to: use a folder outside of it",
        dir.display(),
        root.display()
    );
    progress(&format!("hashing {}", dir.display()));
    Ok(Listing::of_files(folder::sources(dir, progress)?)?.digest())
}

pub(crate) fn fetch(dir: &Path, tree: &Path, progress: FetchProgress<'_>) -> Result<Fetched> {
    progress(&format!("copying {}", dir.display()));
    // What is left out was said when the folder was hashed.
    folder::copy(&folder::sources(dir, &mut |_| {})?, tree)?;
    Ok(Fetched {
        version: None,
        build_commit: None,
        from: dir.display().to_string(),
        mend: "the folder changed while it was read: try again when nothing writes to it".to_string(),
    })
}
