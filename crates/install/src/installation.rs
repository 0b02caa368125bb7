//! Installation of an archive, and the list of installed versions.

use anyhow::Result;
use base::exit;
use build_info::Bytes;

use crate::lock::{self, PrefixLock};
use crate::order::{self, Install, Installed, InstalledVersion, List};
use crate::prefix::{self, Prefix, is_there};
use crate::signature::TrustedKey;
use crate::source::{self, ArchiveLocation, Source, SourceNotes};
use crate::{files, links, stage, sums, switch};

/// Installs the archive that `order` specifies, or, in a dry run, returns what would be installed.
///
/// # Errors
/// If the archive is refused or cannot be installed.
pub fn install(order: &Install) -> Result<Installed> {
    if order.no_check && order.sha256.is_some() {
        return Err(exit::usage("--no-check cannot be used with --sha256"));
    }
    let prefix = Prefix::of(order.prefix.as_deref())?;
    let key = TrustedKey::configured(order.key.as_deref(), prefix.root())?;
    let mut told = SourceNotes::default();
    let place = source::find(order, &mut told)?;
    let name = source::name_of(&place)?;
    // These checks come before anything is downloaded or created.
    prefix.previous()?;
    links::check(&prefix, None)?;
    let plain_folder = std::fs::symlink_metadata(prefix.version(&name)).map_or(true, |meta| meta.is_dir());
    if !plain_folder {
        return Err(prefix::foreign(&prefix.version(&name)));
    }
    if order.dry_run {
        return would_install(order, &prefix, &place, key.as_ref(), told);
    }

    prefix.make_folder("lib/anneal/versions")?;
    let _lock = PrefixLock::take(&prefix, "install")?;
    let installed = fetch_and_put(order, &prefix, &place, name, key.as_ref(), told);
    if installed.is_err() && prefix.is_empty() {
        // If the first installation was refused, nothing is installed, so no later uninstall would remove the folders.
        let _ = prefix.remove_empty();
    }
    installed
}

/// Downloads the archive at `place`, checks it, moves it into place and makes it current.
fn fetch_and_put(
    order: &Install,
    prefix: &Prefix,
    place: &ArchiveLocation,
    name: String,
    key: Option<&TrustedKey>,
    mut told: SourceNotes,
) -> Result<Installed> {
    let scratch = lock::staging(prefix)?;
    let source = source::open(place, order, key, Some(scratch.path()), &mut told)?;
    let staged = stage::stage(source, scratch.path())?;
    let version = stage::check(&staged)?;
    links::check(prefix, Some(&staged))?;
    let before = prefix.current()?;
    let was_there = switch::put(prefix, &name, &staged, order.force, &mut told)?;
    drop(scratch);
    links::sweep(prefix)?;
    note_path(prefix, &mut told);
    Ok(Installed {
        folder: prefix.version(&name),
        program: prefix.program(),
        version: Some(version),
        previous: before.filter(|before| *before != name),
        name,
        was_there,
        dry_run: false,
        notes: told.notes,
        warnings: told.warnings,
    })
}

/// Returns the result of a dry run: everything that can be determined without writing.
fn would_install(
    order: &Install,
    prefix: &Prefix,
    place: &ArchiveLocation,
    key: Option<&TrustedKey>,
    mut told: SourceNotes,
) -> Result<Installed> {
    let name = source::name_of(place)?;
    match place {
        ArchiveLocation::There(url, _) => {
            told.notes.push(format!("would download {url} and its checksum, and check the archive"))
        }
        _ => match source::open(place, order, key, None, &mut told)? {
            Source::Archive(archive) => {
                let size = Bytes(archive.size);
                told.notes.push(format!("{size}, SHA-256 {}, checked", archive.sha256));
            }
            Source::Tree { folder, .. } => {
                sums::check(&folder)?;
                told.notes.push(format!("{}: all files match the list of checksums", folder.display()));
            }
        },
    }
    let was_there = is_there(&prefix.version(&name));
    Ok(Installed {
        folder: prefix.version(&name),
        program: prefix.program(),
        version: None,
        previous: prefix.current()?.filter(|before| *before != name),
        name,
        was_there,
        dry_run: true,
        notes: told.notes,
        warnings: told.warnings,
    })
}

/// Adds a note if a shell would not find the installed program.
fn note_path(prefix: &Prefix, told: &mut SourceNotes) {
    let bin = prefix.root().join("bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    let found = folders.iter().map(|folder| folder.join("anneal")).find(|program| program.is_file());
    match found {
        Some(found) if found.canonicalize().ok() != prefix.program().canonicalize().ok() => {
            told.warnings.push(format!(
                "a shell finds {} first\nhint: put {} before that folder in PATH, or remove that program",
                found.display(),
                bin.display()
            ));
        }
        None => told.warnings.push(format!(
            "{} is not in PATH\nhint: add it (export PATH=\"{}:$PATH\" in ~/.profile), or run {}",
            bin.display(),
            bin.display(),
            prefix.program().display()
        )),
        Some(_) => {}
    }
}

/// Lists the versions below a prefix, each with the result of checking its files.
///
/// # Errors
/// If the prefix cannot be read.
pub fn list(order: &List) -> Result<Vec<InstalledVersion>> {
    let prefix = Prefix::of(order.prefix.as_deref())?;
    let (current, previous) = (prefix.current()?, prefix.way_back()?);
    let describe = |name: String| {
        let folder = prefix.version(&name);
        let size = |name: &String| folder.join(name).metadata().map_or(0, |meta| meta.len());
        let bytes = files::tree(&folder).unwrap_or_default().iter().map(size).sum();
        Ok(order::InstalledVersion {
            current: current.as_ref() == Some(&name),
            previous: previous.as_ref() == Some(&name),
            size: Bytes(bytes),
            problem: sums::check(&folder).err().map(|error| format!("{error:#}")),
            name,
        })
    };
    prefix.all()?.into_iter().map(describe).collect()
}
