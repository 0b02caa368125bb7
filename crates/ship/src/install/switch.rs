//! Puts a version into its place and makes it current, each by one rename.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::links::{self, PendingLinks};
use super::prefix::{Prefix, is_there};
use super::running::{check_still_runs, lock_installed};
use super::source::SourceNotes;
use crate::order::{Rollback, Switched};
use crate::{files, interrupt, sums};

/// Puts the checked folder `staged` to the versions as `name` and makes it current; whether it was there already.
///
/// # Errors
/// When another content is there under this name and `force` does not say to replace it. Whatever fails, what was
/// current stays so.
pub fn put(prefix: &Prefix, name: &str, staged: &Path, force: bool, told: &mut SourceNotes) -> Result<bool> {
    // The last place to stop at: what follows is a few renames.
    interrupt::check()?;
    let place = prefix.version(name);
    let there = is_there(&place);
    if there {
        let list = |folder: &Path| fs::read(folder.join(sums::LIST)).ok();
        let same = list(&place) == list(staged);
        let damage = sums::check(&place).err();
        match (same, damage) {
            (true, None) => {
                make_current(prefix, name)?;
                return Ok(true);
            }
            (true, Some(damage)) => {
                told.notes.push(format!("{name} was damaged and is repaired: {damage:#}"))
            }
            (false, _) if !force => bail!(
                "{name} is installed with other content: `--force` replaces it (then there is no way back to that), or \
                 uninstall it first"
            ),
            (false, _) => told.notes.push(format!("{name} replaces another content of the same name")),
        }
        // At once, so that whoever starts it meanwhile finds the one or the other.
        exchange(staged, &place)?;
    } else {
        fs::rename(staged, &place)
            .with_context(|| format!("cannot move {} to {}", staged.display(), place.display()))?;
    }
    let was_current = is_current(prefix, name);
    let switched = files::sync_folder(&prefix.versions()).and_then(|()| make_current(prefix, name));
    if switched.is_err() && (was_current || !is_current(prefix, name)) {
        // Back to what was there. A disk that did not take the switch fails after it, and what is current stays.
        let _ = if there { exchange(staged, &place) } else { files::remove_tree(&place) };
    }
    switched.map(|()| false)
}

/// Makes the version `name` current, and what was so till now the previous one.
pub fn make_current(prefix: &Prefix, name: &str) -> Result<()> {
    let links = links::make(prefix, &prefix.version(name))?;
    let before = prefix.current()?;
    if is_current(prefix, name) {
        links.keep();
        return Ok(());
    }
    let earlier = fs::read_link(prefix.previous_link()).ok();
    // Killed between these two, the current one is still there, and the next switch does both.
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

/// Points `current` at the version `name`, for which `links` were made. They stay where it came to that, though the disk
/// may not have taken it, which is an error too.
pub fn point_current(prefix: &Prefix, name: &str, links: PendingLinks) -> Result<()> {
    let switched = files::switch_link(&prefix.current_link(), &target(name));
    if is_current(prefix, name) {
        links.keep();
    }
    switched
}

fn is_current(prefix: &Prefix, name: &str) -> bool {
    prefix.current().is_ok_and(|current| current.as_deref() == Some(name))
}

/// What a link to the version `name` holds.
fn target(name: &str) -> PathBuf {
    PathBuf::from("versions").join(name)
}

/// Makes the version current that was so before.
pub fn rollback(order: &Rollback) -> Result<Switched> {
    let prefix = Prefix::of(order.prefix.as_deref())?;
    let _lock = if order.dry_run { None } else { Some(lock_installed(&prefix, "rollback", false)?) };
    let (current, previous) = (prefix.current()?, prefix.way_back()?);
    let (Some(current), Some(previous)) = (current, previous) else {
        bail!(
            "there is no version to go back to in {}: `cargo xtask install --list` shows what is installed",
            prefix.root().display()
        );
    };
    check_still_runs(&prefix, &previous)?;
    if !order.dry_run {
        let links = links::make(&prefix, &prefix.version(&previous))?;
        if prefix.previous()?.as_ref() != Some(&previous) {
            files::switch_link(&prefix.previous_link(), &target(&previous))?;
        }
        // Both links at once; elsewhere one after the other, the one that matters first.
        match exchange(&prefix.current_link(), &prefix.previous_link()) {
            Ok(()) => links.keep(),
            Err(_) => {
                point_current(&prefix, &previous, links)?;
                files::switch_link(&prefix.previous_link(), &target(&current))?;
            }
        }
        files::sync_folder(&prefix.home())?;
        links::sweep(&prefix)?;
    }
    Ok(Switched { current: previous, previous: current, dry_run: order.dry_run })
}

/// Lets two names change places in one step.
fn exchange(one: &Path, other: &Path) -> Result<()> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).map_err(|error| match error {
        Errno::INVAL | Errno::NOSYS | Errno::NOTSUP => anyhow::anyhow!(
            "this file system cannot replace {} in one step: uninstall it first, then install again",
            other.display()
        ),
        other_error => anyhow::Error::from(other_error).context(format!(
            "cannot put {} into the place of {}",
            one.display(),
            other.display()
        )),
    })
}
