//! Archives without licences and documents, for machines that share a store.

use std::path::Path;

use anyhow::Result;
use build_info::Bytes;

use super::members::{Member, Members, add};
use super::tarball::{self, Packing};
use crate::order::{Archive, Item};
use install::{files, name};

/// Packs `items` below the folder `name` into `out`, compressed by zstd at `level`, with the modification time
/// `mtime`.
///
/// # Errors
/// If an item cannot be read or is not a regular file, two items have the same name, or `out` cannot be written.
pub fn plain(name: &str, items: &[Item], mtime: u64, level: i32, out: &Path) -> Result<Archive> {
    name::check_version(name)?;
    let mut members = Members::new();
    for item in items {
        add(&mut members, &item.to, Member::of(&item.from, item.executable)?)?;
    }
    files::write_beside(out, |file| tarball::write(&members, name, mtime, Packing::Zstd(level), file))?;
    let (size, sha256) = files::digest(out)?;
    Ok(Archive { path: out.to_path_buf(), size: Bytes(size), sha256 })
}
