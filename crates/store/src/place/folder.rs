//! Store in a folder, on this machine or on a network file system.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base::exit;
use base::{Access, Pending, Unfinished};
use build_info::Bytes;
use install::progress::Progress;
use install::{files, interrupt};

use super::medium::{Edit, StoreBackend, check_readable};

/// Lock file that is held while a list is changed, which takes milliseconds.
const LOCK: &str = "v1/.lock";
/// Maximum time to wait for the lock.
const PATIENCE: Duration = Duration::from_secs(30);
/// Age at which the leftovers of a killed publisher are removed. No transfer takes this long.
const STALE: Duration = Duration::from_secs(24 * 3600);

/// Store in a folder.
pub struct FolderStore {
    root: PathBuf,
}

impl FolderStore {
    /// Returns the store at `root`. The folder need not exist yet.
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Creates the folder of the file `path`, and removes the leftovers of killed publishers from it.
    fn prepared(&self, path: &str) -> Result<PathBuf> {
        let path = self.path(path);
        let folder = path.parent().unwrap_or(&self.root);
        self.make_open(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
            let name = entry.file_name();
            let unfinished = name.to_str().is_some_and(|name| Unfinished::parse(name).is_some());
            if unfinished && age().is_some_and(|age| age > STALE) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(path)
    }

    /// Creates the root and `folder` below the root. Other users can read both folders regardless of the umask, and
    /// can write to them if the parent folder is writable for a group. Existing folders keep their permissions.
    fn make_open(&self, folder: &Path) -> io::Result<()> {
        if let Some(above) = self.root.parent() {
            fs::create_dir_all(above)?;
        }
        let below = folder.ancestors().take_while(|folder| folder.starts_with(&self.root));
        for folder in below.collect::<Vec<_>>().into_iter().rev() {
            let of_group = match folder.parent().filter(|above| above.starts_with(&self.root)) {
                Some(above) => above.metadata()?.permissions().mode() & 0o2020,
                None => 0,
            };
            files::make_open(folder, 0o755 | of_group)?;
        }
        Ok(())
    }

    fn lock(&self) -> Result<File> {
        let path = self.prepared(LOCK)?;
        let cannot = || format!("cannot lock {}", path.display());
        let file = match base::open_or_create(&path) {
            // The file belongs to another user but can still be locked.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => File::open(&path),
            made => made,
        }
        .with_context(cannot)?;
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if begun.elapsed() < PATIENCE => {
                    interrupt::check()?;
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(exit::try_again(format!(
                        "cannot lock {}: another publisher has held the lock for {} s\nhint: try again later",
                        path.display(),
                        PATIENCE.as_secs()
                    )));
                }
                Err(TryLockError::Error(error)) => return Err(error).with_context(cannot),
            }
        }
    }
}

impl StoreBackend for FolderStore {
    fn small(&self, path: &str, most: Bytes) -> Result<Option<Vec<u8>>> {
        let path = self.path(path);
        match fs::metadata(&path) {
            Err(error) if is_absent(&error) => {
                // A disk that is not mounted must not look like an empty store.
                ensure!(self.root.is_dir(), "the folder {} does not exist", self.root.display());
                Ok(None)
            }
            _ => files::read_small(&path, most.0).map(Some),
        }
    }

    fn fetch(&self, path: &str, size: Bytes, to: &Path) -> Result<bool> {
        let path = self.path(path);
        if fs::metadata(&path).is_err_and(|error| is_absent(&error)) {
            return Ok(false);
        }
        let from = files::open_regular(&path)?.take(size.0.saturating_add(1));
        let to_file = File::create_new(to).with_context(|| format!("cannot write {}", to.display()))?;
        let mut progress = Progress::new("fetching", Some(size.0));
        let copied = files::copy(from, &to_file, |piece| progress.add(piece.len() as u64))
            .with_context(|| format!("cannot copy {} to {}", path.display(), to.display()))?;
        ensure!(copied <= size.0, "cannot read {}: it is larger than {size}", path.display());
        Ok(true)
    }

    fn size(&self, path: &str) -> Result<Option<Bytes>> {
        let path = self.path(path);
        match fs::metadata(&path) {
            Ok(meta) => Ok(Some(Bytes(meta.len()))),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot examine {}", path.display())),
        }
    }

    fn put(&self, path: &str, from: &Path) -> Result<()> {
        let path = self.prepared(path)?;
        let source = files::open_regular(from)?;
        let mut progress = Progress::new("sending", Some(source.metadata()?.len()));
        files::write_beside(&path, |file| {
            files::copy(source, file, |piece| progress.add(piece.len() as u64))
                .map(drop)
                .with_context(|| format!("cannot copy {} to {}", from.display(), path.display()))
        })
    }

    fn put_new(&self, path: &str, content: &[u8]) -> Result<bool> {
        let path = self.prepared(path)?;
        let cannot = || format!("cannot write {}", path.display());
        // Other machines read the file.
        let mut beside = Pending::beside(&path, Access::Exactly(0o644)).with_context(cannot)?;
        let made = beside.write_all(content).and_then(|()| beside.sync()).and_then(|()| beside.commit_new());
        let made = made.with_context(cannot)?;
        if made {
            files::sync_folder(path.parent().unwrap_or(&self.root))?;
        }
        Ok(made)
    }

    fn change(&self, path: &str, most: Bytes, edit: Edit<'_>) -> Result<()> {
        let _lock = self.lock()?;
        // The folder is prepared even if nothing changes, because a killed publisher may have left temporary files next
        // to a complete list.
        let to = self.prepared(path)?;
        let there = match self.size(path)? {
            Some(size) if size > most => None,
            _ => self.small(path, most)?,
        };
        let Some(content) = edit(there.as_deref())? else { return Ok(()) };
        check_readable(path, &content, most)?;
        files::replace(&to, &content)
    }

    fn folders(&self, path: &str) -> Result<Option<Vec<String>>> {
        let path = self.path(path);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if is_absent(&error) => return Ok(Some(Vec::new())),
            Err(error) => return Err(error).with_context(|| format!("cannot list {}", path.display())),
        };
        let folders = entries.flatten().filter(|entry| entry.path().is_dir());
        let mut names: Vec<String> =
            folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        Ok(Some(names))
    }

    fn check_writable(&self) -> Result<()> {
        let path = self.prepared(LOCK)?;
        let folder = path.parent().unwrap_or(&self.root);
        let made = Pending::beside(&path, Access::Private);
        made.map(drop).with_context(|| format!("cannot write to {}", folder.display()))
    }
}

/// True if the file does not exist or its parent is not a folder.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}
