//! The Unix socket as a file: where it is, who may use it, and what to do with one that is there.

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

/// Bytes of the longest path: `sun_path` of Linux without the NUL.
const LONGEST: usize = 107;

/// How long another program that is starting here may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where the socket is unless told: a folder of the user's own.
pub fn default_path() -> Result<PathBuf> {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => Ok(PathBuf::from(folder).join("anneal").join("anneal.sock")),
        None => Err(Error::Usage(
            "no place for the socket: XDG_RUNTIME_DIR is not set; name one with --socket PATH, or listen on an address \
             with --listen 127.0.0.1:8080"
                .to_string(),
        )),
    }
}

/// A socket that is listened on; the file goes when this does, which should be before the listener.
#[derive(Debug)]
pub struct Socket {
    trace: Trace,
    /// What of its folder the user should know.
    pub warning: Option<String>,
}

/// The file of a socket, which goes when this does. Another server's file of the same name is not ours to remove.
#[derive(Clone, Debug)]
pub struct Trace {
    path: PathBuf,
    file: Option<Identity>,
}

/// Device, inode, and the time it was made where the file system knows it: numbers of inodes are used again.
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
    /// Leaves the file where it is.
    pub fn keep(mut self) {
        self.file = None;
    }
}

impl Socket {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.trace.path
    }

    /// Its file, for whoever has to remove it as well.
    pub fn trace(&self) -> Trace {
        self.trace.clone()
    }
}

/// Listens at `path`, for this user, or for `group` as well. Makes the folder of the default path.
///
/// # Errors
/// [`Error::Listen`] if another program listens at `path`, if `path` is another kind of file or cannot be used, or if
/// another user could put a socket in its place.
pub fn bind(path: &Path, group: Option<u32>) -> Result<(Socket, UnixListener)> {
    let failed = |why: String| Error::Listen { at: path.display().to_string(), why };
    let length = path.as_os_str().len();
    if length > LONGEST {
        return Err(failed(format!(
            "its path has {length} bytes, and the system takes {LONGEST}: choose a shorter one with --socket"
        )));
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if default_path().is_ok_and(|default| default == path) {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|why| failed(format!("cannot make the folder {}: {why}", folder.display())))?;
    }
    let warning = socket_folder::check(folder).map_err(failed)?;
    // Of two that start at once, one must see the other's socket.
    let _lock =
        lock(folder).map_err(|why| failed(format!("cannot use the folder {}: {why}", folder.display())))?;
    clear(path).map_err(failed)?;
    let listener = private(|| UnixListener::bind(path)).map_err(|why| failed(advice(&why)))?;
    let file = identity(path).map_err(|why| failed(why.to_string()))?;
    let trace = Trace { path: path.to_path_buf(), file: Some(file) };
    let socket = Socket { trace, warning };
    let mode = if group.is_some() { 0o660 } else { 0o600 };
    if let Some(group) = group {
        std::os::unix::fs::chown(path, None, Some(group)).map_err(|why| {
            failed(format!("cannot give it to the group {group}: {why}; are you a member?"))
        })?;
    }
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(|why| failed(why.to_string()))?;
    Ok((socket, listener))
}

/// A lock on `folder`, held while the file is looked at and made.
fn lock(folder: &Path) -> io::Result<File> {
    let file = File::open(folder)?;
    let begin = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            // Whoever holds it longer is not starting: the file itself must tell.
            Err(TryLockError::WouldBlock) if begin.elapsed() > PATIENCE => return Ok(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
            // A file system without locks.
            Err(TryLockError::Error(_)) => return Ok(file),
        }
    }
}

/// Removes a socket at `path` that nobody listens on.
fn clear(path: &Path) -> std::result::Result<(), String> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(why) => return Err(why.to_string()),
    };
    if !found.file_type().is_socket() {
        return Err(
            "there is a file that is no socket: remove it, or choose another path with --socket".to_string()
        );
    }
    match UnixStream::connect(path) {
        Ok(_) => {
            Err("another program listens there: stop it, or choose another path with --socket".to_string())
        }
        Err(why) if why.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|why| format!("cannot remove the socket that a program left there: {why}")),
        // A backlog that is full is a sign of life.
        Err(why) => Err(format!("there is a socket that cannot be asked whether it is in use: {why}")),
    }
}

/// Runs `make` so that what it makes is for this user alone.
fn private<T>(make: impl FnOnce() -> T) -> T {
    let before = umask(Mode::RWXG | Mode::RWXO);
    let made = make();
    umask(before);
    made
}

fn advice(why: &io::Error) -> String {
    let mend = match why.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; choose a place that you may write to with --socket"
        }
        io::ErrorKind::NotFound => "; make its folder first",
        _ => "",
    };
    format!("{why}{mend}")
}

/// The number of the group `name`: a number, or a name in /etc/group.
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
        Error::Usage(format!("--socket-group {name}: no such group in /etc/group; a number is taken too"))
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
            (0o777, "all users may write to the folder", false),
        ] {
            fs::set_permissions(folder.path(), Permissions::from_mode(mode)).expect("a mode");
            match bind(&path, None) {
                Ok((socket, _listener)) => {
                    assert!(refused.is_empty(), "{mode:04o} is taken");
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
        assert!(refusal(&path).contains("another program listens there"), "{}", refusal(&path));
        drop(listener);
        let (second, _listener) = bind(&path, None).expect("one left behind is replaced");
        // The first one's end must not take away the second one's file.
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
        assert!(refusal(&file).contains("no socket"), "{}", refusal(&file));
        assert_eq!(fs::read(&file).expect("it is there"), b"precious");
        let long = folder.path().join("x".repeat(120));
        assert!(refusal(&long).contains("the system takes 107"), "{}", refusal(&long));
        let nowhere = folder.path().join("none/a.sock");
        assert!(refusal(&nowhere).contains("cannot use the folder"), "{}", refusal(&nowhere));
    }

    #[test]
    fn groups_are_names_and_numbers() {
        assert_eq!(group("17").ok(), Some(17));
        assert_eq!(group("root").ok(), Some(0));
        assert!(group("no-such-group").is_err());
    }
}
