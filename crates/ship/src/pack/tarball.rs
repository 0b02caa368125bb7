//! tar and zstd so that the same members give the same bytes: sorted, owned by nobody in particular, of one time.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};

use anyhow::{Context, Result, ensure};
use flate2::{Compression, GzBuilder};
use tar::{EntryType, Header};

use super::members::{Content, Member, Members};
use crate::progress::Progress;
use crate::{files, unpack};

/// The highest level that does not need more memory to unpack.
pub const LEVEL: i32 = 19;

/// How an archive is compressed.
#[derive(Clone, Copy, Debug)]
pub enum Packing {
    /// By zstd, at a level of its.
    Zstd(i32),
    /// By gzip, as well as it can.
    Gzip,
}

/// Writes the archive of `members` below the folder `name` to `file`, all of the time `mtime`.
pub fn write(members: &Members, name: &str, mtime: u64, packing: Packing, file: &mut File) -> Result<()> {
    let total = members.values().map(|member| member.size).sum();
    let mut progress = Progress::new("packing", Some(total));
    let file = io::BufWriter::new(file);
    let mut file = match packing {
        Packing::Zstd(level) => {
            let mut packed = zstd::stream::write::Encoder::new(file, level)?;
            // A program and its man pages repeat themselves further apart than the level looks back.
            packed.long_distance_matching(true)?;
            packed.window_log(unpack::WINDOW_LOG)?;
            packed.include_checksum(true)?;
            tar(members, name, mtime, &mut packed, &mut progress)?;
            packed.finish()?
        }
        Packing::Gzip => {
            let mut packed = gzip(file);
            tar(members, name, mtime, &mut packed, &mut progress)?;
            packed.finish()?
        }
    };
    file.flush().context("cannot write the archive")
}

/// A gzip stream that names neither a time nor a system.
pub fn gzip<W: Write>(to: W) -> flate2::write::GzEncoder<W> {
    GzBuilder::new().mtime(0).operating_system(255).write(to, Compression::best())
}

/// Writes `members` as a tar below the folder `top`, folders before what is in them.
fn tar(members: &Members, top: &str, mtime: u64, to: impl Write, progress: &mut Progress) -> Result<()> {
    let mut archive = Tar::new(to, mtime);
    archive.folder(top)?;
    for (name, member) in members {
        archive.member(&format!("{top}/{name}"), member)?;
        progress.add(member.size);
    }
    archive.into_inner().map(|_| ())
}

/// A tar whose headers tell of nothing but names, sizes and whether a file may be run.
pub struct Tar<W: Write> {
    builder: tar::Builder<W>,
    mtime: u64,
    folders: BTreeSet<String>,
}

impl<W: Write> Tar<W> {
    /// Writes to `to`, every file of the time `mtime`.
    pub fn new(to: W, mtime: u64) -> Self {
        Self { builder: tar::Builder::new(to), mtime, folders: BTreeSet::new() }
    }

    /// A folder and those above it, where they are not there yet. `./a` is a name of dpkg's.
    pub fn folder(&mut self, name: &str) -> Result<()> {
        let ends = name.match_indices('/').map(|(at, _)| at).chain([name.len()]);
        for folder in ends.map(|end| &name[..end]) {
            if self.folders.insert(folder.to_string()) {
                let header = self.header(&format!("{folder}/"), EntryType::Directory, 0, 0o755)?;
                self.builder.append(&header, io::empty())?;
            }
        }
        Ok(())
    }

    /// A file.
    pub fn member(&mut self, name: &str, member: &Member) -> Result<()> {
        match &member.content {
            Content::Made(content) => self.file(name, member, content.as_slice()),
            Content::Of(path) => self
                .file(name, member, files::open_regular(path)?)
                .with_context(|| format!("cannot pack {}", path.display())),
        }
    }

    fn file(&mut self, name: &str, member: &Member, content: impl io::Read) -> Result<()> {
        if let Some((folder, _)) = name.rsplit_once('/') {
            self.folder(folder)?;
        }
        let mode = if member.executable { 0o755 } else { 0o644 };
        let header = self.header(name, EntryType::Regular, member.size, mode)?;
        let mut counted = Counted { from: content, read: 0 };
        let appended = self.builder.append(&header, &mut counted);
        // An interruption is hidden in the error of the reader, and has an exit code of its own.
        crate::interrupt::check()?;
        appended?;
        // Its digest is in the list already.
        ensure!(counted.read == member.size, "{name} changed while it was packed: run the same again");
        Ok(())
    }

    /// A symbolic link, for dpkg: an archive holds none.
    pub fn link(&mut self, name: &str, target: &str) -> Result<()> {
        if let Some((folder, _)) = name.rsplit_once('/') {
            self.folder(folder)?;
        }
        let mut header = self.header(name, EntryType::Symlink, 0, 0o777)?;
        header.set_link_name(target)?;
        header.set_cksum();
        self.builder.append(&header, io::empty())?;
        Ok(())
    }

    fn header(&self, name: &str, kind: EntryType, size: u64, mode: u32) -> Result<Header> {
        let mut header = Header::new_ustar();
        // By hand: `set_path` takes `./` away, and what does not fit is an error rather than an extended header.
        set_name(&mut header, name)?;
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(self.mtime);
        header.set_cksum();
        Ok(header)
    }

    /// The end of the archive, and where it was written to.
    pub fn into_inner(self) -> Result<W> {
        self.builder.into_inner().context("cannot write the archive")
    }
}

/// Splits `name` into the two fields that a header has for it.
fn set_name(header: &mut Header, name: &str) -> Result<()> {
    let ustar = header.as_ustar_mut().context("no header of this kind")?;
    let (name_most, prefix_most) = (ustar.name.len(), ustar.prefix.len());
    let fits = |at: usize| at <= prefix_most && name.len() - at - 1 <= name_most;
    // A folder's own slash is no place to split at.
    let split = name.trim_end_matches('/').match_indices('/').map(|(at, _)| at).find(|at| fits(*at));
    let (prefix, rest) = match split {
        _ if name.len() <= name_most => ("", name),
        Some(at) => (&name[..at], &name[at + 1..]),
        None => {
            anyhow::bail!("the name {name} is too long for an archive: at most {name_most} bytes behind a /")
        }
    };
    ustar.name[..rest.len()].copy_from_slice(rest.as_bytes());
    ustar.prefix[..prefix.len()].copy_from_slice(prefix.as_bytes());
    Ok(())
}

/// Counts what is read.
struct Counted<R> {
    from: R,
    read: u64,
}

impl<R: io::Read> io::Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        crate::interrupt::check().map_err(io::Error::other)?;
        let read = self.from.read(buffer)?;
        self.read += read as u64;
        Ok(read)
    }
}
