//! Download of the files of a build folder, for a checkout that has not built them.

use std::fs::File;

use anyhow::{Context, Result, ensure};
use install::progress::Progress;

use crate::order::{Take, Taken};
use crate::{ask, download, place, tuned};

/// Name of the single folder in an object with the files of a build folder.
pub const TREE: &str = "anneal-build";

/// Downloads and unpacks the files; returns `None` if the store does not have the build.
///
/// # Errors
/// If the store cannot be read or the files are refused.
pub fn take(order: &Take) -> Result<Option<Box<Taken>>> {
    let place = place::open(&order.store)?;
    let Some(entry) = ask::entry(&*place, &order.store, &order.key)? else { return Ok(None) };
    let Some(tree) = &entry.tree else { return Ok(None) };
    let archive = order.into.join("object.tar.zst");
    download::object(&*place, &order.store, tree, &archive)?;
    let unpacked = {
        let mut progress = Progress::new("unpacking", Some(tree.size.0));
        let file = File::open(&archive).with_context(|| format!("cannot read {}", archive.display()))?;
        install::unpack::unpack(file, TREE, &order.into, |bytes| progress.add(bytes))
            .with_context(|| format!("cannot unpack the object {} of {}", tree.sha256, order.store))?
    };
    // The unpacked content must be the content that was verified.
    ensure!(unpacked.sha256 == tree.sha256, "{} changed while it was unpacked", archive.display());
    std::fs::remove_file(&archive).with_context(|| format!("cannot remove {}", archive.display()))?;
    let mut notes = Vec::new();
    let tuning = tuned::fetch(&*place, &entry, order.cpu.as_ref(), &mut notes);
    Ok(Some(Box::new(Taken { folder: unpacked.folder, entry, tuning, notes })))
}
