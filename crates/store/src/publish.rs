//! Puts a build into a store: what is large and named by its digest first, then the entry by which it is found, then the
//! list of the newest. Whoever is killed on the way leaves an object that nothing names.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use base::exit;
use build_info::{Bytes, Sha256};
use ship::files;

use crate::entry::{self, Entry, LARGEST_LIST, Newest, Object, Refused};
use crate::location::Location;
use crate::order::{Publish, Published};
use crate::place::{self, StoreBackend};
use crate::take::TREE;
use crate::{ask, layout};

/// Much faster than the archive's level, and few per cent larger: it is packed once and read in a rack.
const LEVEL: i32 = 9;

/// How often an entry is put anew that another publisher was in the way of, and did not put either.
const MOST_TURNS: u32 = 5;

/// Publishes, unless the build is there.
pub fn publish(order: &Publish) -> Result<Published> {
    let place = place::open(&order.store)?;
    let key = order.build.parts.key();
    let cannot = || format!("cannot publish to {}", order.store);
    // Makes the folder of a store that begins with this build.
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
    // What cannot be read again is not written.
    Entry::parse(&entry.to_json(), &key).context("this build cannot be described in a store")?;
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

/// Puts `entry`, unless there is one of its key; the one that is there now, and whether it was there. The first one stays:
/// others may have taken it, and its objects, already.
fn put_first(place: &dyn StoreBackend, store: &Location, entry: Entry) -> Result<(Entry, bool)> {
    let path = layout::build(&entry.key);
    for turn in 0..MOST_TURNS {
        if place.put_new(&path, &entry.to_json())? {
            return Ok((entry, false));
        }
        if let Some(first) = ask::entry(place, store, &entry.key)? {
            return Ok((first, true));
        }
        // S3 refuses one of two that come at once, also when the other one does not come through in the end.
        std::thread::sleep(Duration::from_millis(100 << turn));
    }
    Err(exit::try_again(format!(
        "another publisher was in the way of {path} {MOST_TURNS} times, and put nothing there: try again later"
    )))
}

/// Puts the file `path` under its digest, unless it is there.
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

/// Whether the list of its kind names `entry`, or has newer ones enough.
pub fn is_listed(place: &dyn StoreBackend, entry: &Entry) -> Result<bool> {
    let path = layout::newest(&entry.build.parts.kind(), &entry.build.profile);
    let newest = place.small(&path, LARGEST_LIST)?.map(|text| Newest::parse(&text));
    Ok(matches!(newest, Some(Ok(newest)) if newest.clone().with(entry) == newest))
}

/// Puts `entry` into the list of its kind. A damaged list is made anew: it is only a help for finding. A later Anneal's is
/// not: that has in it what we do not know.
pub fn list(place: &dyn StoreBackend, entry: &Entry) -> Result<()> {
    let path = layout::newest(&entry.build.parts.kind(), &entry.build.profile);
    place.change(&path, LARGEST_LIST, &mut |there| {
        let newest = match there.map(Newest::parse) {
            Some(Ok(newest)) => newest,
            Some(Err(newer @ Refused::Newer { .. })) => {
                return Err(newer).with_context(|| {
                    format!("the build is published, and `install --store` does not find it: {path} is left as it is")
                });
            }
            Some(Err(Refused::Wrong(_))) | None => Newest::default(),
        };
        let changed = newest.clone().with(entry);
        // It is told of already, whoever came first, or is too old for it.
        Ok((changed != newest).then(|| serde_json::to_vec_pretty(&changed)).transpose()?)
    })
}
