//! Download of objects, whose content is only used once its digest is verified.

use std::path::Path;

use anyhow::{Result, ensure};
use base::exit::code_of;
use install::files;

use crate::entry::Object;
use crate::layout;
use crate::location::Location;
use crate::place::StoreBackend;

/// Copies `object` from the store at `place` to the new file `to`. Error messages refer to the store as `store`.
///
/// # Errors
/// If the object does not exist or its digest differs. In both cases no file is left.
pub fn object(place: &dyn StoreBackend, store: &Location, object: &Object, to: &Path) -> Result<()> {
    let done = fetched(place, store, object, to);
    if done.is_err() {
        let _ = std::fs::remove_file(to);
    }
    done
}

fn fetched(place: &dyn StoreBackend, store: &Location, object: &Object, to: &Path) -> Result<()> {
    let path = layout::object(&object.sha256);
    let there = place.fetch(&path, object.size, to).map_err(|error| {
        let remedy = match code_of(&error) {
            1 => "; if it is damaged, `cargo xtask publish --force` replaces it",
            // An unreachable server or an interruption does not mean that the object is damaged.
            _ => "",
        };
        error.context(format!("cannot download {path} from the store {store}{remedy}"))
    })?;
    ensure!(
        there,
        "{path} is missing from the store {store}, although an entry refers to it\nhint: `cargo xtask \
         publish --force` restores it"
    );
    let (size, sha256) = files::digest(to)?;
    ensure!(
        sha256 == object.sha256,
        "{path} in the store {store} is damaged: it has {size} of {} bytes, and its SHA-256 is \
         {sha256} instead of {}\nhint: `cargo xtask publish --force` replaces it",
        object.size.0,
        object.sha256
    );
    Ok(())
}
