//! Unpacking of untrusted archives.
//!
//! The crate `tar` only parses the headers; this module decides what is written and where. It refuses everything
//! that an Anneal archive never contains: links, devices, extended headers and paths outside the folder.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use build_info::{Bytes, Sha256};
use ruzstd::decoding::errors::FrameDecoderError;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use sha2::Digest;
use tar::EntryType;

use crate::{files, name};

/// Maximum number of entries. A build has about 700.
const MOST_ENTRIES: usize = 20_000;

/// Maximum number of unpacked bytes, as a protection against decompression bombs. Builds with CUDA are smaller.
const MOST_BYTES: u64 = 2 << 30;

/// Maximum memory that an archive may make the decoder use, as a power of two: the default limit of `zstd`.
pub const WINDOW_LOG: u32 = 27;

/// Result of unpacking an archive.
#[derive(Clone, Debug)]
pub struct Unpacked {
    /// Path of the folder, `<into>/<name>`.
    pub folder: PathBuf,
    /// Number of files in the folder.
    pub files: usize,
    /// Total size of the files.
    pub bytes: Bytes,
    /// Digest of the archive as it was read.
    pub sha256: Sha256,
}

/// Unpacks `archive`, whose single top folder must be `name`, into the folder `into`, to which no other user may
/// write.
///
/// # Errors
/// If the archive is damaged or too large, contains anything other than files and folders below `name`, or cannot be
/// written. Files that were written before the error are not removed; the caller removes them with `into`.
pub fn unpack(archive: impl Read, name: &str, into: &Path, seen: impl FnMut(u64)) -> Result<Unpacked> {
    name::check_version(name)?;
    let mut archive = Hashing { from: archive, hasher: sha2::Sha256::new(), seen };
    let mut writer = Writer::new(name, into);
    {
        let mut packed = BufReader::new(&mut archive);
        let magic = packed.fill_buf().context("cannot read the archive")?;
        if magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            writer.take_all(Frames::new(packed)?)?;
        } else if magic.starts_with(&[0x1f, 0x8b]) {
            writer.take_all(flate2::bufread::MultiGzDecoder::new(packed))?;
        } else {
            bail!("it is not compressed with zstd or gzip; it is incomplete, or not an Anneal archive");
        }
    }
    // The rest is also read, because the digest must cover the whole file.
    files::copy(&mut archive, io::sink(), |_| {})?;
    writer.finish(archive.hasher.into())
}

/// Reader that computes the digest.
struct Hashing<R, F> {
    from: R,
    hasher: sha2::Sha256,
    seen: F,
}

impl<R: Read, F: FnMut(u64)> Read for Hashing<R, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        (self.seen)(read as u64);
        Ok(read)
    }
}

/// Reader of the content of all zstd frames in a file. Checks the checksum at the end of each frame.
struct Frames<R: Read> {
    /// Frame that is being read; `None` after the last frame.
    frame: Option<StreamingDecoder<R, FrameDecoder>>,
}

impl<R: BufRead> Frames<R> {
    fn new(packed: R) -> Result<Self, FrameDecoderError> {
        let frame = StreamingDecoder::new_with_max_window_size(packed, 1 << WINDOW_LOG)?;
        Ok(Self { frame: Some(frame) })
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(frame) = &mut self.frame {
            let read = frame.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let Some((mut packed, decoder)) = self.frame.take().map(StreamingDecoder::into_parts) else {
                break;
            };
            let told = decoder.get_checksum_from_data();
            if told.is_some() && told != decoder.get_calculated_checksum() {
                return Err(io::Error::other("the checksum of its content is wrong"));
            }
            if !packed.fill_buf()?.is_empty() {
                let next = StreamingDecoder::new_with_decoder(packed, decoder);
                self.frame = Some(next.map_err(io::Error::other)?);
            }
        }
        Ok(0)
    }
}

/// Reader that stops at the maximum number of bytes.
struct Limited<R> {
    from: R,
    left: u64,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            let most = Bytes(MOST_BYTES);
            io::Error::other(format!(
                "its content is larger than {most}, which no build needs; the archive may be a decompression bomb"
            ))
        })?;
        Ok(read)
    }
}

/// Writer of the files of one archive.
struct Writer<'a> {
    name: &'a str,
    into: &'a Path,
    folders: BTreeSet<String>,
    /// Names with an explicit entry.
    listed: BTreeSet<String>,
    names: BTreeSet<String>,
    bytes: u64,
}

impl<'a> Writer<'a> {
    fn new(name: &'a str, into: &'a Path) -> Self {
        Self {
            name,
            into,
            folders: BTreeSet::new(),
            listed: BTreeSet::new(),
            names: BTreeSet::new(),
            bytes: 0,
        }
    }

