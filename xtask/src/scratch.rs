//! Folders for the work of one command, on the disk of the builds.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;

/// Names that are tried: as many commands of one process have a folder at once, with some to spare.
const MOST: u32 = 100;

/// A folder that is empty at first, and goes however the work in it ends. That of a killed process goes with the next one
/// that is made, or with `clean`.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// Held as long as the folder is used; nothing where the file system has no locks, and nobody takes it away then.
    _lock: Option<File>,
}

impl Scratch {
    /// One for what `purpose` says in a word.
    pub fn make(workspace: &Workspace, purpose: &str) -> Result<Self> {
        let all = workspace.scratch();
        let cannot = || format!("cannot make a folder in {}", all.display());
        fs::create_dir_all(&all).with_context(cannot)?;
        for folder in left(workspace) {
            let _ = fs::remove_dir_all(folder);
        }
        for number in 0..MOST {
            let path = all.join(format!("{purpose}.{}.{number}", std::process::id()));
            match fs::create_dir(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                made => made.with_context(cannot)?,
            }
            match held(&path) {
                Held::ByUs(lock) => return Ok(Self { path, _lock: Some(lock) }),
                Held::Unknown => return Ok(Self { path, _lock: None }),
                // Somebody took it for what a killed process left.
                Held::ByOthers => {}
            }
        }
        bail!("{}: {MOST} names are taken", cannot())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Folders that killed processes left.
pub fn left(workspace: &Workspace) -> Vec<PathBuf> {
    let entries = fs::read_dir(workspace.scratch()).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| matches!(held(path), Held::ByUs(_))).collect()
}

/// Who has a folder.
enum Held {
    /// Nobody had it, and we do now.
    ByUs(File),
    ByOthers,
    /// That cannot be told here.
    Unknown,
}

fn held(path: &Path) -> Held {
    let Ok(folder) = File::open(path) else { return Held::ByOthers };
    match folder.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Held::ByOthers,
        Err(TryLockError::Error(_)) => return Held::Unknown,
    }
    // What was removed meanwhile can be locked too, and is not what has the name now.
    let number = |meta: std::io::Result<fs::Metadata>| meta.ok().map(|meta| (meta.dev(), meta.ino()));
    match number(folder.metadata()) == number(fs::metadata(path)) {
        true => Held::ByUs(folder),
        false => Held::ByOthers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_empty_and_ones_own_and_what_is_left_goes() {
        let root = tempfile::tempdir().unwrap();
        let workspace = Workspace::at(root.path());
        // A killed process of this number, with what it had.
        let killed = workspace.scratch().join(format!("work.{}.0", std::process::id()));
        fs::create_dir_all(&killed).unwrap();
        fs::write(killed.join("half"), "").unwrap();
        assert_eq!(left(&workspace), std::slice::from_ref(&killed));
        let one = Scratch::make(&workspace, "work").unwrap();
        assert_eq!(fs::read_dir(one.path()).unwrap().count(), 0);
        fs::write(one.path().join("file"), "").unwrap();
        let other = Scratch::make(&workspace, "work").unwrap();
        assert_ne!(one.path(), other.path());
        assert!(one.path().join("file").is_file() && left(&workspace).is_empty());
        drop((one, other));
        assert_eq!(fs::read_dir(workspace.scratch()).unwrap().count(), 0);
    }
}
