//! Writer of `index.json`, which lists the archives of a folder for installers that read it over HTTP.

use std::path::Path;

use anyhow::{Context, Result};
use build_info::Bytes;

use crate::order::{Index, Listed};
use install::{files, name, sums};

const FILE: &str = "index.json";

/// Rewrites the index of the archives in `folder`.
///
/// # Errors
/// If a file cannot be read or written.
pub fn update(folder: &Path) -> Result<()> {
    let mut archives = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        let parts = name::of_archive(&file).ok().and_then(name::parts);
        let Some((version, target, profile)) =
            parts.filter(|_| entry.file_type().is_ok_and(|kind| kind.is_file()))
        else {
            continue;
        };
        // The digest is read from the checksum file, because archives may be large. Archives without a checksum file
        // are not listed, because no installer would accept them.
        let list = folder.join(format!("{file}.sha256"));
        let told = files::read_small(&list, 1 << 16).and_then(|text| sums::beside(&text, &list, &file));
        let Ok(sha256) = told else { continue };
        let size = Bytes(entry.metadata()?.len());
        let (version, target, profile) = (version.to_string(), target.to_string(), profile.to_string());
        archives.push(Listed { version, target, profile, size, sha256, file });
    }
    archives.sort_by(|one, other| one.file.cmp(&other.file));
    let mut text = serde_json::to_vec_pretty(&Index { schema: 1, archives })?;
    text.push(b'\n');
    files::replace(&folder.join(FILE), &text)
}
