//! Interface of the media that can contain a store.

use std::fmt;
use std::path::Path;

use anyhow::{Result, ensure};
use build_info::Bytes;

/// Storage of a store's files. [`layout`](crate::layout) defines the paths, which contain `/`.
pub trait StoreBackend {
    /// Returns the content at `path`, at most `most` bytes; `None` if the file does not exist.
    ///
    /// # Errors
    /// If the file cannot be read or is larger.
    fn small(&self, path: &str, most: Bytes) -> Result<Option<Vec<u8>>>;

    /// Copies the content at `path`, which must be `size` bytes long, to the new file `to`. Returns false if `path`
    /// does not exist. Fails as soon as more bytes arrive, before they fill the disk.
    ///
    /// # Errors
    /// If the content cannot be read or has a different size.
    fn fetch(&self, path: &str, size: Bytes, to: &Path) -> Result<bool>;

    /// Returns the size of the file at `path`; `None` if the file does not exist.
    fn size(&self, path: &str) -> Result<Option<Bytes>>;

    /// Writes the file `from` to `path` atomically.
    ///
    /// # Errors
    /// If the file cannot be written.
    fn put(&self, path: &str, from: &Path) -> Result<()>;

    /// Writes `content` to `path` unless a file exists at `path`. Returns false if a file exists; that file stays
    /// unchanged.
    ///
    /// # Errors
    /// If the content cannot be written.
    fn put_new(&self, path: &str, content: &[u8]) -> Result<bool>;

    /// Replaces the content at `path` with the result of `edit`, which receives the current content. If `edit`
    /// returns `None`, the content stays unchanged. If two publishers change a file concurrently, the second
    /// publisher sees the result of the first. Content larger than `most`, which no reader accepts, is passed to
    /// `edit` as missing, and `edit` must not create such content.
    ///
    /// # Errors
    /// If `edit` fails, or the file cannot be read or written.
    fn change(&self, path: &str, most: Bytes, edit: Edit<'_>) -> Result<()>;

    /// Returns the names of the folders in the folder `path`; `None` if the medium cannot list folders.
    fn folders(&self, path: &str) -> Result<Option<Vec<String>>>;

    /// Checks that files can be written, before anything is created for the store.
    ///
    /// # Errors
    /// If files cannot be written.
    fn check_writable(&self) -> Result<()>;
}

/// Function that receives the current content of a file, or `None`, and returns the new content.
pub type Edit<'a> = &'a mut dyn FnMut(Option<&[u8]>) -> Result<Option<Vec<u8>>>;

/// Checks that `content` is not too large for the readers of `path`.
pub(crate) fn check_readable(path: &str, content: &[u8], most: Bytes) -> Result<()> {
    let size = Bytes(content.len() as u64);
    ensure!(size <= most, "{path} would be {size}, but readers accept at most {most}");
    Ok(())
}

/// Error of a medium that denies access and therefore does not reveal if a file exists. Contains the remedy.
#[derive(Debug)]
pub struct Refused(pub &'static str);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
