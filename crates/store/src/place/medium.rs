//! A place that holds a store, whatever it is made of.

use std::fmt;
use std::path::Path;

use anyhow::{Result, ensure};
use build_info::Bytes;

/// Where a store keeps its files. Paths are those of [`layout`](crate::layout), with `/`.
pub trait StoreBackend {
    /// What is at `path`, of at most `most` bytes; nothing where there is no such file.
    fn small(&self, path: &str, most: Bytes) -> Result<Option<Vec<u8>>>;

    /// Copies what is at `path`, of `size` bytes, to the new file `to`; whether it is there. More bytes are an error, before
    /// they fill the disk.
    fn fetch(&self, path: &str, size: Bytes, to: &Path) -> Result<bool>;

    /// Size of what is at `path`.
    fn size(&self, path: &str) -> Result<Option<Bytes>>;

    /// Puts the file `from` to `path`, so that a reader sees all of it or what was there before.
    fn put(&self, path: &str, from: &Path) -> Result<()>;

    /// Puts `content` to `path` unless something is there: then false, and that stays.
    fn put_new(&self, path: &str, content: &[u8]) -> Result<bool>;

    /// Changes what is at `path` from what is there to what `edit` makes of it, or not where that is nothing. Of two
    /// that change it at once, the second sees what the first has made. What is larger than `most` is of no use to any
    /// reader: `edit` sees nothing in its place, and makes nothing of that kind.
    fn change(&self, path: &str, most: Bytes, edit: Edit<'_>) -> Result<()>;

    /// Names of the folders in the folder `path`; nothing where the place cannot list.
    fn folders(&self, path: &str) -> Result<Option<Vec<String>>>;

    /// Sees that something can be put here, before anything is made for it.
    fn check_writable(&self) -> Result<()>;
}

/// Makes the new content of a file of the old one, if there is any.
pub type Edit<'a> = &'a mut dyn FnMut(Option<&[u8]>) -> Result<Option<Vec<u8>>>;

/// Refuses to put to `path` what nobody could read there.
pub(crate) fn check_readable(path: &str, content: &[u8], most: Bytes) -> Result<()> {
    let size = Bytes(content.len() as u64);
    ensure!(size <= most, "{path} would have {size}, and no reader takes more than {most}");
    Ok(())
}

/// That a place lets us not look, which is no answer to whether something is there: for what to do about it.
#[derive(Debug)]
pub struct Refused(pub &'static str);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
