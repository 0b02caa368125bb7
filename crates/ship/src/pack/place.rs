//! Archives that may be passed on go to where installers look for them.

use std::fs;

use anyhow::{Context, Result};

use super::index;
use super::members::sum_of;
use crate::order::{Archive, Place};
use crate::{files, interrupt};

/// Moves the archives of `order` with their sums, in the place of earlier ones of their names, and then writes the index
/// anew. Whoever reads meanwhile, or after a kill, finds an archive and a sum that do not belong together, or two sums that
/// differ: that is refused, and the next run mends it.
pub fn place(order: &Place) -> Result<Vec<Archive>> {
    let out = &order.out;
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
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
    Ok(placed)
}
