//! Checks a stored build before it is published again.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use install::files;

use crate::entry::Object;
use crate::order::{Check, Checked};
use crate::place::{self, StoreBackend};
use crate::publish::{is_listed, list};
use crate::{ask, layout};

/// Reads every object that the entry of a key refers to, and returns the defects; `None` if the entry does not exist.
///
/// # Errors
/// If the store cannot be read or the entry is refused.
pub fn check(order: &Check) -> Result<Option<Box<Checked>>> {
    let place = place::open(&order.store)?;
    let Some(entry) = ask::entry(&*place, &order.store, &order.key)? else { return Ok(None) };
    let mut damaged = Vec::new();
    let objects = [("archive", Some(&entry.archive)), ("tree", entry.tree.as_ref())];
    for (name, object) in objects.into_iter().filter_map(|(name, object)| Some((name, object?))) {
        let path = order.work.join(name);
        let found = damage(&*place, object, &path)
            .with_context(|| format!("cannot check the store {}", order.store))?;
        damaged.extend(found);
    }
    let listed = is_listed(&*place, &entry)?;
    if order.list && damaged.is_empty() && !listed {
        list(&*place, &entry)?;
    }
    Ok(Some(Box::new(Checked { entry, damaged, listed })))
}

/// Returns the defect of `object`, or `None` if it is intact. Writes a copy of the object to `to`.
fn damage(place: &dyn StoreBackend, object: &Object, to: &Path) -> Result<Option<String>> {
    let path = layout::object(&object.sha256);
    match place.size(&path)? {
        None => return Ok(Some(format!("{path} is missing"))),
        Some(size) if size != object.size => {
            return Ok(Some(format!("{path} has {} bytes instead of {}", size.0, object.size.0)));
        }
        Some(_) => {}
    }
    ensure!(place.fetch(&path, object.size, to)?, "{path} was removed during the check");
    let (_, sha256) = files::digest(to)?;
    let _ = std::fs::remove_file(to);
    Ok((sha256 != object.sha256).then(|| format!("{path} is damaged: its SHA-256 is {sha256}")))
}
