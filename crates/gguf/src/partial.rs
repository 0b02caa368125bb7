//! A file that appears under its name only when it is complete.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use base::{Access, Pending};
use build_info::Bytes;

/// Why a file could not be put in its place.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The folder to hold it is not there.
    #[error("cannot write {}: there is no folder {}; create it first", path.display(), folder.display())]
    NoFolder {
        /// The file to be written.
        path: PathBuf,
        /// Its folder.
        folder: PathBuf,
    },
    /// A folder stands in its place.
    #[error("cannot write {}: it is a folder; name a file in it", path.display())]
    IsFolder {
        /// The place.
        path: PathBuf,
    },
    /// A device, a pipe or a socket stands in its place, which a rename would replace by a file.
    #[error("cannot write {}: it is there and is no regular file; name another place", path.display())]
    NotRegular {
        /// The place.
        path: PathBuf,
    },
    /// Something else than a GGUF file stands in its place, which nobody meant to lose.
    #[error("cannot write {}: it is there and is no GGUF file; name another place, or remove it", path.display())]
    Foreign {
        /// The place.
        path: PathBuf,
    },
    /// It would not fit.
    #[error(
        "cannot write {}: it takes {needed} and {} has {free} left; free some space or write elsewhere",
        path.display(), folder.display()
    )]
    NoSpace {
        /// The file to be written.
        path: PathBuf,
        /// Its folder.
        folder: PathBuf,
        /// Its size.
        needed: Bytes,
        /// Space left for this user.
        free: Bytes,
    },
    /// The disk filled up while writing.
    #[error("cannot write {}: the disk is full; free some space or write elsewhere", path.display())]
    Full {
        /// The file to be written.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// The file to be written.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl PlaceError {
    /// What `source`, met while writing `path`, means.
    pub(crate) fn from_io(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { path },
            _ => Self::Io { path, source },
        }
    }
}

/// File that is written beside its place, under a random name. [`commit`](Self::commit) renames it; dropping it removes
/// it and leaves whatever was there before.
#[derive(Debug)]
pub struct PartialFile {
    destination: PathBuf,
    pending: Pending,
}

impl PartialFile {
    /// Makes an empty file beside `destination`, after seeing that its folder exists and has `needed` bytes left.
    pub fn beside(destination: &Path, needed: Bytes) -> Result<Self, PlaceError> {
        let path = destination.to_path_buf();
        if destination.is_dir() {
            return Err(PlaceError::IsFolder { path });
        }
        // `file_name` is silent about the end.
        if destination.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(PlaceError::NoFolder { folder: path.clone(), path });
        }
        if destination.metadata().is_ok_and(|there| !there.is_file()) {
            return Err(PlaceError::NotRegular { path });
        }
        let folder = match destination.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        if destination.file_name().is_none() {
            return Err(PlaceError::IsFolder { path });
        }
        if !folder.is_dir() {
            return Err(PlaceError::NoFolder { path, folder });
        }
        if let Some(free) = free_space(&folder).filter(|free| *free < needed) {
            return Err(PlaceError::NoSpace { path, folder, needed, free });
        }
        let pending = Pending::beside(destination, Access::Usual)
            .map_err(|source| PlaceError::from_io(destination, source))?;
        Ok(Self { destination: path, pending })
    }

    /// Where to write.
    pub fn path(&self) -> &Path {
        self.pending.path()
    }

    /// The file, open for writing.
    pub fn open(&self) -> Result<File, PlaceError> {
        self.pending.reopen().map_err(|source| PlaceError::from_io(&self.destination, source))
    }

    /// What a failed write meant, of a library that does not tell: the disk is asked by writing a little more.
    pub fn failed(&self) -> PlaceError {
        let more = self.open().and_then(|mut file| {
            let written = file.seek(SeekFrom::End(0)).and_then(|_| file.write_all(&[0; 1 << 16]));
            written
                .and_then(|()| file.sync_data())
                .map_err(|error| PlaceError::from_io(&self.destination, error))
        });
        more.err().unwrap_or_else(|| {
            PlaceError::from_io(&self.destination, io::Error::other("a part could not be written"))
        })
    }

    /// Puts the file in its place.
    pub fn commit(self) -> Result<(), PlaceError> {
        let Self { destination, pending } = self;
        pending.commit().map_err(|source| PlaceError::from_io(&destination, source))
    }
}

