//! The store's lock, and the folders that things are prepared in.
//!
//! A staging folder lies in the store itself, so that a rename publishes what is in it. Only the holder of the
//! lock has one: whatever staging folder the next holder finds belongs to a process that was killed.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::progress::FetchProgress;

const PREFIX: &str = ".staging-";

/// The right to change the store. Given back on drop, or by the system when the process dies.
pub(crate) struct StoreLock {
    _file: File,
    store: PathBuf,
}

impl StoreLock {
    /// Waits for the store at `store`, which is created if it is not there, and sweeps it.
    pub(crate) fn acquire(store: &Path, progress: FetchProgress<'_>) -> Result<Self> {
        fs::create_dir_all(store).with_context(|| format!("cannot create {}", store.display()))?;
        let file = open(store)?;
        let failed = || format!("cannot lock {}", store.join(".lock").display());
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress(&format!("waiting for another process that works on {}", store.display()));
                file.lock().with_context(failed)?;
            }
            Err(TryLockError::Error(error)) => return Err(error).with_context(failed),
        }
        let lock = Self { _file: file, store: store.to_path_buf() };
        lock.sweep()?;
        Ok(lock)
    }

    /// Removes what dead processes left, if there is anything and no other process is at work.
    pub(crate) fn sweep_if_idle(store: &Path) {
        // An opportunity, no duty: the next one who needs the lock sweeps as well and reports what fails.
        if leftovers(store).next().is_none() {
            return;
        }
        if let Ok(file) = open(store)
            && file.try_lock().is_ok()
        {
            let _ = Self { _file: file, store: store.to_path_buf() }.sweep();
        }
    }

    fn sweep(&self) -> Result<()> {
        for leftover in leftovers(&self.store) {
            fs::remove_dir_all(&leftover)
                .with_context(|| format!("cannot remove {}, left by a killed process", leftover.display()))?;
        }
        Ok(())
    }

    /// Creates an empty folder, which is removed on drop.
    pub(crate) fn staging(&self) -> Result<Staging<'_>> {
        // The next holder of the lock removes and reports a folder that could not be removed on drop.
        let folder = base::scratch_in(&self.store, PREFIX)
            .with_context(|| format!("cannot create a folder in {}", self.store.display()))?;
        Ok(Staging { folder, _lock: self })
    }
}

/// A folder to prepare things in.
pub(crate) struct Staging<'a> {
    folder: base::TempDir,
    _lock: &'a StoreLock,
}

impl Staging<'_> {
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Renames `prepared`, which lies in here, to `place`. Something damaged that is already there is replaced.
    pub(crate) fn publish(&self, prepared: &Path, place: &Path) -> Result<()> {
        if place.exists() {
            // Out of the way by a rename as well: nobody sees half of it.
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
