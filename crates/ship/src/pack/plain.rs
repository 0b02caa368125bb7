//! Files in an archive without what strangers need: for machines that share one store.

use std::path::Path;

use anyhow::Result;
use build_info::Bytes;

use super::members::{Member, Members, add};
use super::tarball::{self, Packing};
use crate::order::{Archive, Item};
use crate::{files, name};

/// Packs `items` below the folder `name` into `out`, compressed by zstd at `level`, all of the time `mtime`.
///
/// # Errors
/// When one of them is no regular file or cannot be read, when two have one name, when `out` cannot be written.
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
