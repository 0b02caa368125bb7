//! Unpacks an archive that anybody may have made.
//!
//! Crate `tar` only reads the headers; what is written where is decided here, and what an archive of Anneal never holds
//! is refused rather than understood: links, devices, extended headers, names that lead elsewhere.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use build_info::{Bytes, Sha256};
use sha2::Digest;
use tar::EntryType;

use crate::{files, name};

/// Entries beyond this are no build's; a build has some 700.
const MOST_ENTRIES: usize = 20_000;

/// Bytes that may come out: a bomb ends here, a build with CUDA is below.
const MOST_BYTES: u64 = 2 << 30;

/// Memory that the sender may ask of the decoder, as a power of two: what `zstd` itself allows without being asked.
pub const WINDOW_LOG: u32 = 27;

/// What came out of an archive.
#[derive(Clone, Debug)]
pub struct Unpacked {
    /// The folder, `<into>/<name>`.
    pub folder: PathBuf,
    /// Files in it.
    pub files: usize,
    /// Bytes of them.
    pub bytes: Bytes,
    /// Digest of the archive, as it was read.
    pub sha256: Sha256,
}

/// Unpacks `archive`, whose one top folder must be `name`, into the folder `into`, which nobody else writes to.
///
/// # Errors
/// When it is damaged, larger than it may be, holds anything but files and folders below `name`, or cannot be written.
/// What was written till then is left to whoever owns `into`.
pub fn unpack(archive: impl Read, name: &str, into: &Path, seen: impl FnMut(u64)) -> Result<Unpacked> {
    name::check_version(name)?;
    let mut archive = Hashing { from: archive, hasher: sha2::Sha256::new(), seen };
    let mut writer = Writer::new(name, into);
    {
        let mut packed = BufReader::new(&mut archive);
        let magic = packed.fill_buf().context("cannot read it")?;
        if magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            let mut plain = zstd::stream::read::Decoder::with_buffer(packed)?;
            plain.window_log_max(WINDOW_LOG)?;
            writer.take_all(plain)?;
        } else if magic.starts_with(&[0x1f, 0x8b]) {
            writer.take_all(flate2::bufread::MultiGzDecoder::new(packed))?;
        } else {
            bail!("it is neither compressed by zstd nor by gzip: it is no archive of Anneal, or half of one");
        }
    }
    // The digest is that of the whole file, whatever the decoder left.
    files::copy(&mut archive, io::sink(), |_| {})?;
    writer.finish(archive.hasher.into())
}

/// Digests what is read through it.
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

/// Stops a bomb.
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
                "more than {most} come out of it: no build is that large, it may be a bomb"
            ))
        })?;
        Ok(read)
    }
}

/// Writes the files of one archive.
struct Writer<'a> {
    name: &'a str,
    into: &'a Path,
    folders: BTreeSet<String>,
    /// Of these, what has an entry of its own.
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
        // Raw: as they stand there, so that an extended header is seen and refused rather than obeyed.
        for entry in archive.entries().context("cannot read it")?.raw(true) {
            let mut entry = entry.context("it is damaged, or no archive")?;
            ensure!(
                self.names.len() + self.folders.len() < MOST_ENTRIES,
                "it holds more than {MOST_ENTRIES} files and folders: no build does"
            );
            let path = entry.path_bytes().into_owned();
            let name = String::from_utf8(path).ok().context("it holds a name that is no UTF-8")?;
            self.take(&name, &mut entry).with_context(|| format!("refused or failed at {name:?} in it"))?;
        }
        // What stands behind the end must not be without end, and its checksum is looked at.
        let mut rest = archive.into_inner();
        files::copy(&mut rest, io::sink(), |_| {}).context("it is damaged behind its last file")?;
        Ok(())
    }

    fn take(&mut self, name: &str, entry: &mut tar::Entry<impl Read>) -> Result<()> {
        let mode = entry.header().mode().context("its mode is no number")?;
        ensure!(mode & 0o7000 == 0, "it would get rights that a program must not come with (mode {mode:o})");
        match entry.header().entry_type() {
            EntryType::Directory => {
                ensure!(entry.header().size()? == 0, "a folder with content");
                let name = name.strip_suffix('/').unwrap_or(name);
                self.check(name)?;
                ensure!(!self.names.contains(name), "it is a file already");
                // By itself: those above a file are made for it before their own entry comes.
                ensure!(self.listed.insert(name.to_string()), "it is there twice");
                self.make_folder(name)
            }
            EntryType::Regular => {
                self.check(name)?;
                ensure!(name != self.name, "the top folder is a file");
                ensure!(!self.folders.contains(name), "it is a folder already");
                ensure!(self.names.insert(name.to_string()), "it is there twice");
                if let Some((folder, _)) = name.rsplit_once('/') {
                    self.make_folder(folder)?;
                }
                self.write(name, mode & 0o111 != 0, entry)
            }
            other => bail!("it is a {}; an archive of Anneal holds files and folders", kind(other)),
        }
    }

    /// Whether `name` lies in the one folder that the archive may have.
    fn check(&self, name: &str) -> Result<()> {
        name::check_member(name)?;
        let top = name.split('/').next();
        ensure!(top == Some(self.name), "it lies outside of the folder {}", self.name);
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
                    // Not as the umask has it: others shall run what root installs.
                    .and_then(|()| std::fs::set_permissions(&path, Permissions::from_mode(0o755)))
                    .with_context(|| format!("cannot make {}", path.display()))?;
            }
        }
        Ok(())
    }

    fn write(&mut self, name: &str, executable: bool, entry: &mut tar::Entry<impl Read>) -> Result<()> {
        let path = self.into.join(name);
        let cannot = || format!("cannot write {}", path.display());
        let size = entry.header().size()?;
        // As it says itself: nothing of it is written.
        ensure!(
            size <= MOST_BYTES - self.bytes,
            "it would be {}, and with it more than {} in all: no build is that large, it may be a bomb",
            Bytes(size),
            Bytes(MOST_BYTES)
        );
        let mode = if executable { 0o755 } else { 0o644 };
        let file: File =
            OpenOptions::new().write(true).create_new(true).mode(mode).open(&path).with_context(cannot)?;
        let written = files::copy(entry, &file, |_| {}).with_context(cannot)?;
        ensure!(written == size, "it ends after {written} of {size} bytes: the archive is not whole");
        file.set_permissions(Permissions::from_mode(mode))
            .and_then(|()| file.sync_all())
            .with_context(cannot)?;
        self.bytes += written;
        Ok(())
    }

    fn finish(self, sha256: Sha256) -> Result<Unpacked> {
        ensure!(!self.names.is_empty(), "it holds no file");
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

/// What people call a kind of entry.
fn kind(kind: EntryType) -> &'static str {
    match kind {
        EntryType::Symlink => "symbolic link",
        EntryType::Link => "hard link",
        EntryType::Char | EntryType::Block => "device",
        EntryType::Fifo => "pipe",
        EntryType::XHeader | EntryType::XGlobalHeader => "pax header",
        EntryType::GNULongName | EntryType::GNULongLink => "long name in GNU's way",
        EntryType::GNUSparse => "sparse file",
        _ => "thing of an unknown kind",
    }
}