    fn take_all(&mut self, plain: impl Read) -> Result<()> {
        let mut archive = tar::Archive::new(Limited { from: plain, left: MOST_BYTES });
        // Raw entries include extended headers, so that they are refused instead of applied.
        for entry in archive.entries().context("cannot read the archive")?.raw(true) {
            let mut entry = entry.context("it is damaged, or not an archive")?;
            ensure!(
                self.names.len() + self.folders.len() < MOST_ENTRIES,
                "it contains more than {MOST_ENTRIES} files and folders, which no build needs"
            );
            let path = entry.path_bytes().into_owned();
            let name = String::from_utf8(path).ok().context("it contains a name that is not valid UTF-8")?;
            self.take(&name, &mut entry).with_context(|| format!("cannot unpack the entry {name:?}"))?;
        }
        // Data after the end of the archive must also be limited, and the decoder must reach its checksum.
        let mut rest = archive.into_inner();
        files::copy(&mut rest, io::sink(), |_| {}).context("the data after its last file is damaged")?;
        Ok(())
    }

    fn take(&mut self, name: &str, entry: &mut tar::Entry<impl Read>) -> Result<()> {
        let mode = entry.header().mode().context("its mode is not a number")?;
        ensure!(mode & 0o7000 == 0, "it has setuid, setgid or sticky bits (mode {mode:o})");
        match entry.header().entry_type() {
            EntryType::Directory => {
                ensure!(entry.header().size()? == 0, "it is a folder, but has file content");
                let name = name.strip_suffix('/').unwrap_or(name);
                self.check(name)?;
                ensure!(!self.names.contains(name), "a file has the same name");
                // Only explicit entries count, because the parents of a file are created before their own entries.
                ensure!(self.listed.insert(name.to_string()), "the archive contains it twice");
                self.make_folder(name)
            }
            EntryType::Regular => {
                self.check(name)?;
                ensure!(name != self.name, "the top folder is a file");
                ensure!(!self.folders.contains(name), "a folder has the same name");
                ensure!(self.names.insert(name.to_string()), "the archive contains it twice");
                if let Some((folder, _)) = name.rsplit_once('/') {
                    self.make_folder(folder)?;
                }
                self.write(name, mode & 0o111 != 0, entry)
            }
            other => bail!("it is a {}; an Anneal archive contains only files and folders", kind(other)),
        }
    }

    /// Checks that `name` is inside the single folder of the archive.
    fn check(&self, name: &str) -> Result<()> {
        name::check_member(name)?;
        let top = name.split('/').next();
        ensure!(top == Some(self.name), "it is outside the folder {}", self.name);
        Ok(())
    }

    fn make_folder(&mut self, name: &str) -> Result<()> {
        let ends = name.match_indices('/').map(|(at, _)| at).chain([name.len()]);
        for folder in ends.map(|end| &name[..end]) {
            ensure!(!self.names.contains(folder), "{folder} is a file");
            if self.folders.insert(folder.to_string()) {
                let path = self.into.join(folder);
                DirBuilder::new()
                    .mode(0o755)
                    .create(&path)
                    // The permissions must not depend on the umask, because other users run what root installs.
                    .and_then(|()| std::fs::set_permissions(&path, Permissions::from_mode(0o755)))
                    .with_context(|| format!("cannot create {}", path.display()))?;
            }
        }
        Ok(())
    }

    fn write(&mut self, name: &str, executable: bool, entry: &mut tar::Entry<impl Read>) -> Result<()> {
        let path = self.into.join(name);
        let cannot = || format!("cannot write {}", path.display());
        let size = entry.header().size()?;
        // The size in the header is checked before anything is written.
        ensure!(
            size <= MOST_BYTES - self.bytes,
            "its size of {} makes the content larger than {}, which no build needs; the archive may be a \
             decompression bomb",
            Bytes(size),
            Bytes(MOST_BYTES)
        );
        let mode = if executable { 0o755 } else { 0o644 };
        let file: File =
            OpenOptions::new().write(true).create_new(true).mode(mode).open(&path).with_context(cannot)?;
        let written = files::copy(entry, &file, |_| {}).with_context(cannot)?;
        ensure!(written == size, "it ends after {written} of {size} bytes, so the archive is truncated");
        file.set_permissions(Permissions::from_mode(mode))
            .and_then(|()| file.sync_all())
            .with_context(cannot)?;
        self.bytes += written;
        Ok(())
    }

    fn finish(self, sha256: Sha256) -> Result<Unpacked> {
        ensure!(!self.names.is_empty(), "it contains no files");
        for folder in &self.folders {
            files::sync_folder(&self.into.join(folder))?;
        }
        Ok(Unpacked {
            folder: self.into.join(self.name),
            files: self.names.len(),
            bytes: Bytes(self.bytes),
            sha256,
        })
    }
}

/// Returns the name of a kind of entry for messages.
fn kind(kind: EntryType) -> &'static str {
    match kind {
        EntryType::Symlink => "symbolic link",
        EntryType::Link => "hard link",
        EntryType::Char | EntryType::Block => "device",
        EntryType::Fifo => "pipe",
        EntryType::XHeader | EntryType::XGlobalHeader => "pax header",
        EntryType::GNULongName | EntryType::GNULongLink => "long name in the GNU format",
        EntryType::GNUSparse => "sparse file",
        _ => "entry of an unknown kind",
    }
}
