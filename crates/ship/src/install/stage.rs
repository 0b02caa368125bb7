//! An archive becomes a folder, and the folder is held against all that it says of itself.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use base::exit;
use serde::Deserialize;

use super::source::Source;
use crate::progress::Progress;
use crate::{elf, files, name, program, sums, unpack};

/// A record is some kilobytes.
const LARGEST_RECORD: u64 = 8 << 20;

/// What is read of build_info.json: any version of it will do, the program itself reads the rest.
#[derive(Deserialize)]
struct RecordHead {
    target: String,
}

/// Puts what is in `source` into a folder of its own in `scratch`.
pub fn stage(source: Source, scratch: &Path) -> Result<PathBuf> {
    match source {
        Source::Archive(archive) => {
            let mut progress = Progress::new("unpacking", Some(archive.size));
            let seen = |bytes| progress.add(bytes);
            let unpacked = unpack::unpack(&archive.file, &archive.name, scratch, seen)
                .with_context(|| format!("cannot unpack the archive of {}", archive.name))?;
            ensure!(
                unpacked.sha256 == archive.sha256,
                "the archive of {} changed while it was unpacked: run the same again",
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

/// Copies an unpacked archive, without what an archive cannot hold.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let mut made = vec![to.to_path_buf()];
    fs::create_dir(to).with_context(|| format!("cannot make {}", to.display()))?;
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

/// Whether the version in `folder` is whole, for this machine, and runs; what it says of itself.
pub fn check(folder: &Path) -> Result<String> {
    sums::check(folder)?;
    let record = folder.join("build_info.json");
    let text = files::read_small(&record, LARGEST_RECORD)?;
    let RecordHead { target } =
        serde_json::from_slice(&text).with_context(|| format!("cannot understand {}", record.display()))?;
    let mut parts = target.split('-');
    let here = (std::env::consts::ARCH, std::env::consts::OS);
    let arch = parts.next().unwrap_or_default();
    if arch != here.0 || !parts.any(|part| part == here.1) {
        return Err(exit::lacks(format!(
            "it is built for {target} and this machine is {}-{}: take an archive for that",
            here.0, here.1
        )));
    }
    let anneal = folder.join("bin/anneal");
    elf::check_host(&anneal)?;
    let mode = anneal.metadata()?.permissions().mode();
    ensure!(mode & 0o111 == 0o111, "bin/anneal in it may not be run (mode {:o})", mode & 0o777);
    program::version(&[], &anneal, folder)
}
