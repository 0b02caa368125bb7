//! File under a temporary name until it is complete.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

use crate::unfinished;

/// Permission bits of a file's mode. The set-user-ID, set-group-ID and sticky bits are never copied.
const PERMISSIONS: u32 = 0o777;

/// Access rights of a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Mode of the replaced file; for a new file, 0666 without the bits of the umask.
    Usual,
    /// Mode of the replaced file; for a new file, 0600.
    PrivateIfNew,
    /// Mode 0600.
    Private,
    /// Given mode, independent of the umask.
    Exactly(u32),
}

/// File that is written in the folder of its destination. [`commit`](Self::commit) renames the file to the
/// destination. Dropping the value removes the file and leaves the destination unchanged.
#[derive(Debug)]
pub struct Pending {
    file: NamedTempFile,
    destination: PathBuf,
    /// Mode to set before the rename; `None` if the file was created with the right mode.
    mode: Option<u32>,
}

impl Pending {
    /// Creates an empty file in the folder of `destination`.
    ///
    /// # Errors
    /// If `destination` has no file name, or its folder is missing or not writable.
    pub fn beside(destination: &Path, access: Access) -> io::Result<Self> {
        let name = destination.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        // Only the mode of a regular file is kept. The mode of a link is always 0777.
        let replaced = || {
            let found = fs::symlink_metadata(destination).ok().filter(fs::Metadata::is_file)?;
            Some(found.permissions().mode() & PERMISSIONS)
        };
        let (created, mode) = match access {
            Access::Private => (0o600, None),
            Access::Exactly(mode) => (0o600, Some(mode)),
            Access::PrivateIfNew => (0o600, replaced()),
            Access::Usual => match replaced() {
                // The old file may be private, so the new file stays private until it gets the old file's mode.
                Some(mode) => (0o600, Some(mode)),
                None => (0o666, None),
            },
        };
        let file = named(&unfinished::prefix(name.as_bytes()), unfinished::SUFFIX, created)
            .tempfile_in(folder_of(destination))?;
        Ok(Self { file, destination: destination.to_path_buf(), mode })
    }

    /// Returns the temporary path, for a tool that opens the file by name.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the file, which is open for reading and writing.
    pub fn file(&self) -> &File {
        self.file.as_file()
    }

    /// Opens the file again, with a separate position.
    ///
    /// # Errors
    /// If another file is now at the temporary path.
    pub fn reopen(&self) -> io::Result<File> {
        self.file.reopen()
    }

    /// Returns the file, for writers that need a mutable reference.
    pub fn file_mut(&mut self) -> &mut File {
        self.file.as_file_mut()
    }

    /// Flushes the content to the disk.
    ///
    /// # Errors
    /// If the disk reports an error, for example because it is full.
    pub fn sync(&self) -> io::Result<()> {
        // The mode must also reach the disk.
        self.set_mode()?;
        self.file().sync_all()
    }

    /// Renames the file to its destination, replacing an existing file.
    ///
    /// # Errors
    /// If the file cannot be renamed. The destination is then unchanged, and the temporary file is removed.
    pub fn commit(self) -> io::Result<()> {
        self.set_mode()?;
        self.file.persist(&self.destination).map(drop).map_err(|error| error.error)
    }

    /// Renames the file to its destination, like [`commit`](Self::commit), so that the file survives a power failure.
    /// When this function returns, the content and the name are on the disk.
    ///
    /// # Errors
    /// If [`commit`](Self::commit) fails, or the disk reports an error.
    pub fn commit_durably(self) -> io::Result<()> {
        let folder = folder_of(&self.destination).to_path_buf();
        self.sync()?;
        self.commit()?;
        sync_folder(&folder)
    }

    /// Renames the file to `path` instead of its destination, for a name that depends on the content.
    ///
    /// # Errors
    /// If [`commit`](Self::commit) fails, or `path` is in another file system.
    pub fn commit_as(mut self, path: &Path) -> io::Result<()> {
        self.destination = path.to_path_buf();
        self.commit()
    }

    /// Renames the file to its destination unless the destination exists. Returns true if the file was renamed.
    ///
    /// # Errors
    /// If the file cannot be renamed although the destination does not exist.
    pub fn commit_new(self) -> io::Result<bool> {
        self.set_mode()?;
        match self.file.persist_noclobber(&self.destination) {
            Ok(_) => Ok(true),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error.error),
        }
    }

    fn set_mode(&self) -> io::Result<()> {
        // The mode is set through the open file, because another file may now have the temporary name.
        self.mode.map_or(Ok(()), |mode| self.file().set_permissions(Permissions::from_mode(mode)))
    }
}

impl Write for Pending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file().flush()
    }
}

/// Returns the folder of the file at `path`: `.` if the path contains no folder.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes the directory entries of `folder` to the disk, so that renames in `folder` survive a power failure.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Returns a builder of temporary names: `PREFIX`, random letters and digits, `SUFFIX`. This function makes all
/// temporary names.
pub(crate) fn named<'a>(prefix: &'a OsStr, suffix: &'a str, mode: u32) -> Builder<'a, 'a> {
    let mut builder = Builder::new();
    builder.prefix(prefix).suffix(suffix).rand_bytes(RANDOM).permissions(Permissions::from_mode(mode));
    builder
}

/// Number of random letters and digits in a temporary name, which gives 62^12 names. After three collisions, tempfile
/// reads the system's randomness, so even an attacker who predicts tempfile's generator causes no delay.
pub(crate) const RANDOM: usize = 12;

/// Converts bytes that are not necessarily UTF-8.
pub(crate) fn os_string(bytes: Vec<u8>) -> OsString {
    OsString::from_vec(bytes)
}
