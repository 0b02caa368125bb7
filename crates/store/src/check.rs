//! Whether what a store has of a build is whole: for who would publish it again.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use ship::files;

use crate::entry::Object;
use crate::order::{Check, Checked};
use crate::place::{self, StoreBackend};
use crate::publish::{is_listed, list};
use crate::{ask, layout};

/// Reads all that the entry of a key names, if there is one.
pub fn check(order: &Check) -> Result<Option<Box<Checked>>> {
    let place = place::open(&order.store)?;
    let Some(entry) = ask::entry(&*place, &order.store, &order.key)? else { return Ok(None) };
    let mut damaged = Vec::new();
    let objects = [("archive", Some(&entry.archive)), ("tree", entry.tree.as_ref())];
    for (name, object) in objects.into_iter().filter_map(|(name, object)| Some((name, object?))) {
        let path = order.work.join(name);
        let found = damage(&*place, object, &path)
            .with_context(|| format!("cannot tell whether the store {} is whole", order.store))?;
        damaged.extend(found);
    }
    let listed = is_listed(&*place, &entry)?;
    if order.list && damaged.is_empty() && !listed {
        list(&*place, &entry)?;
    }
    Ok(Some(Box::new(Checked { entry, damaged, listed })))
}

/// What is wrong with `object`, if something is; `to` is for a copy of it.
fn damage(place: &dyn StoreBackend, object: &Object, to: &Path) -> Result<Option<String>> {
    let path = layout::object(&object.sha256);
    match place.size(&path)? {
        None => return Ok(Some(format!("{path} is gone"))),
        Some(size) if size != object.size => {
            return Ok(Some(format!("{path} has {} bytes instead of {}", size.0, object.size.0)));
        }
        Some(_) => {}
    }
    ensure!(place.fetch(&path, object.size, to)?, "{path} has just gone");
    let (_, sha256) = files::digest(to)?;
    let _ = std::fs::remove_file(to);
    Ok((sha256 != object.sha256).then(|| format!("{path} holds other bytes: their SHA-256 is {sha256}")))
}
