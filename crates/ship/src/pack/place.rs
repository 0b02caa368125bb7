//! Moving of checked archives to the folder from which installers read.

use std::fs;

use anyhow::{Context, Result};

use super::members::sum_of;
use super::{downloads, index};
use crate::order::{Archive, Place};
use install::{files, interrupt};

/// Moves the archives of `order` with their checksums, replacing earlier archives of the same names, and rewrites the
/// index and the table of downloads. During the move, or after the process was killed, an installer may find an archive with a wrong checksum or
/// two different checksums. The installer refuses such an archive, and the next run repairs the folder.
///
/// # Errors
/// If a file cannot be moved or the index cannot be written.
pub fn place(order: &Place) -> Result<Vec<Archive>> {
    let out = &order.out;
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    interrupt::check()?;
    let mut placed = Vec::new();
    for archive in &order.archives {
        let path = out.join(archive.path.file_name().unwrap_or_default());
        for (from, to) in [(archive.path.clone(), path.clone()), (sum_of(&archive.path), sum_of(&path))] {
            fs::rename(&from, &to)
                .with_context(|| format!("cannot move {} to {}", from.display(), to.display()))?;
        }
        placed.push(Archive { path, ..archive.clone() });
    }
    files::sync_folder(out)?;
    index::update(out)?;
    downloads::update(out, &placed, &order.audience)?;
    Ok(placed)
}
