//! The newest archive for a machine that cannot build, or shall not.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, ensure};
use base::exit;

use crate::entry::{self, Entry, LARGEST_LIST, Newest, Pointer};
use crate::order::{Choose, ChosenBuild};
use crate::place::{self, Refused, StoreBackend};
use crate::{ask, download, layout, tuned};

/// Fetches the newest archive that starts on the machine.
///
/// # Errors
/// With exit code 69 when there is none, and why.
pub fn choose(order: &Choose) -> Result<ChosenBuild> {
    let place = place::open(&order.store)?;
    let mut notes = Vec::new();
    let (entry, archive) = find(&*place, order, &mut notes)?;
    let tuning = tuned::fetch(&*place, &entry, order.cpu.as_ref(), &mut notes);
    Ok(ChosenBuild { entry, archive, tuning, notes })
}

/// Whether `entry`, which a list of `kind` led to, is what was asked for: a list is written by whoever may write, and a
/// build for another CPU or C library would not start here.
fn check(entry: &Entry, kind: &str, order: &Choose) -> Result<()> {
    let (build, path) = (&entry.build, layout::newest(kind, &order.profile));
    let wrong =
        || format!("{path} in the store {} leads to {}, which is not of that list", order.store, entry.key);
    ensure!(build.profile == order.profile, "{}: it is a build of {}", wrong(), build.profile);
    ensure!(build.parts.kind() == kind, "{}: it is for {}", wrong(), build.parts.kind());
    if let (Some(needed), Some(here)) = (build.glibc, order.glibc) {
        ensure!(needed <= here, "{}: it needs glibc {needed} and this machine has {here}", wrong());
    }
    Ok(())
}

/// The build that `pointer` of the list of `kind` leads to, and its archive if it is wanted; nothing if the entry is gone.
fn get(
    place: &dyn StoreBackend,
    order: &Choose,
    kind: &str,
    pointer: &Pointer,
) -> Result<Option<(Entry, Option<PathBuf>)>> {
    let Some(entry) = ask::entry(place, &order.store, &pointer.key)? else { return Ok(None) };
    check(&entry, kind, order)?;
    let Some(into) = &order.into else { return Ok(Some((entry, None))) };
    let path = into.join(format!("{}.tar.zst", entry.build.name));
    download::object(place, &order.store, &entry.archive, &path)?;
    Ok(Some((entry, Some(path))))
}

/// True if `error` says nothing about the build: an older one would fail likewise, or succeed for a wrong reason.
fn ends_the_search(error: &anyhow::Error) -> bool {
    let is_of_this_machine = |error: &io::Error| {
        matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
    };
    exit::code_of(error) != 1
        || error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(is_of_this_machine))
}

/// The newest intact build of the first kind that has one, and its archive. A kind that may not be listed, an entry that is
/// gone and a build that is refused are notes if there is another build.
fn find(
    place: &dyn StoreBackend,
    order: &Choose,
    notes: &mut Vec<String>,
) -> Result<(Entry, Option<PathBuf>)> {
    let (mut too_new, mut refused, mut gone, mut damaged) = (None, None, Vec::new(), Vec::new());
    for kind in &order.kinds {
        let path = layout::newest(kind, &order.profile);
        let cannot = || format!("cannot ask the store {} for {path}", order.store);
        let text = match place.small(&path, LARGEST_LIST).with_context(cannot) {
            Err(error) if error.is::<Refused>() => {
                notes.push(format!("{error:#}"));
                refused = refused.or(Some(error));
                continue;
            }
            text => text?,
        };
        let Some(text) = text else { continue };
        let newest = Newest::parse(&text).map_err(|refused| {
            let remedy = match refused {
                entry::Refused::Newer { .. } => String::new(),
                entry::Refused::Wrong(_) => format!(
                    ": `cargo xtask publish --profile {}` of a build that it should name makes it anew",
                    order.profile
                ),
            };
            let context = format!("the list {path} in the store {} is not taken{remedy}", order.store);
            anyhow::Error::new(refused).context(context)
        })?;
        let starts: Vec<_> = newest.for_glibc(order.glibc).collect();
        for pointer in &starts {
            match get(place, order, kind, pointer) {
                Ok(Some(found)) => {
                    notes.append(&mut gone);
                    notes.append(&mut damaged);
                    return Ok(found);
                }
                Ok(None) => gone.push(format!(
                    "{} is gone from the store {}, though {path} names it: `cargo xtask publish --profile {}` where that \
                     was built puts it there again",
                    layout::build(&pointer.key),
                    order.store,
                    order.profile
                )),
                Err(error) if ends_the_search(&error) => return Err(error),
                Err(error) => damaged.push(format!("{error:#}")),
            }
        }
        if starts.is_empty() {
            too_new = newest.builds.first().and_then(|pointer| pointer.glibc).or(too_new);
        }
    }
    // Nobody knows then whether there is one.
    if let Some(refused) = refused {
        return Err(refused);
    }
    if !damaged.is_empty() {
        damaged.append(&mut gone);
        return Err(anyhow!(
            "no build of {} in {} can be taken: {}",
            order.profile,
            order.store,
            damaged.join("; ")
        ));
    }
    if !gone.is_empty() {
        return Err(exit::lacks(gone.join("; ")));
    }
    let (store, profile) = (&order.store, &order.profile);
    if let (Some(needed), Some(here)) = (too_new, order.glibc) {
        return Err(exit::lacks(format!(
            "the builds of {profile} in {store} for this CPU need glibc {needed} and this machine has {here}: publish one \
             from a machine with that, or take the profile portable"
        )));
    }
    let there = match place.folders(layout::KINDS) {
        Ok(Some(kinds)) if kinds.is_empty() => "; it lists no build at all".to_string(),
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
