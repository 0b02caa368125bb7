//! Publication of a build: first the large objects, named after their digests, then the entry, then the list of the
//! newest entries. A publisher that is killed leaves an object that nothing refers to.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use base::exit;
use build_info::{Bytes, Sha256};
use install::files;

use crate::entry::{self, Entry, LARGEST_LIST, Newest, Object, Refused};
use crate::location::Location;
use crate::order::{Publish, Published};
use crate::place::{self, StoreBackend};
use crate::take::TREE;
use crate::{ask, layout};

/// Compression level. It is much faster than the archive's level, and its output is only a few percent larger. That
/// suits a tree that is packed once and read over a local network.
const LEVEL: i32 = 9;

/// Maximum number of attempts to write an entry while another publisher interferes.
const MOST_TURNS: u32 = 5;

/// Publishes a build unless the store already contains it.
///
/// # Errors
/// If the store cannot be written.
pub fn publish(order: &Publish) -> Result<Published> {
    let place = place::open(&order.store)?;
    let key = order.build.parts.key();
    let cannot = || format!("cannot publish to {}", order.store);
    // The check also creates the folder of a new store.
    place.check_writable().with_context(cannot)?;
    if !order.force
        && let Some(entry) = ask::entry(&*place, &order.store, &key)?
    {
        list(&*place, &entry)?;
        return Ok(Published { entry, was_there: true, sent: Bytes(0) });
    }
    let mut sent = Bytes(0);
    let archive = send(&*place, &order.archive, order.force, &mut sent).with_context(cannot)?;
    let tree = match order.tree.is_empty() {
        true => None,
        false => {
            let path = order.work.join("object.tar.zst");
            ship::plain(TREE, &order.tree, order.mtime, LEVEL, &path)?;
            Some(send(&*place, &path, order.force, &mut sent).with_context(cannot)?)
        }
    };
    let entry = Entry { schema: entry::SCHEMA, key: key.clone(), build: order.build.clone(), archive, tree };
    // An entry that could not be parsed must not be written.
    Entry::parse(&entry.to_json(), &key).context("cannot write a valid store entry for this build")?;
    let (entry, was_there) = match order.force {
        true => {
            let file = order.work.join("entry.json");
            std::fs::write(&file, entry.to_json())
                .with_context(|| format!("cannot write {}", file.display()))?;
            place.put(&layout::build(&key), &file).with_context(cannot)?;
            (entry, false)
        }
        false => put_first(&*place, &order.store, entry).with_context(cannot)?,
    };
    list(&*place, &entry).with_context(cannot)?;
    Ok(Published { entry, was_there, sent })
}

/// Writes `entry` unless the store has an entry of the same key. Returns the stored entry, and true if that entry
/// existed before. The first entry is kept, because other machines may have downloaded it and its objects.
fn put_first(place: &dyn StoreBackend, store: &Location, entry: Entry) -> Result<(Entry, bool)> {
    let path = layout::build(&entry.key);
    for turn in 0..MOST_TURNS {
        if place.put_new(&path, &entry.to_json())? {
            return Ok((entry, false));
        }
        if let Some(first) = ask::entry(place, store, &entry.key)? {
            return Ok((first, true));
        }
        // S3 refuses one of two concurrent writes, even if the other write fails in the end.
        std::thread::sleep(Duration::from_millis(100 << turn));
    }
    Err(exit::try_again(format!(
        "cannot write {path}: {MOST_TURNS} attempts failed because of concurrent writes\nhint: try again later"
    )))
}

/// Writes the file `path` under its digest, unless the object exists.
fn send(place: &dyn StoreBackend, path: &Path, force: bool, sent: &mut Bytes) -> Result<Object> {
    let (size, sha256): (u64, Sha256) = files::digest(path)?;
    let object = Object { sha256, size: Bytes(size) };
    let to = layout::object(&object.sha256);
    if force || place.size(&to)? != Some(object.size) {
        place.put(&to, path)?;
        *sent = Bytes(sent.0 + size);
    }
    Ok(object)
}

/// True if the list for the entry's kind contains `entry`, or is full of newer entries.
///
/// # Errors
/// If the list cannot be read.
pub fn is_listed(place: &dyn StoreBackend, entry: &Entry) -> Result<bool> {
    let path = layout::newest(&entry.build.parts.kind(), &entry.build.profile);
    let newest = place.small(&path, LARGEST_LIST)?.map(|text| Newest::parse(&text));
    Ok(matches!(newest, Some(Ok(newest)) if newest.clone().with(entry) == newest))
}

/// Adds `entry` to the list for its kind. A damaged list is replaced, because the list only helps to find entries. A
/// list written by a later version of Anneal is not replaced, because it may contain unknown fields.
///
/// # Errors
/// If the list cannot be changed.
pub fn list(place: &dyn StoreBackend, entry: &Entry) -> Result<()> {
    let path = layout::newest(&entry.build.parts.kind(), &entry.build.profile);
    place.change(&path, LARGEST_LIST, &mut |there| {
        let newest = match there.map(Newest::parse) {
            Some(Ok(newest)) => newest,
            Some(Err(newer @ Refused::Newer { .. })) => {
                return Err(newer).with_context(|| {
                    format!(
                        "the build is published, but `install --store` cannot find it, because the list {path} \
                         was not changed")
                });
            }
            Some(Err(Refused::Wrong(_))) | None => Newest::default(),
        };
        let changed = newest.clone().with(entry);
        // Nothing changes if the list already contains the entry, or the entry is too old for the list.
        Ok((changed != newest).then(|| serde_json::to_vec_pretty(&changed)).transpose()?)
    })
}
