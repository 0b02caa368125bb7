//! Puts a build into a store: what is large and named by its digest first, then the entry by which it is found, then the
//! list of the newest. Whoever is killed on the way leaves an object that nothing names.

use std::path::Path;

use anyhow::{Context, Result};
use build_info::{Bytes, Sha256};
use ship::files;

use crate::entry::{self, Newest, Object};
use crate::order::{Publish, Published};
use crate::place::{self, Place};
use crate::take::TREE;
use crate::{Entry, ask, layout};

/// Much faster than the archive's level, and few per cent larger: it is packed once and read in a rack.
const LEVEL: i32 = 9;

/// A list of a few digests.
const LARGEST_LIST: Bytes = Bytes(1 << 16);

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
    let scratch = tempfile::tempdir().context("cannot make a temporary folder")?;
    let tree = match order.tree.is_empty() {
        true => None,
        false => {
            let path = scratch.path().join("object.tar.zst");
            ship::plain(TREE, &order.tree, order.mtime, LEVEL, &path)?;
            Some(send(&*place, &path, order.force, &mut sent).with_context(cannot)?)
        }
    };
    let entry = Entry { schema: entry::SCHEMA, key: key.clone(), build: order.build.clone(), archive, tree };
    // What cannot be read again is not written.
    Entry::parse(&entry.to_json(), &key).context("this build cannot be described in a store")?;
    let path = layout::build(&key);
    let first = match order.force {
        true => {
            let file = scratch.path().join("entry.json");
            std::fs::write(&file, entry.to_json())
                .with_context(|| format!("cannot write {}", file.display()))?;
            place.put(&path, &file).map(|()| true)
        }
        false => place.put_new(&path, &entry.to_json()),
    };
    // The first one stays: others may have taken it, and its objects, already.
    let (entry, was_there) = match first.with_context(cannot)? {
        true => (entry, false),
        false => {
            let first = ask::entry(&*place, &order.store, &key)?;
            (first.with_context(|| format!("{path} was there and is gone: somebody cleans the store"))?, true)
        }
    };
    list(&*place, &entry).with_context(cannot)?;
    Ok(Published { entry, was_there, sent })
}

/// Puts the file `path` under its digest, unless it is there.
fn send(place: &dyn Place, path: &Path, force: bool, sent: &mut Bytes) -> Result<Object> {
    let (size, sha256): (u64, Sha256) = files::digest(path)?;
    let object = Object { sha256, size: Bytes(size) };
    let to = layout::object(&object.sha256);
    if force || place.size(&to)? != Some(object.size) {
        place.put(&to, path)?;
        *sent = Bytes(sent.0 + size);
    }
    Ok(object)
}

/// Makes `entry` the newest of its kind. A damaged list is made anew: it is only a help for finding.
fn list(place: &dyn Place, entry: &Entry) -> Result<()> {
    let path = layout::newest(&entry.build.parts.kind(), &entry.build.profile);
    place.change(&path, LARGEST_LIST, &mut |there| {
        let newest = there.and_then(|text| Newest::parse(text).ok()).unwrap_or_default();
        // It is told of already, whoever came first.
        if newest
            .builds
            .iter()
            .any(|pointer| pointer.key == entry.key && pointer.published == entry.build.published)
        {
            return Ok(None);
        }
        Ok(Some(serde_json::to_vec_pretty(&newest.with(entry))?))
    })
}
