//! Activation of versions: one rename moves a version into place, another makes it current.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::links::{self, PendingLinks};
use crate::order::{Rollback, Switched};
use crate::prefix::{Prefix, is_there};
use crate::running::{check_still_runs, lock_installed};
use crate::source::SourceNotes;
use crate::{files, interrupt, sums};

/// Moves the checked folder `staged` into the folder of versions as `name` and makes this version current. Returns
/// true if the same content was already installed.
///
/// # Errors
/// If other content is installed under this name and `force` is false. After any error the current version is
/// unchanged.
pub fn put(prefix: &Prefix, name: &str, staged: &Path, force: bool, told: &mut SourceNotes) -> Result<bool> {
    // This is the last point at which the user can stop the installation; only a few renames follow.
    interrupt::check()?;
    let place = prefix.version(name);
    let there = is_there(&place);
    if there {
        match damage_of(&place, staged)? {
            Damage::None => {
                make_current(prefix, name)?;
                return Ok(true);
            }
            Damage::Repairable(damage) => {
                told.notes.push(format!("{name} was damaged and has been repaired: {damage}"))
            }
            Damage::OtherContent if !force => bail!(
                "{name} is already installed with other content\nhint: uninstall that version first, or replace it \
                 permanently with `anneal self install --force`"
            ),
            Damage::OtherContent => told
                .notes
                .push(format!("{name} replaces an installed version with the same name and other content")),
        }
        // The folders are exchanged in one step, so that a user who starts the program gets either the old or the new
        // version.
        exchange(staged, &place)?;
    } else {
        fs::rename(staged, &place)
            .with_context(|| format!("cannot move {} to {}", staged.display(), place.display()))?;
    }
    let was_current = is_current(prefix, name);
    let switched = files::sync_folder(&prefix.versions()).and_then(|()| make_current(prefix, name));
    if switched.is_err() && (was_current || !is_current(prefix, name)) {
        // Undoes the move. If only the disk reported an error after the switch, the new version is kept.
        let _ = if there { exchange(staged, &place) } else { files::remove_tree(&place) };
    }
    switched.map(|()| false)
}

/// Difference between an installed version and a new copy of the version.
enum Damage {
    /// Both are equal.
    None,
    /// The installed version is damaged, and the new copy repairs it.
    Repairable(String),
    /// Both are different builds of the same name.
    OtherContent,
}

/// Compares the installed version in `place` with the checked copy in `staged`.
fn damage_of(place: &Path, staged: &Path) -> Result<Damage> {
    let list = |folder: &Path| fs::read(folder.join(sums::LIST)).ok();
    let listed = sums::read(staged)?;
    let content = sums::compare(place, &listed);
    Ok(match (list(place) == list(staged), content) {
        (true, Err(damage)) => Damage::Repairable(format!("{damage:#}")),
        (false, Err(_)) => Damage::OtherContent,
        // All files are as listed in the new copy, so the installed list itself is damaged.
        (false, Ok(())) => Damage::Repairable(format!("{} is damaged", place.join(sums::LIST).display())),
        (true, Ok(())) => {
            let mode =
                |folder: &Path, name: &str| folder.join(name).metadata().map(|meta| meta.mode() & 0o777);
            let changed = listed.keys().find(|name| mode(place, name).ok() != mode(staged, name).ok());
            match changed {
                Some(name) => Damage::Repairable(format!("the permissions of {name} were changed")),
                None => Damage::None,
            }
        }
    })
}

/// Makes the version `name` current, and the current version the previous one.
///
/// # Errors
/// If a link cannot be changed.
pub fn make_current(prefix: &Prefix, name: &str) -> Result<()> {
    let links = links::make(prefix, &prefix.version(name))?;
    let before = prefix.current()?;
    if is_current(prefix, name) {
        links.keep();
        return Ok(());
    }
    let earlier = fs::read_link(prefix.previous_link()).ok();
    // A process that is killed between the two switches leaves the current version in place; the next switch repeats
    // both.
    let kept = before.map_or(Ok(()), |before| files::switch_link(&prefix.previous_link(), &target(&before)));
    let switched = match kept {
        Ok(()) => point_current(prefix, name, links),
        failed => failed,
    };
    if switched.is_err() && !is_current(prefix, name) {
        let _ = match earlier {
            Some(earlier) => files::switch_link(&prefix.previous_link(), &earlier),
            None => fs::remove_file(prefix.previous_link()).map_err(Into::into),
        };
    }
    switched
}

/// Points `current` at the version `name`, for which `links` were made. The links are kept once the switch has
/// happened, even if the disk then reports an error.
///
/// # Errors
/// If the link cannot be changed, or the disk reports an error.
pub fn point_current(prefix: &Prefix, name: &str, links: PendingLinks) -> Result<()> {
    let switched = files::switch_link(&prefix.current_link(), &target(name));
    if !is_current(prefix, name) {
        return switched;
    }
    links.keep();
    switched.with_context(|| unconfirmed(name))
}

/// Returns the error if the version `name` is current, but the disk reported an error.
fn unconfirmed(name: &str) -> String {
    format!(
        "{name} is current, but could not be written completely to the disk\nhint: run the same command again"
    )
}

fn is_current(prefix: &Prefix, name: &str) -> bool {
    prefix.current().is_ok_and(|current| current.as_deref() == Some(name))
}

/// Returns the target of a link to the version `name`.
fn target(name: &str) -> PathBuf {
    PathBuf::from("versions").join(name)
}

/// Makes the previous version current.
///
/// # Errors
/// If no previous version exists, or the previous version does not run.
pub fn rollback(order: &Rollback) -> Result<Switched> {
    let prefix = Prefix::of(order.prefix.as_deref())?;
    let _lock = if order.dry_run { None } else { Some(lock_installed(&prefix, "rollback", false)?) };
    let (current, previous) = (prefix.current()?, prefix.way_back()?);
    let (Some(current), Some(previous)) = (current, previous) else {
        bail!(
            "cannot roll back: {} has no previous version\nhint: `anneal self list` shows the installed versions",
            prefix.root().display()
        );
    };
    check_still_runs(&prefix, &previous)?;
    if !order.dry_run {
        let links = links::make(&prefix, &prefix.version(&previous))?;
        if prefix.previous()?.as_ref() != Some(&previous) {
            files::switch_link(&prefix.previous_link(), &target(&previous))?;
        }
        // Both links are exchanged in one step; if the file system cannot do this, `current` is switched first.
        match exchange(&prefix.current_link(), &prefix.previous_link()) {
            Ok(()) => links.keep(),
            Err(_) => {
                point_current(&prefix, &previous, links)?;
                files::switch_link(&prefix.previous_link(), &target(&current))?;
            }
        }
        files::sync_folder(&prefix.home()).with_context(|| unconfirmed(&previous))?;
        links::sweep(&prefix)?;
    }
    Ok(Switched { current: previous, previous: current, dry_run: order.dry_run })
}

/// Exchanges two files or folders in one step.
fn exchange(one: &Path, other: &Path) -> Result<()> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).map_err(|error| match error {
        Errno::INVAL | Errno::NOSYS | Errno::NOTSUP => anyhow::anyhow!(
            "cannot replace {}: this file system cannot exchange folders in one step\nhint: uninstall the \
             version first, then install it again",
            other.display()
        ),
        other_error => anyhow::Error::from(other_error).context(format!(
            "cannot exchange {} with {}",
            one.display(),
            other.display()
        )),
    })
}
