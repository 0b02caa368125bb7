//! Reading of numbers and strings from a file that may be truncated or contain wrong lengths.

use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use build_info::Bytes;

use super::error::ReadError;

/// Maximum size of everything before the tensor data, in bytes. The headers of published models have a few MiB.
/// llama.cpp keeps the whole header in memory, and a sparse file can claim a header that is larger than the machine's
/// memory.
const HEADER_LIMIT: u64 = 256 << 20;

/// Source of bytes: a file, or a file's content in memory.
pub(super) trait ByteSource: Read + Seek {}

impl<T: Read + Seek> ByteSource for T {}

/// Position in a file.
pub(super) struct Cursor<'a> {
    path: &'a Path,
    file: BufReader<Box<dyn ByteSource + 'a>>,
    size: u64,
    offset: u64,
}

impl<'a> Cursor<'a> {
    /// Creates a cursor at the beginning of `file`, which has `size` bytes.
    pub(super) fn new(path: &'a Path, file: impl ByteSource + 'a, size: u64) -> Self {
        Self { path, file: BufReader::with_capacity(1 << 16, Box::new(file)), size, offset: 0 }
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the number of bytes from the current position to the end of the file.
    pub(super) fn remaining(&self) -> u64 {
        self.size - self.offset
    }

    /// Creates an error for the byte at `offset`.
    pub(super) fn corrupt(&self, offset: u64, what: String) -> ReadError {
        ReadError::Corrupt { path: self.path.to_path_buf(), offset, what }
    }

    /// Checks that `len` bytes follow, within [`HEADER_LIMIT`]. Every allocation, read and skip is preceded by this
    /// check.
    pub(super) fn need(&self, len: u64, what: &dyn Fn() -> String) -> Result<(), ReadError> {
        if len <= self.remaining() {
            return match self.offset + len <= HEADER_LIMIT {
                true => Ok(()),
                false => Err(ReadError::Unusable {
                    path: self.path.to_path_buf(),
                    what: format!(
                        "{} ends beyond {} MiB, the largest supported header",
                        what(),
                        HEADER_LIMIT >> 20
                    ),
                    mend: "download the model again, or convert it again",
                }),
            };
        }
        match self.offset.checked_add(len) {
            // No file is that large, so the length itself is damaged; the file is not just truncated.
            Some(needed) if needed < 1 << 50 => Err(self.truncated(needed, what())),
            _ => {
                Err(self.corrupt(self.offset, format!("{} has the impossible length of {len} bytes", what())))
            }
        }
    }

    /// Creates an error for a truncated file that needs `needed` bytes for `what`.
    pub(super) fn truncated(&self, needed: u64, what: String) -> ReadError {
        ReadError::Truncated { path: self.path.to_path_buf(), size: Bytes(self.size), what, needed }
    }

    /// Reads the next bytes, which must exist, without advancing.
    pub(super) fn peek(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact(bytes)?;
        self.file.seek_relative(-(bytes.len() as i64))
    }

    pub(super) fn array<const N: usize>(&mut self, what: &dyn Fn() -> String) -> Result<[u8; N], ReadError> {
        self.need(N as u64, what)?;
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes).map_err(|source| ReadError::from_io(self.path, source))?;
        self.offset += N as u64;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, what: &dyn Fn() -> String) -> Result<u32, ReadError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &dyn Fn() -> String) -> Result<u64, ReadError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Reads a string of at most `limit` bytes, preceded by its length. Invalid UTF-8 becomes U+FFFD.
    pub(super) fn string(&mut self, limit: u64, what: &dyn Fn() -> String) -> Result<String, ReadError> {
        let start = self.offset;
        let len = self.u64(what)?;
        if len > limit {
            return Err(
                self.corrupt(start, format!("{} has {len} bytes, but at most {limit} are allowed", what()))
            );
        }
        self.need(len, what)?;
        let mut bytes = vec![0; len as usize];
        self.file.read_exact(&mut bytes).map_err(|source| ReadError::from_io(self.path, source))?;
        self.offset += len;
        Ok(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }

    /// Skips `len` bytes, which must exist.
    pub(super) fn skip(&mut self, len: u64, what: &dyn Fn() -> String) -> Result<(), ReadError> {
        self.need(len, what)?;
        let io = |source| ReadError::from_io(self.path, source);
        match i64::try_from(len) {
            Ok(len) => self.file.seek_relative(len).map_err(io)?,
            Err(_) => {
                self.file.seek(SeekFrom::Start(self.offset + len)).map_err(io)?;
            }
        }
        self.offset += len;
        Ok(())
    }
}
