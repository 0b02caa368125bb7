//! Whether a build is there.

use anyhow::{Context, Result};
use build_info::{Bytes, Sha256};

use crate::entry::{Entry, Refused};
use crate::layout;
use crate::location::Location;
use crate::order::Ask;
use crate::place::{self, StoreBackend};

/// An entry is some ten kilobytes, most of it the plan.
const LARGEST_ENTRY: Bytes = Bytes(1 << 20);

/// The entry of a key, if there is one.
pub fn ask(order: &Ask) -> Result<Option<Box<Entry>>> {
    Ok(entry(&*place::open(&order.store)?, &order.store, &order.key)?.map(Box::new))
}

/// The entry of `key` in the store at `place`, which people call `store`.
pub fn entry(place: &dyn StoreBackend, store: &Location, key: &Sha256) -> Result<Option<Entry>> {
    let path = layout::build(key);
    let cannot = || format!("cannot ask the store {store} for {path}");
    let Some(text) = place.small(&path, LARGEST_ENTRY).with_context(cannot)? else { return Ok(None) };
    let entry = Entry::parse(&text, key).map_err(|refused| {
        let remedy = match refused {
            // An old Anneal must not overwrite what a newer one published.
            Refused::Newer { .. } => "",
            Refused::Wrong(_) => ": `cargo xtask publish --force` replaces it",
        };
        anyhow::Error::new(refused).context(format!("{path} in the store {store} is not taken{remedy}"))
    })?;
    Ok(Some(entry))
}