/// Refuses to put a GGUF file in the place of something else. An empty file, as `mktemp` makes it, may be replaced.
///
/// # Errors
/// When `path` is there, holds something and does not begin as GGUF files do, or cannot be read.
pub fn refuse_foreign(path: &Path) -> Result<(), PlaceError> {
    // What is no file at all, `PartialFile` refuses; a pipe would never tell how it begins.
    let Some(found) = path.metadata().ok().filter(|found| found.is_file() && found.len() > 0) else {
        return Ok(());
    };
    let mut magic = [0; 4];
    if found.len() < 4 {
        return Err(PlaceError::Foreign { path: path.to_path_buf() });
    }
    File::open(path)
        .and_then(|mut file| file.read_exact(&mut magic))
        .map_err(|source| PlaceError::from_io(path, source))?;
    match &magic {
        b"GGUF" => Ok(()),
        _ => Err(PlaceError::Foreign { path: path.to_path_buf() }),
    }
}

/// Bytes that this user may still write into `folder`, where the system tells.
#[cfg(unix)]
pub fn free_space(folder: &Path) -> Option<Bytes> {
    let stat = nix::sys::statvfs::statvfs(folder).ok()?;
    Some(Bytes(stat.blocks_available().saturating_mul(stat.fragment_size())))
}

/// Not known here.
#[cfg(not(unix))]
pub fn free_space(_folder: &Path) -> Option<Bytes> {
    None
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_link_under_a_temporary_name_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("victim"), "precious").unwrap();
        let guessed = path(&format!(".m.gguf.{}.part", std::process::id()));
        std::os::unix::fs::symlink(path("victim"), guessed).unwrap();
        let partial = PartialFile::beside(&path("m.gguf"), Bytes(3)).unwrap();
        partial.open().unwrap().write_all(b"new").unwrap();
        partial.commit().unwrap();
        assert_eq!(fs::read(path("victim")).unwrap(), b"precious");
        assert_eq!(fs::read(path("m.gguf")).unwrap(), b"new");
    }

    #[test]
    fn a_file_appears_only_when_committed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        fs::write(&path, "old").unwrap();

        let partial = PartialFile::beside(&path, Bytes(3)).unwrap();
        partial.open().unwrap().write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop(partial);
        assert_eq!(names(folder.path()), ["m.gguf"]);
        assert_eq!(fs::read(&path).unwrap(), b"old");

        let partial = PartialFile::beside(&path, Bytes(3)).unwrap();
        partial.open().unwrap().write_all(b"new").unwrap();
        partial.commit().unwrap();
        assert_eq!(names(folder.path()), ["m.gguf"]);
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn places_that_cannot_hold_the_file_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let message = |path: &Path, needed| PartialFile::beside(path, Bytes(needed)).unwrap_err().to_string();
        assert!(message(folder.path(), 0).ends_with("it is a folder; name a file in it"));
        assert!(message(&folder.path().join("no/m.gguf"), 0).contains("there is no folder"));
        let full = message(&folder.path().join("m.gguf"), u64::MAX);
        assert!(
            full.contains("it takes 16777216 TiB and") && full.contains("left; free some space"),
            "{full}"
        );
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn only_models_and_empty_files_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        let cases: [(&[u8], bool); 5] = [
            (b"", true),
            (b"GGUF\x03\0\0\0", true),
            (b"precious\n", false),
            (b"GG", false),
            (b"GGML....", false),
        ];
        refuse_foreign(&path).unwrap();
        for (content, replaced) in cases {
            fs::write(&path, content).unwrap();
            let found = refuse_foreign(&path).map_err(|error| error.to_string());
            assert_eq!(found.is_ok(), replaced, "{content:?}: {found:?}");
            assert!(
                found.is_ok() || found.unwrap_err().contains("notes.txt: it is there and is no GGUF file")
            );
        }
        refuse_foreign(folder.path()).unwrap();
    }

    #[test]
    fn a_full_disk_is_called_that() {
        let error = io::Error::from(io::ErrorKind::StorageFull);
        assert!(PlaceError::from_io(Path::new("m"), error).to_string().contains("the disk is full"));
    }
}
