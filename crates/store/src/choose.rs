//! Chooses the newest archive, for a machine that should not or cannot build.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, ensure};
use base::exit;

use crate::entry::{self, Entry, LARGEST_LIST, Newest, Pointer};
use crate::order::{Choose, ChosenBuild};
use crate::place::{self, Refused, StoreBackend};
use crate::{ask, download, layout, tuned};

/// Downloads the newest archive that runs on the machine.
///
/// # Errors
/// If no such archive exists, with exit code 69 and the reason.
pub fn choose(order: &Choose) -> Result<ChosenBuild> {
    let place = place::open(&order.store)?;
    let mut notes = Vec::new();
    let (entry, archive) = find(&*place, order, &mut notes)?;
    let tuning = tuned::fetch(&*place, &entry, order.cpu.as_ref(), &mut notes);
    Ok(ChosenBuild { entry, archive, tuning, notes })
}

/// Checks that `entry`, which the list of `kind` contains, matches the order. A list may be wrong, and a build for
/// another CPU or C library would not start on this machine.
fn check(entry: &Entry, kind: &str, order: &Choose) -> Result<()> {
    let (build, path) = (&entry.build, layout::newest(kind, &order.profile));
    let wrong = || {
        format!(
            "the list {path} in the store {} contains {}, which belongs to another list",
            order.store, entry.key
        )
    };
    ensure!(build.profile == order.profile, "{}: it is a build with the profile {}", wrong(), build.profile);
    ensure!(build.parts.kind() == kind, "{}: it is for {}", wrong(), build.parts.kind());
    if let (Some(needed), Some(here)) = (build.glibc, order.glibc) {
        ensure!(needed <= here, "{}: it needs glibc {needed}, but this machine has {here}", wrong());
    }
    Ok(())
}

/// Returns the build that `pointer` in the list of `kind` refers to, and its archive if requested; `None` if the entry
/// no longer exists.
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

/// True if `error` does not concern this build: an older build would fail for the same reason, or would be chosen for
/// the wrong reason.
fn ends_the_search(error: &anyhow::Error) -> bool {
    let is_of_this_machine = |error: &io::Error| {
        matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
    };
    exit::code_of(error) != 1
        || error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(is_of_this_machine))
}

/// Returns the newest intact build of the first kind that has one, with its archive. Lists without read permission,
/// missing entries and refused builds become notes if another build is found.
fn find(
    place: &dyn StoreBackend,
    order: &Choose,
    notes: &mut Vec<String>,
) -> Result<(Entry, Option<PathBuf>)> {
    let (mut too_new, mut refused, mut gone, mut damaged) = (None, None, Vec::new(), Vec::new());
    for kind in &order.kinds {
        let path = layout::newest(kind, &order.profile);
        let cannot = || format!("cannot query the store {} for {path}", order.store);
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
                    "; `cargo xtask publish --profile {}` on a machine of this kind rewrites the list",
                    order.profile
                ),
            };
            let context = format!("cannot use the list {path} in the store {}{remedy}", order.store);
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
                    "{} is missing from the store {}, although the list {path} contains it; to restore it, \
                     run `cargo xtask publish --profile {}` on the machine that built it",
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
    // A kind may have a build even if its list cannot be read.
    if let Some(refused) = refused {
        return Err(refused);
    }
    if !damaged.is_empty() {
        damaged.append(&mut gone);
        return Err(anyhow!(
            "every {} build in {} is unusable: {}",
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
            "the {profile} builds in {store} for this CPU need glibc {needed}, but this machine has \
             {here}\nhint: publish a build from a machine with glibc {here} or older, or use the profile portable"
        )));
    }
    let there = match place.folders(layout::KINDS) {
        Ok(Some(kinds)) if kinds.is_empty() => "; it lists no builds at all".to_string(),
        Ok(Some(kinds)) => format!("; it has builds for {}", kinds.join(", ")),
        // The store is a web server, or the credentials do not permit listing.
        Ok(None) | Err(_) => String::new(),
    };
    Err(exit::lacks(format!(
        "{store} has no build with the profile {profile} for {}{there}\nhint: run `cargo xtask publish \
         --profile {profile}` on a machine of this kind",
        order.kinds.join(" or ")
    )))
}
