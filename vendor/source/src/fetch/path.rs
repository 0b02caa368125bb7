//! Origin `path`: a copy of a user's folder.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use sha256::Sha256;

use super::Fetched;
use crate::digest::Listing;
use crate::progress::FetchProgress;
use crate::{folder, tree};

/// Returns the digest of the sources in `dir`. Fails if the sources cannot be copied to the store under `root`.
pub(crate) fn digest(dir: &Path, root: &Path, progress: FetchProgress<'_>) -> Result<Sha256> {
    let real = dir.canonicalize().with_context(|| format!("cannot open the folder {}", dir.display()))?;
    tree::versions(dir)?;
    // The store may not exist yet, so its nearest existing ancestor is checked.
    let store = root.ancestors().find_map(|above| above.canonicalize().ok());
    ensure!(
        store.is_none_or(|store| !store.starts_with(&real)),
        "{} contains {}, the destination of the copy\nhint: use a folder outside of it",
        dir.display(),
        root.display()
    );
    progress(&format!("hashing {}", dir.display()));
    Ok(Listing::of_files(folder::sources(dir, progress)?)?.digest())
}

pub(crate) fn fetch(dir: &Path, tree: &Path, progress: FetchProgress<'_>) -> Result<Fetched> {
    progress(&format!("copying {}", dir.display()));
    // Skipped files were already reported when the folder was hashed.
    folder::copy(&folder::sources(dir, &mut |_| {})?, tree)?;
    Ok(Fetched {
        version: None,
        build_commit: None,
        from: dir.display().to_string(),
        mend: "hint: the folder changed while it was read; try again when no program writes to it"
            .to_string(),
    })
}
