//! The newest archive for a machine that cannot build, or shall not.

use anyhow::{Context, Result};
use build_info::Bytes;
use ship::exit;

use crate::entry::{Newest, Pointer};
use crate::order::{Choose, Chosen};
use crate::place::{self, Place};
use crate::{ask, download, layout, tuned};

/// A list of a few digests.
const LARGEST_LIST: Bytes = Bytes(1 << 16);

/// Fetches the newest archive that starts on the machine.
///
/// # Errors
/// With exit code 69 when there is none, and why.
pub fn choose(order: &Choose) -> Result<Chosen> {
    let place = place::open(&order.store)?;
    let pointer = find(&*place, order)?;
    let entry = ask::entry(&*place, &order.store, &pointer.key)?.with_context(|| {
        format!(
            "{} is gone from the store {}, though a list names it",
            layout::build(&pointer.key),
            order.store
        )
    })?;
    let mut notes = Vec::new();
    let archive = match &order.into {
        None => None,
        Some(into) => {
            let path = into.join(format!("{}.tar.zst", entry.build.name));
            download::object(&*place, &order.store, &entry.archive, &path)?;
            Some(path)
        }
    };
    let tuning = tuned::fetch(&*place, &entry, order.cpu.as_ref(), &mut notes);
    Ok(Chosen { entry, archive, tuning, notes })
}

/// The newest entry of the first kind that has one.
fn find(place: &dyn Place, order: &Choose) -> Result<Pointer> {
    let mut too_new = None;
    for kind in &order.kinds {
        let path = layout::newest(kind, &order.profile);
        let cannot = || format!("cannot ask the store {} for {path}", order.store);
        let Some(text) = place.small(&path, LARGEST_LIST).with_context(cannot)? else { continue };
        let newest = Newest::parse(&text).with_context(cannot)?;
        if let Some(pointer) = newest.for_glibc(order.glibc) {
            return Ok(pointer.clone());
        }
        too_new = newest.builds.first().and_then(|pointer| pointer.glibc).or(too_new);
    }
    let (store, profile) = (&order.store, &order.profile);
    if let (Some(needed), Some(here)) = (too_new, order.glibc) {
        return Err(exit::lacks(format!(
            "the builds of {profile} in {store} for this CPU need glibc {needed} and this machine has {here}: publish one \
             from a machine with that, or take the profile portable"
        )));
    }
    let there = match place.folders(layout::KINDS) {
        Ok(Some(kinds)) if kinds.is_empty() => "; the store is empty".to_string(),
        Ok(Some(kinds)) => format!("; it has builds for {}", kinds.join(", ")),
        // A web server, or nobody who may list.
        Ok(None) | Err(_) => String::new(),
    };
    Err(exit::lacks(format!(
        "{store} has no build of {profile} for {}{there}: `cargo xtask publish --profile {profile}` on a machine of this \
         kind puts one there",
        order.kinds.join(" or ")
    )))
}
