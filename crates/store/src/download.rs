//! Objects, which are nothing but their digest till that has been seen to be right.

use std::path::Path;

use anyhow::{Result, ensure};
use base::exit::code_of;
use ship::files;

use crate::entry::Object;
use crate::layout;
use crate::location::Location;
use crate::place::StoreBackend;

/// Copies `object` of the store at `place`, which people call `store`, to the new file `to`.
///
/// # Errors
/// When it is not there, or not what its name says; nothing is left then.
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
            1 => "; where it is damaged, `cargo xtask publish --force` replaces it",
            // A server that cannot be reached, or a user who asks to stop, says nothing about the object.
            _ => "",
        };
        error.context(format!("cannot fetch {path} from the store {store}{remedy}"))
    })?;
    ensure!(
        there,
        "{path} is not in the store {store}, though an entry names it: `cargo xtask publish --force` puts it back"
    );
    let (size, sha256) = files::digest(to)?;
    ensure!(
        sha256 == object.sha256,
        "{path} in the store {store} is damaged: it has {size} bytes of {} and the SHA-256 {sha256} instead of {}; \
         `cargo xtask publish --force` replaces it",
        object.size.0,
        object.sha256
    );
    Ok(())
}
