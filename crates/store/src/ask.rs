//! Looks up a build in a store.

use anyhow::{Context, Result};
use build_info::{Bytes, Sha256};

use crate::entry::{Entry, Refused};
use crate::layout;
use crate::location::Location;
use crate::order::Ask;
use crate::place::{self, StoreBackend};

/// Maximum size of an entry. A typical entry takes about ten kilobytes, mostly for the plan.
const LARGEST_ENTRY: Bytes = Bytes(1 << 20);

/// Returns the entry of a key, or `None` if the store has no such entry.
///
/// # Errors
/// If the store cannot be read or the entry is refused.
pub fn ask(order: &Ask) -> Result<Option<Box<Entry>>> {
    Ok(entry(&*place::open(&order.store)?, &order.store, &order.key)?.map(Box::new))
}

/// Returns the entry of `key` in the store at `place`, or `None`. Error messages refer to the store as `store`.
///
/// # Errors
/// If the store cannot be read or the entry is refused.
pub fn entry(place: &dyn StoreBackend, store: &Location, key: &Sha256) -> Result<Option<Entry>> {
    let path = layout::build(key);
    let cannot = || format!("cannot query the store {store} for {path}");
    let Some(text) = place.small(&path, LARGEST_ENTRY).with_context(cannot)? else { return Ok(None) };
    let entry = Entry::parse(&text, key).map_err(|refused| {
        let remedy = match refused {
            // An older version of Anneal must not overwrite an entry of a newer version.
            Refused::Newer { .. } => "",
            Refused::Wrong(_) => "; `cargo xtask publish --force` replaces it",
        };
        anyhow::Error::new(refused).context(format!("cannot use {path} in the store {store}{remedy}"))
    })?;
    Ok(Some(entry))
}
