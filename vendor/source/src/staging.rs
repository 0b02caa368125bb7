//! Lock of the store, and its staging folders.
//!
//! A staging folder is in the store itself, so that a rename can publish its contents. Only the holder of the lock may
//! have a staging folder. If the next holder finds a staging folder, a killed process left it behind.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::progress::FetchProgress;

const PREFIX: &str = ".staging-";

/// Exclusive right to change the store. Released on drop, or by the system when the process dies.
pub(crate) struct StoreLock {
    file: File,
    store: PathBuf,
}

impl StoreLock {
    /// Waits for the lock of `store` and removes leftovers. Creates the store if it does not exist.
    pub(crate) fn acquire(store: &Path, progress: FetchProgress<'_>) -> Result<Self> {
        fs::create_dir_all(store).with_context(|| format!("cannot create {}", store.display()))?;
        let file = open(store)?;
        let failed = || format!("cannot lock {}", store.join(".lock").display());
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress(&format!("waiting for another process that uses {}", store.display()));
                file.lock().with_context(failed)?;
            }
            Err(TryLockError::Error(error)) => return Err(error).with_context(failed),
        }
        let lock = Self { file, store: store.to_path_buf() };
        lock.sweep()?;
        Ok(lock)
    }

    /// Removes the leftovers of dead processes, unless another process holds the lock.
    pub(crate) fn sweep_if_idle(store: &Path) {
        // Failures are ignored: the next holder of the lock also removes leftovers, and reports failures.
        if leftovers(store).next().is_none() {
            return;
        }
        if let Ok(file) = open(store)
            && file.try_lock().is_ok()
        {
            let _ = Self { file, store: store.to_path_buf() }.sweep();
        }
    }

    fn sweep(&self) -> Result<()> {
        for leftover in leftovers(&self.store) {
            fs::remove_dir_all(&leftover).with_context(|| {
                format!("cannot remove {}, which a killed process left behind", leftover.display())
            })?;
        }
        Ok(())
    }

    /// Creates an empty folder, which is removed on drop.
    pub(crate) fn staging(&self) -> Result<Staging<'_>> {
        // If the folder cannot be removed on drop, the next holder of the lock removes it.
        let folder = base::scratch_in(&self.store, PREFIX)
            .with_context(|| format!("cannot create a folder in {}", self.store.display()))?;
        Ok(Staging { folder, _lock: self })
    }
}

impl Drop for StoreLock {
    fn drop(&mut self) {
        // Closing the file would not be enough: a child process that another thread is starting may have a copy of it.
        let _ = self.file.unlock();
    }
}

/// Folder in which a tree is prepared before it is published.
pub(crate) struct Staging<'a> {
    folder: base::TempDir,
    _lock: &'a StoreLock,
}

impl Staging<'_> {
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Renames `prepared`, which is in this folder, to `place`. A damaged tree at `place` is replaced.
    pub(crate) fn publish(&self, prepared: &Path, place: &Path) -> Result<()> {
        if place.exists() {
            // The old tree is moved by a rename as well, so that no reader sees only a part of it.
            let old = self.path().join(".replaced");
            fs::rename(place, &old).with_context(|| format!("cannot replace {}", place.display()))?;
        }
        fs::rename(prepared, place)
            .with_context(|| format!("cannot move {} to {}", prepared.display(), place.display()))
    }
}

fn open(store: &Path) -> Result<File> {
    let path = store.join(".lock");
    base::open_or_create(&path).with_context(|| format!("cannot open {} for writing", path.display()))
}

fn leftovers(store: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(store).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)).map(|entry| entry.path())
}
