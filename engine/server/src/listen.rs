//! File of the Unix socket: path, permissions, and handling of an existing file.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use llama::error::{Error, Result};
use rustix::fs::Mode;
use rustix::process::umask;

use super::socket_folder;

/// Maximum length of the path, in bytes: the size of Linux's `sun_path` without the NUL.
const LONGEST: usize = 107;

/// Maximum time to wait for another program that is starting in the same folder.
const PATIENCE: Duration = Duration::from_secs(2);

/// Returns the default path of the socket, in a folder that belongs to the user.
///
/// # Errors
/// If `XDG_RUNTIME_DIR` is not set.
pub fn default_path() -> Result<PathBuf> {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => Ok(PathBuf::from(folder).join("anneal").join("anneal.sock")),
        None => Err(Error::Usage(
            "cannot determine the path of the socket: XDG_RUNTIME_DIR is not set\nhint: specify a path with --socket \
            PATH, or listen on an address with --listen 127.0.0.1:8080"
                .to_string(),
        )),
    }
}

/// File of the listening socket. Dropping this value removes the file. Drop this value before the listener.
#[derive(Debug)]
pub struct Socket {
    trace: Trace,
    /// Warning about the socket's folder, for the user.
    pub warning: Option<String>,
}

/// File of a socket. Dropping this value removes the file, unless another server has replaced it.
#[derive(Clone, Debug)]
pub struct Trace {
    path: PathBuf,
    file: Option<Identity>,
}

/// Device, inode, and creation time if the file system records it. An inode number alone is not enough, because inode
/// numbers are reused.
type Identity = (u64, u64, Option<SystemTime>);

fn identity(path: &Path) -> io::Result<Identity> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino(), found.created().ok()))
}

impl Drop for Trace {
    fn drop(&mut self) {
        if self.file.is_some() && identity(&self.path).ok() == self.file {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Trace {
    /// Keeps the socket's file when this value is dropped.
    pub fn keep(mut self) {
        self.file = None;
    }
}

impl Socket {
    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.trace.path
    }

    /// Returns a second handle that removes the file.
    pub fn trace(&self) -> Trace {
        self.trace.clone()
    }
}

/// Listens at `path`, for this user and for `group` if given. Creates the folder of the default path.
pub fn bind(path: &Path, group: Option<u32>) -> Result<(Socket, UnixListener)> {
    let failed = |why: String| Error::Listen { at: path.display().to_string(), why };
    let length = path.as_os_str().len();
    if length > LONGEST {
        return Err(failed(format!(
            "its path has {length} bytes, more than the maximum of {LONGEST}\nhint: choose a shorter path with \
            --socket"
        )));
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if default_path().is_ok_and(|default| default == path) {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|why| {
            failed(format!(
                "cannot create the folder {}: {why}\nhint: choose another path with --socket",
                folder.display()
            ))
        })?;
    }
    let warning = socket_folder::check(folder).map_err(failed)?;
    // If two servers start at the same time, the lock ensures that one sees the other's socket.
    let _lock = lock(folder).map_err(|why| failed(socket_folder::cannot(folder, &why)))?;
    clear(path).map_err(failed)?;
    let listener = private(|| UnixListener::bind(path)).map_err(|why| failed(advice(&why)))?;
    let file = identity(path).map_err(|why| failed(why.to_string()))?;
    let trace = Trace { path: path.to_path_buf(), file: Some(file) };
    let socket = Socket { trace, warning };
    let mode = if group.is_some() { 0o660 } else { 0o600 };
    if let Some(group) = group {
        std::os::unix::fs::chown(path, None, Some(group)).map_err(|why| {
            failed(format!(
                "cannot change its group to {group}: {why}\nhint: check that you are a member of the \
                           group"
            ))
        })?;
    }
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(|why| failed(why.to_string()))?;
    Ok((socket, listener))
}

/// Locks `folder` while the socket's file is checked and created.
fn lock(folder: &Path) -> io::Result<File> {
    let file = File::open(folder)?;
    let begin = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            // A process that holds the lock for longer is not merely starting. The check of the socket then shows
            // whether a server is running.
            Err(TryLockError::WouldBlock) if begin.elapsed() > PATIENCE => return Ok(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
            // The file system does not support locks.
            Err(TryLockError::Error(_)) => return Ok(file),
        }
    }
}

/// Removes a socket at `path` if no program listens on it.
///
/// # Errors
/// If the file is not a socket, if it is in use, or if it cannot be removed.
fn clear(path: &Path) -> std::result::Result<(), String> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(why) => return Err(why.to_string()),
    };
    if !found.file_type().is_socket() {
        return Err(
            "the path exists and is not a socket\nhint: remove it, or choose another path with --socket"
                .to_string(),
        );
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(
            "another program is already listening on this socket\nhint: stop that program, or choose another path with --socket"
                .to_string(),
        ),
        Err(why) if why.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|why| format!("cannot remove the unused socket at this path: {why}")),
        // For example, the backlog is full, so a program is listening.
        Err(why) => Err(format!("cannot determine whether the existing socket is in use: {why}")),
    }
}

