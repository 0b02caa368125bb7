//! Reproducible tar archives with zstd or gzip: members are sorted and have fixed owners and times.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};

use anyhow::{Context, Result, ensure};
use flate2::{Compression, GzBuilder};
use tar::{EntryType, Header};

use super::members::{Content, Member, Members};
use install::progress::Progress;
use install::{files, unpack};

/// Highest compression level of zstd that needs no additional memory for unpacking.
pub const LEVEL: i32 = 19;

/// Compression of an archive.
#[derive(Clone, Copy, Debug)]
pub enum Packing {
    /// zstd with a compression level.
    Zstd(i32),
    /// gzip with the highest compression.
    Gzip,
}

/// Writes the archive of `members` below the folder `name` to `file`, with the modification time `mtime`.
///
/// # Errors
/// If a member cannot be read or the file cannot be written.
pub fn write(members: &Members, name: &str, mtime: u64, packing: Packing, file: &mut File) -> Result<()> {
    let total = members.values().map(|member| member.size).sum();
    let mut progress = Progress::new("packing", Some(total));
    let file = io::BufWriter::new(file);
    let mut file = match packing {
        Packing::Zstd(level) => {
            let mut packed = zstd::stream::write::Encoder::new(file, level)?;
            // A program and its man pages contain repetitions that are further apart than the level's window.
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

/// Creates a gzip stream without a time and an operating system in its header.
pub fn gzip<W: Write>(to: W) -> flate2::write::GzEncoder<W> {
    GzBuilder::new().mtime(0).operating_system(255).write(to, Compression::best())
}

/// Writes `members` as a tar archive below the folder `top`, with folders before their content.
fn tar(members: &Members, top: &str, mtime: u64, to: impl Write, progress: &mut Progress) -> Result<()> {
    let mut archive = Tar::new(to, mtime);
    archive.folder(top)?;
    for (name, member) in members {
        archive.member(&format!("{top}/{name}"), member)?;
        progress.add(member.size);
    }
    archive.into_inner().map(|_| ())
}

/// Tar archive whose headers contain only names, sizes and the executable bit.
pub struct Tar<W: Write> {
    builder: tar::Builder<W>,
    mtime: u64,
    folders: BTreeSet<String>,
}

impl<W: Write> Tar<W> {
    /// Creates an archive that is written to `to`, with the modification time `mtime` for all files.
    pub fn new(to: W, mtime: u64) -> Self {
        Self { builder: tar::Builder::new(to), mtime, folders: BTreeSet::new() }
    }

    /// Writes a folder and its parents, unless they were written before. Names may begin with `./`, as dpkg's do.
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

    /// Writes a file.
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
        // The reader's error hides an interruption, which has its own exit code.
        install::interrupt::check()?;
        appended?;
        // The list of digests already contains the digest of the old content.
        ensure!(
            counted.read == member.size,
            "{name} changed while it was packed\nhint: run the same command again"
        );
        Ok(())
    }

    /// Writes a symbolic link, for Debian packages; archives contain none.
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
        // `set_path` would remove `./`, and would use an extended header for a name that is too long instead of
        // failing.
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

    /// Writes the end of the archive and returns the underlying writer.
    pub fn into_inner(self) -> Result<W> {
        self.builder.into_inner().context("cannot write the archive")
    }
}

/// Splits `name` into the header's two fields.
fn set_name(header: &mut Header, name: &str) -> Result<()> {
    let ustar = header.as_ustar_mut().context("unsupported tar header")?;
    let (name_most, prefix_most) = (ustar.name.len(), ustar.prefix.len());
    let fits = |at: usize| at <= prefix_most && name.len() - at - 1 <= name_most;
    // The trailing slash of a folder must not separate the fields.
    let split = name.trim_end_matches('/').match_indices('/').map(|(at, _)| at).find(|at| fits(*at));
    let (prefix, rest) = match split {
        _ if name.len() <= name_most => ("", name),
        Some(at) => (&name[..at], &name[at + 1..]),
        None => {
            anyhow::bail!(
                "the name {name} is too long for an archive: the part after the last / has more than {name_most} \
                 bytes"
            )
        }
    };
    ustar.name[..rest.len()].copy_from_slice(rest.as_bytes());
    ustar.prefix[..prefix.len()].copy_from_slice(prefix.as_bytes());
    Ok(())
}

/// Reader that counts bytes.
struct Counted<R> {
    from: R,
    read: u64,
}

impl<R: io::Read> io::Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        install::interrupt::check().map_err(io::Error::other)?;
        let read = self.from.read(buffer)?;
        self.read += read as u64;
        Ok(read)
    }
}
