//! Removes versions. Removing the last version removes everything else that Anneal installed, too.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use base::exit;

use crate::files;
use crate::lock::staging;
use crate::order::{Uninstall, Uninstalled};
use crate::prefix::{self, Prefix};
use crate::running::{check_still_runs, lock_installed};
use crate::{links, switch};

/// Removes one version or all versions.
///
/// # Errors
/// If the version is not installed or cannot be removed.
pub fn uninstall(order: &Uninstall) -> Result<Uninstalled> {
    if order.all && order.version.is_some() {
        return Err(exit::usage("a version cannot be combined with --all"));
    }
    let prefix = Prefix::of(order.prefix.as_deref())?;
    let lock = if order.dry_run { None } else { Some(lock_installed(&prefix, "uninstall", order.all)?) };
    let all = prefix.all()?;
    let current = prefix.current()?.filter(|name| all.contains(name));
    let doomed = match (&order.version, &current) {
        _ if order.all => all.clone(),
        (Some(asked), _) => vec![prefix::find(asked, &all)?],
        (None, Some(current)) => vec![current.clone()],
        (None, None) => {
            return Err(exit::usage(format!(
                "no version is current\nhint: specify the version to remove ({}), or use --all",
                all.join(", ")
            )));
        }
    };
    let left: Vec<&String> = all.iter().filter(|name| !doomed.contains(name)).collect();
    let next = match &current {
        Some(current) if !doomed.contains(current) => Some(current.clone()),
        _ => {
            let previous = prefix.previous()?.filter(|name| left.contains(&name));
            previous.or_else(|| left.last().map(|name| (*name).clone()))
        }
    };
    if let Some(next) = next.as_ref().filter(|next| current.as_ref() != Some(next)) {
        check_still_runs(&prefix, next)
            .with_context(|| format!("cannot remove the version: {next} would become current"))?;
    }
    if order.dry_run {
        return Ok(Uninstalled { removed: doomed, current: next, dry_run: true });
    }

    match &next {
        Some(next) => switch_away(&prefix, next, &doomed)?,
        None => {
            // Links are removed first, because they must never lead to a partial version.
            links::remove(&prefix)?;
            remove_link(&prefix.current_link())?;
            remove_link(&prefix.previous_link())?;
        }
    }
    let scratch = staging(&prefix)?;
    for name in &doomed {
        // One rename moves the folder away, so that a killed process leaves a complete version or none.
        let out = scratch.path().join(name);
        let place = prefix.version(name);
        fs::rename(&place, &out).with_context(|| format!("cannot move {} away", place.display()))?;
        files::remove_tree(&out)?;
    }
    drop(scratch);
    if next.is_none() {
        prefix.remove_empty()?;
    }
    drop(lock);
    Ok(Uninstalled { removed: doomed, current: next, dry_run: false })
}

/// Makes `next` current unless it already is, and removes the link to the previous version if that version is among
/// `doomed`.
fn switch_away(prefix: &Prefix, next: &str, doomed: &[String]) -> Result<()> {
    let current = prefix.current()?;
    let previous = prefix.previous()?;
    if current.as_deref() != Some(next) {
        let links = links::make(prefix, &prefix.version(next))?;
        switch::point_current(prefix, next, links)?;
        links::sweep(prefix)?;
    }
    if previous.is_none_or(|name| name == next || doomed.contains(&name)) {
        remove_link(&prefix.previous_link())?;
    }
    Ok(())
}

fn remove_link(link: &Path) -> Result<()> {
    match fs::remove_file(link) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", link.display()))
        }
        _ => Ok(()),
    }
}