/// Runs `make` with a umask that makes new files accessible to this user only.
fn private<T>(make: impl FnOnce() -> T) -> T {
    let before = umask(Mode::RWXG | Mode::RWXO);
    let made = make();
    umask(before);
    made
}

fn advice(why: &io::Error) -> String {
    let mend = match why.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "\nhint: use --socket to choose a path that you can write to"
        }
        // The folder exists, but its file system has no sockets, for example /proc.
        io::ErrorKind::NotFound => "\nhint: use --socket to choose a path in another file system",
        _ => "",
    };
    format!("{why}{mend}")
}

/// Returns the ID of the group `name`, which is a number or a name in /etc/group.
///
/// # Errors
/// If the group does not exist.
pub fn group(name: &str) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let known = fs::read_to_string("/etc/group").unwrap_or_default();
    let number = known.lines().find_map(|line| {
        let mut parts = line.split(':');
        (parts.next() == Some(name)).then(|| parts.nth(1)?.parse().ok())?
    });
    number.ok_or_else(|| {
        Error::Usage(format!(
            "--socket-group {name}: no such group in /etc/group\nhint: use the name or the ID of an existing group"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path) -> String {
        bind(path, None).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_socket_is_this_users_and_goes_with_its_server() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.sock");
        let (socket, _listener) = bind(&path, None).expect("it is bound");
        assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_in_which_others_could_replace_it_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.sock");
        for (mode, refused, warned) in [
            (0o700, "", false),
            (0o755, "", false),
            (0o1777, "", true),
            (0o777, "all users can write to the folder", false),
        ] {
            fs::set_permissions(folder.path(), Permissions::from_mode(mode)).expect("a mode");
            match bind(&path, None) {
                Ok((socket, _listener)) => {
                    assert!(refused.is_empty(), "{mode:04o} is accepted");
                    assert_eq!(socket.warning.is_some(), warned, "{:?}", socket.warning);
                }
                Err(error) => {
                    let words = error.to_string();
                    assert!(
                        !refused.is_empty() && words.contains(refused) && words.contains("0777"),
                        "{words}"
                    );
                }
            }
            assert!(!path.exists());
        }
    }

    #[test]
    fn one_in_use_is_refused_and_one_left_behind_replaced() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.sock");
        let (first, listener) = bind(&path, None).expect("it is bound");
        assert!(
            refusal(&path).contains("another program is already listening on this socket"),
            "{}",
            refusal(&path)
        );
        drop(listener);
        let (second, _listener) = bind(&path, None).expect("an unused socket is replaced");
        // The second socket's file must remain when the first socket is dropped.
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn what_cannot_be_is_named() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("a file");
        fs::write(&file, "precious").expect("a file");
        assert!(refusal(&file).contains("is not a socket"), "{}", refusal(&file));
        assert_eq!(fs::read(&file).expect("it is there"), b"precious");
        let long = folder.path().join("x".repeat(120));
        assert!(refusal(&long).contains("the maximum of 107"), "{}", refusal(&long));
        let nowhere = folder.path().join("none/a.sock");
        let expected = "none: No such file or directory (os error 2)\nhint: create it first";
        assert!(refusal(&nowhere).ends_with(expected), "{}", refusal(&nowhere));
        let no_sockets = refusal(Path::new("/proc/anneal-test.sock"));
        assert!(
            no_sockets.ends_with("hint: use --socket to choose a path in another file system"),
            "{no_sockets}"
        );
    }

    #[test]
    fn groups_are_names_and_numbers() {
        assert_eq!(group("17").ok(), Some(17));
        assert_eq!(group("root").ok(), Some(0));
        assert!(group("no-such-group").is_err());
    }
}
