//! Scratch folders for single commands, on the disk that contains the builds or in a given folder.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base::TempDir;

use crate::workspace::Workspace;

/// Maximum number of attempts. Several attempts may be needed, because a process that removes old folders briefly
/// locks new ones.
const TRIES: u32 = 100;

/// Folder that is created empty and removed at the end of its command. The folder of a killed process is removed when
/// the next scratch folder is created, or by `clean`.
#[derive(Debug)]
pub struct Scratch {
    folder: TempDir,
    /// Lock that is held while the folder is in use. `None` if the file system has no locks, in which case no other
    /// process removes the folder.
    _lock: Option<File>,
}

impl Scratch {
    /// Creates a folder whose name contains `purpose`, a single word.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn make(workspace: &Workspace, purpose: &str) -> Result<Self> {
        let all = workspace.scratch();
        let cannot = || format!("cannot create a folder in {}", all.display());
        fs::create_dir_all(&all).with_context(cannot)?;
        for folder in left(workspace) {
            let _ = fs::remove_dir_all(folder);
        }
        Self::create(&all, purpose)
    }

    /// Creates a scratch folder in `folder`, which may contain files of other programs. Of the leftovers of killed
    /// processes, removes only folders that are named like scratch folders for `purpose`.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn among_others(folder: &Path, purpose: &str) -> Result<Self> {
        let ours =
            |path: &Path| path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) && is_of(path, purpose);
        for folder in unused(folder, ours) {
            // Other users' folders cannot be removed, so they stay.
            let _ = fs::remove_dir_all(folder);
        }
        Self::create(folder, purpose)
    }

    fn create(all: &Path, purpose: &str) -> Result<Self> {
        let cannot = || format!("cannot create a folder in {}", all.display());
        for _ in 0..TRIES {
            let name = format!("{purpose}.{}.", std::process::id());
            let folder = base::scratch_in(all, &name).with_context(cannot)?;
            match held(folder.path()) {
                Held::ByUs(lock) => return Ok(Self { folder, _lock: Some(lock) }),
                Held::Unknown => return Ok(Self { folder, _lock: None }),
                // Another process mistook the folder for a leftover.
                Held::ByOthers => {}
            }
        }
        bail!("{}: another process removed each new folder", cannot())
    }

    /// Moves the folder to `place`, replacing any folder at that path, so that the user can examine a failure.
    ///
    /// # Errors
    /// If the folder cannot be moved.
    pub fn keep(self, place: &Path) -> Result<()> {
        let _ = fs::remove_dir_all(place);
        fs::rename(self.path(), place)
            .with_context(|| format!("cannot move {} to {}", self.path().display(), place.display()))
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Returns the folders that killed processes left behind.
pub fn left(workspace: &Workspace) -> Vec<PathBuf> {
    unused(&workspace.scratch(), |_| true)
}

/// True if `path` is named like a scratch folder for `purpose`: `PURPOSE.PROCESS.RANDOM`.
fn is_of(path: &Path, purpose: &str) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let rest = name.strip_prefix(purpose).and_then(|rest| rest.strip_prefix('.')?.split_once('.'));
    let is_random = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    rest.is_some_and(|(process, random)| process.parse::<u32>().is_ok() && is_random(random))
}

/// Returns the entries of `folder` that satisfy `ours` and that no process has locked.
fn unused(folder: &Path, ours: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path()).filter(|path| ours(path));
    paths.filter(|path| matches!(held(path), Held::ByUs(_))).collect()
}

/// Holder of the lock on a folder.
enum Held {
    /// Locked by this process just now.
    ByUs(File),
    ByOthers,
    /// Unknown, because the file system has no locks.
    Unknown,
}

fn held(path: &Path) -> Held {
    let Ok(folder) = File::open(path) else { return Held::ByOthers };
    match folder.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Held::ByOthers,
        Err(TryLockError::Error(_)) => return Held::Unknown,
    }
    // The locked folder may have been removed, and another folder may now have its name.
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
        // Leftover of a killed process that had the same process ID as this process.
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

    #[test]
    fn among_others_only_what_is_ones_own_goes() {
        let folder = tempfile::tempdir().unwrap();
        let made = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (left, theirs, file) = (made("work.1.0"), made("workshop.1.0"), folder.path().join("work.json"));
        fs::write(left.join("model.gguf"), "").unwrap();
        fs::write(&file, "").unwrap();
        let others = ["work.of somebody", "work.old", "work.1", "work.1.0.x"].map(made);
        let link = folder.path().join("work.2.0");
        std::os::unix::fs::symlink(&theirs, &link).unwrap();
        let one = Scratch::among_others(folder.path(), "work").unwrap();
        let other = Scratch::among_others(folder.path(), "work").unwrap();
        assert_ne!(one.path(), other.path());
        assert!(one.path().is_dir() && theirs.is_dir() && file.is_file() && !left.exists());
        assert_eq!(one.path().metadata().unwrap().mode() & 0o777, 0o700);
        drop((one, other));
        assert!(theirs.is_dir() && link.is_symlink() && others.iter().all(|folder| folder.is_dir()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3 + others.len());
        let nowhere = format!("{:#}", Scratch::among_others(Path::new("/proc"), "work").unwrap_err());
        assert!(nowhere.contains("/proc"), "{nowhere}");
    }
}
