//! Atomic replacement of files and links.

use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::pending::{Access, Pending, folder_of, named};
use crate::unfinished;

/// Replaces `path` with a file that contains `content`. Readers find either the old file or the new file, even after
/// a crash.
///
/// # Errors
/// If the file cannot be written; `path` is then unchanged.
pub fn replace(path: &Path, content: &[u8], access: Access) -> io::Result<()> {
    replace_with(path, access, |file| file.write_all(content))
}

/// Replaces `path` with a file that `write` fills. Readers find either the old file or the new file, even after a
/// crash.
///
/// # Errors
/// If `write` fails, or the file cannot be created, flushed or renamed; `path` is then unchanged.
pub fn replace_with<T, E: From<io::Error>>(
    path: &Path,
    access: Access,
    write: impl FnOnce(&mut Pending) -> Result<T, E>,
) -> Result<T, E> {
    let mut pending = Pending::beside(path, access)?;
    let value = write(&mut pending)?;
    pending.sync()?;
    pending.commit()?;
    Ok(value)
}

/// Points the symbolic link `link` at `target` atomically.
///
/// # Errors
/// If the new link cannot be created or renamed; `link` is then unchanged.
pub fn switch_link(link: &Path, target: &Path) -> io::Result<()> {
    let name = link.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let prefix = unfinished::prefix(name.as_bytes());
    // A link has no mode, so 0o600 has no effect.
    let made = named(&prefix, unfinished::SUFFIX, 0o600)
        .make_in(folder_of(link), |beside| symlink(target, beside))?;
    made.into_temp_path().persist(link).map_err(|error| error.error)
}

/// Resolves the symbolic links in `path`, so that replacing the result keeps the links. A path that does not exist is
/// returned unchanged.
pub fn link_target(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}
