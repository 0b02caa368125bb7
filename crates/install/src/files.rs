//! File operations: atomic writes that survive a power failure, copies and digests.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use base::{Access, Pending};
use build_info::{Bytes, Sha256};
use sha2::Digest;

use crate::interrupt;

/// Number of bytes that are read at once.
const PIECE: usize = 1 << 16;

/// Replaces `path` atomically with a file that `write` writes. All users can read the file.
///
/// # Errors
/// If `write` fails, or the file cannot be created or renamed.
pub fn write_beside<T>(path: &Path, write: impl FnOnce(&mut File) -> Result<T>) -> Result<T> {
    let cannot = || format!("cannot write {}", path.display());
    let mut beside = Pending::beside(path, Access::Exactly(0o644)).with_context(cannot)?;
    let value = write(beside.file_mut())?;
    beside.commit_durably().with_context(cannot)?;
    Ok(value)
}

/// Replaces `path` atomically with a file that contains `content`. All users can read the file.
///
/// # Errors
/// If the file cannot be written.
pub fn replace(path: &Path, content: &[u8]) -> Result<()> {
    write_beside(path, |file| {
        file.write_all(content).with_context(|| format!("cannot write {}", path.display()))
    })
}

/// Creates a folder with the permissions `mode`, regardless of the umask. An existing folder keeps its permissions.
pub fn make_open(folder: &Path, mode: u32) -> io::Result<()> {
    match std::fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        made => made.and_then(|()| std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode))),
    }
}

/// Flushes the entries of `folder` to the disk.
///
/// # Errors
/// If the folder cannot be opened or the disk reports an error.
pub fn sync_folder(folder: &Path) -> Result<()> {
    base::sync_folder(folder)
        .with_context(|| format!("cannot write the folder {} to the disk", folder.display()))
}

/// Points the symbolic link `link` at `target` with a single rename.
///
/// # Errors
/// If the link cannot be changed, or the disk reports an error.
pub fn switch_link(link: &Path, target: &Path) -> Result<()> {
    base::switch_link(link, target)
        .with_context(|| format!("cannot point {} at {}", link.display(), target.display()))?;
    // An error here means that the link was switched but the disk may not have stored it.
    sync_folder(base::folder_of(link))
}

/// Copies `from` to `to` and returns the number of bytes. Passes each piece to `seen`. Ends if the user asks to stop.
///
/// # Errors
/// If reading or writing fails, or the user stops the copy.
pub fn copy(mut from: impl Read, mut to: impl Write, mut seen: impl FnMut(&[u8])) -> Result<u64> {
    let mut buffer = vec![0; PIECE];
    let mut copied = 0;
    loop {
        interrupt::check()?;
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok(copied),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        seen(&buffer[..read]);
        to.write_all(&buffer[..read])?;
        copied += read as u64;
    }
}

/// Returns the size and the SHA-256 of a regular file's content.
///
/// # Errors
/// If the file cannot be read.
pub fn digest(path: &Path) -> Result<(u64, Sha256)> {
    let cannot = || format!("cannot read {}", path.display());
    let mut file = open_regular(path)?;
    digest_of(&mut file).with_context(cannot)
}

/// Returns the size and the SHA-256 of the content of `from`.
///
/// # Errors
/// If `from` cannot be read.
pub fn digest_of(from: impl Read) -> Result<(u64, Sha256)> {
    let mut hasher = sha2::Sha256::new();
    let size = copy(from, io::sink(), |piece| hasher.update(piece))?;
    Ok((size, hasher.into()))
}

/// Opens a regular file. Anything else is refused, because opening a pipe without a writer would block forever.
///
/// # Errors
/// If the file cannot be opened or is not a regular file.
pub fn open_regular(path: &Path) -> Result<File> {
    let meta = std::fs::metadata(path).with_context(|| format!("cannot open {}", path.display()))?;
    anyhow::ensure!(meta.is_file(), "cannot read {}: it is not a regular file", path.display());
    File::open(path).with_context(|| format!("cannot open {}", path.display()))
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// If the file cannot be read or is larger.
pub fn read_small(path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    open_regular(path)?
        .take(most + 1)
        .read_to_end(&mut content)
        .with_context(|| format!("cannot read {}", path.display()))?;
    anyhow::ensure!(
        content.len() as u64 <= most,
        "cannot read {}: it is larger than {}",
        path.display(),
        Bytes(most)
    );
    Ok(content)
}

/// Returns the paths of the regular files below `folder`, relative to `folder` and separated by `/`, in ascending
/// order.
///
/// # Errors
/// If `folder` contains anything other than files and folders, or a name that is not UTF-8.
pub fn tree(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut waiting = vec![(folder.to_path_buf(), String::new())];
    while let Some((path, name)) = waiting.pop() {
        for entry in std::fs::read_dir(&path).with_context(|| format!("cannot list {}", path.display()))? {
            let entry = entry.with_context(|| format!("cannot list {}", path.display()))?;
            let own = entry.file_name();
            let own = own.to_str().with_context(|| format!("the name {own:?} is not valid UTF-8"))?;
            let name = if name.is_empty() { own.to_string() } else { format!("{name}/{own}") };
            let kind = entry.file_type()?;
            if kind.is_dir() {
                waiting.push((entry.path(), name));
            } else if kind.is_file() {
                found.push(name);
            } else {
                anyhow::bail!("{} is neither a file nor a folder", entry.path().display());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Removes a folder with its content. A missing folder is not an error.
///
/// # Errors
/// If the folder cannot be removed.
pub fn remove_tree(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        replace(&path, b"old").unwrap();
        let failed: Result<()> = write_beside(&path, |file| {
            file.write_all(b"half")?;
            anyhow::bail!("the disk is full")
        });
        assert!(failed.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_tree_is_files_and_folders_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("b")).unwrap();
        std::fs::write(folder.path().join("b/c"), "").unwrap();
        std::fs::write(folder.path().join("a"), "").unwrap();
        assert_eq!(tree(folder.path()).unwrap(), ["a", "b/c"]);
        std::os::unix::fs::symlink("a", folder.path().join("link")).unwrap();
        assert!(tree(folder.path()).unwrap_err().to_string().contains("link is neither"));
    }
}
