//! Staging of an archive: unpacks it into a work folder and checks it against its own lists.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use base::exit;
use serde::Deserialize;

use crate::progress::Progress;
use crate::source::Source;
use crate::{elf, files, name, program, sums, unpack};

/// Maximum size of a build record. Actual records take a few kilobytes.
const LARGEST_RECORD: u64 = 8 << 20;

/// Fields of build_info.json that are read. Every version of the format contains these fields; the program itself
/// reads the rest.
#[derive(Deserialize)]
struct RecordHead {
    target: String,
}

/// Unpacks or copies `source` into a new folder in `scratch` and returns the folder.
///
/// # Errors
/// If the content is refused or cannot be written.
pub fn stage(source: Source, scratch: &Path) -> Result<PathBuf> {
    match source {
        Source::Archive(archive) => {
            let mut progress = Progress::new("unpacking", Some(archive.size));
            let seen = |bytes| progress.add(bytes);
            let unpacked = unpack::unpack(&archive.file, &archive.name, scratch, seen)
                .with_context(|| format!("cannot unpack the archive {}", archive.name))?;
            ensure!(
                unpacked.sha256 == archive.sha256,
                "the archive {} changed while it was unpacked\nhint: run the same command again",
                archive.name
            );
            Ok(unpacked.folder)
        }
        Source::Tree { folder, name } => {
            let copy = scratch.join(&name);
            copy_tree(&folder, &copy)?;
            Ok(copy)
        }
    }
}

/// Copies an unpacked archive, refusing everything that an archive must not contain.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let mut made = vec![to.to_path_buf()];
    fs::create_dir(to).with_context(|| format!("cannot create {}", to.display()))?;
    for name in files::tree(from)? {
        name::check_member(&name)?;
        let (source, target) = (from.join(&name), to.join(&name));
        let cannot = || format!("cannot copy {} to {}", source.display(), target.display());
        let above = target.ancestors().skip(1).take_while(|folder| *folder != to);
        let missing: Vec<_> = above.filter(|folder| !folder.exists()).map(Path::to_path_buf).collect();
        for folder in missing.into_iter().rev() {
            fs::create_dir(&folder).with_context(cannot)?;
            made.push(folder);
        }
        let file = files::open_regular(&source)?;
        let executable = file.metadata()?.permissions().mode() & 0o111 != 0;
        let copy = fs::File::create_new(&target).with_context(cannot)?;
        files::copy(file, &copy, |_| {}).with_context(cannot)?;
        copy.set_permissions(Permissions::from_mode(if executable { 0o755 } else { 0o644 }))
            .and_then(|()| copy.sync_all())
            .with_context(cannot)?;
    }
    for folder in made {
        fs::set_permissions(&folder, Permissions::from_mode(0o755))?;
        files::sync_folder(&folder)?;
    }
    Ok(())
}

/// Checks that the version in `folder` is complete, matches this machine, and runs. Returns the output of
/// `--version`.
///
/// # Errors
/// If a check fails.
pub fn check(folder: &Path) -> Result<String> {
    sums::check(folder)?;
    let record = folder.join("build_info.json");
    let text = files::read_small(&record, LARGEST_RECORD)?;
    let RecordHead { target } =
        serde_json::from_slice(&text).with_context(|| format!("cannot parse {}", record.display()))?;
    let mut parts = target.split('-');
    let here = (std::env::consts::ARCH, std::env::consts::OS);
    let arch = parts.next().unwrap_or_default();
    if arch != here.0 || !parts.any(|part| part == here.1) {
        return Err(exit::lacks(format!(
            "the archive is for {target}, but this machine is {}-{}\nhint: use an archive for this machine",
            here.0, here.1
        )));
    }
    let anneal = folder.join("bin/anneal");
    elf::check_host(&anneal)?;
    let mode = anneal.metadata()?.permissions().mode();
    ensure!(mode & 0o111 == 0o111, "bin/anneal in the archive is not executable (mode {:o})", mode & 0o777);
    program::version(&[], &anneal, folder)
}
