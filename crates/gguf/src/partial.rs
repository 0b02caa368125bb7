//! File that appears under its name only when the file is complete.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use base::{Access, Pending};
use build_info::Bytes;

/// Reason why a file could not be written to its destination.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The destination's folder does not exist.
    #[error("cannot write {}: the folder {} does not exist\nhint: create it first", path.display(), folder.display())]
    NoFolder {
        /// Path of the destination.
        path: PathBuf,
        /// Folder of the destination.
        folder: PathBuf,
    },
    /// The destination is a folder.
    #[error("cannot write {}: it is a folder\nhint: give the path of a file in it", path.display())]
    IsFolder {
        /// Path of the destination.
        path: PathBuf,
    },
    /// The destination is a device, a pipe or a socket, which a rename would replace with a file.
    #[error("cannot write {}: it exists and is not a regular file\nhint: choose another path", path.display())]
    NotRegular {
        /// Path of the destination.
        path: PathBuf,
    },
    /// The destination exists and is not a GGUF file, so it may be valuable.
    #[error(
        "cannot write {}: it exists and is not a GGUF file\nhint: choose another path, or remove it",
        path.display()
    )]
    Foreign {
        /// Path of the destination.
        path: PathBuf,
    },
    /// The disk has too little free space for the file.
    #[error(
        "cannot write {}: it needs {needed}, but {} has {free} left\nhint: free some space or choose another folder",
        path.display(), folder.display()
    )]
    NoSpace {
        /// Path of the destination.
        path: PathBuf,
        /// Folder of the destination.
        folder: PathBuf,
        /// Size of the file.
        needed: Bytes,
        /// Free space for this user.
        free: Bytes,
    },
    /// The disk became full during the write.
    #[error("cannot write {}: the disk is full\nhint: free some space or choose another folder", path.display())]
    Full {
        /// Path of the destination.
        path: PathBuf,
    },
    /// The system reported another error.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// Path of the destination.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
}

impl PlaceError {
    /// Classifies `source`, an error during the write of `path`.
    pub(crate) fn from_io(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { path },
            _ => Self::Io { path, source },
        }
    }
}

/// File that is written next to its destination, under a random name. [`commit`](Self::commit) renames the file to the
/// destination. Dropping the value removes the file and leaves the destination unchanged.
#[derive(Debug)]
pub struct PartialFile {
    destination: PathBuf,
    pending: Pending,
}

impl PartialFile {
    /// Creates an empty file next to `destination`, after checking that the folder of `destination` exists and has
    /// `needed` bytes of free space.
    ///
    /// # Errors
    /// If the destination is unsuitable, or the file cannot be created.
    pub fn beside(destination: &Path, needed: Bytes) -> Result<Self, PlaceError> {
        let path = destination.to_path_buf();
        if destination.is_dir() {
            return Err(PlaceError::IsFolder { path });
        }
        // `file_name` ignores a trailing slash.
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

    /// Returns the temporary path of the file.
    pub fn path(&self) -> &Path {
        self.pending.path()
    }

    /// Opens the file for writing.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(&self) -> Result<File, PlaceError> {
        self.pending.reopen().map_err(|source| PlaceError::from_io(&self.destination, source))
    }

    /// Finds the cause of a failed write by writing a little more to the disk, for libraries that do not report the
    /// cause.
    pub fn failed(&self) -> PlaceError {
        let more = self.open().and_then(|mut file| {
            let written = file.seek(SeekFrom::End(0)).and_then(|_| file.write_all(&[0; 1 << 16]));
            written
                .and_then(|()| file.sync_data())
                .map_err(|error| PlaceError::from_io(&self.destination, error))
        });
        more.err().unwrap_or_else(|| {
            PlaceError::from_io(
                &self.destination,
                io::Error::other("a part of the file could not be written"),
            )
        })
    }

    /// Renames the file to its destination.
    ///
    /// # Errors
    /// If the file cannot be renamed.
    pub fn commit(self) -> Result<(), PlaceError> {
        let Self { destination, pending } = self;
        pending.commit().map_err(|source| PlaceError::from_io(&destination, source))
    }
}

/// Rejects a destination that is not a GGUF file. An empty file, as created by `mktemp`, may be replaced.
///
/// # Errors
/// If `path` exists, is not empty and does not start like a GGUF file, or cannot be read.
pub fn refuse_foreign(path: &Path) -> Result<(), PlaceError> {
    // `PartialFile` rejects anything that is not a regular file; reading from a pipe would block.
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

/// Returns the free space for this user in `folder`; `None` if the system does not report it.
#[cfg(unix)]
pub fn free_space(folder: &Path) -> Option<Bytes> {
    let stat = nix::sys::statvfs::statvfs(folder).ok()?;
    Some(Bytes(stat.blocks_available().saturating_mul(stat.fragment_size())))
}

/// Returns `None`: unsupported on this system.
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
        assert!(message(folder.path(), 0).ends_with("it is a folder\nhint: give the path of a file in it"));
        assert!(
            message(&folder.path().join("no/m.gguf"), 0).contains("does not exist\nhint: create it first")
        );
        let full = message(&folder.path().join("m.gguf"), u64::MAX);
        assert!(
            full.contains("it needs 16777216 TiB, but") && full.contains("left\nhint: free some space"),
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
                found.is_ok() || found.unwrap_err().contains("notes.txt: it exists and is not a GGUF file")
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
