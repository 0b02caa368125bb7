//! Files that are changed in place: locks and partial downloads.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens the file at `path` for reading and writing without truncating it, or creates the file.
///
/// # Errors
/// If `path` is a symbolic link or not a regular file, or cannot be opened.
pub fn open_or_create(path: &Path) -> io::Result<File> {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        // Without O_NONBLOCK, opening a pipe would block until the other end is opened.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => {
            io::Error::other("it is a symbolic link, which is not followed\nhint: remove it")
        }
        _ => error,
    })?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file\nhint: remove it")),
    }
}
