//! Lock that allows one installer at a time in a prefix, and cleanup of the leftovers of killed installers.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base::TempDir;
use base::exit;
use rustix::process::{Pid, test_kill_process};

use crate::prefix::Prefix;

/// Name of the lock file in Anneal's folder.
pub const FILE: &str = ".lock";

/// Prefix of the names of work folders: `.staging-PID-RANDOM`.
const STAGING: &str = ".staging-";

/// Prefixes of all temporary names. The process ID follows the prefix. Complete files are renamed.
const WORK: [&str; 4] = [STAGING, ".current.", ".previous.", ".folders."];

/// Lock on a prefix while it is changed. The system releases the lock when the process ends, even after a crash.
#[derive(Debug)]
pub struct PrefixLock {
    _file: File,
}

impl PrefixLock {
    /// Takes the lock of `prefix`, whose folder must exist, and removes the leftovers of killed installers.
    ///
    /// # Errors
    /// With exit code 75 if another installer holds the lock.
    pub fn take(prefix: &Prefix, what: &str) -> Result<Self> {
        let path = prefix.home().join(FILE);
        let cannot = || format!("cannot lock {}", path.display());
        let mut file = loop {
            let mut file = base::open_or_create(&path).with_context(cannot)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let mut holder = String::new();
                    let _ = file.read_to_string(&mut holder);
                    let holder = if holder.is_empty() { "another process" } else { holder.trim() };
                    let prefix = prefix.root().display();
                    return Err(exit::try_again(format!(
                        "cannot lock {prefix}: {holder} is running\nhint: wait until it has finished, then run \
                         the same command again"
                    )));
                }
                Err(TryLockError::Error(error)) => return Err(error).with_context(cannot),
            }
            // The process that removed the last version may have deleted the lock file in the meantime.
            let ours = file.metadata().with_context(cannot)?;
            if fs::metadata(&path).is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
                break file;
            }
        };
        // If another installer finds the lock taken, it shows this text.
        let _ = file.rewind();
        let _ = file.set_len(0);
        let _ = write!(file, "{what} of process {}", std::process::id());
        remove_stale(prefix);
        Ok(Self { _file: file })
    }
}

/// Creates a work folder on the file system of the prefix. Dropping the value removes the folder.
///
/// # Errors
/// If the folder cannot be created.
pub fn staging(prefix: &Prefix) -> Result<TempDir> {
    let name = format!("{STAGING}{}-", std::process::id());
    base::scratch_in(&prefix.home(), &name)
        .with_context(|| format!("cannot write to {}", prefix.home().display()))
}

/// Removes the leftovers of processes that no longer run. Leftovers that cannot be removed are harmless.
fn remove_stale(prefix: &Prefix) {
    for path in stale(prefix) {
        let is_folder = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir());
        if is_folder {
            open_folders(&path);
        }
        let _ = if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    }
}

/// Makes every folder below `folder` writable, because an archive may contain folders that are not.
fn open_folders(folder: &Path) {
    let _ = fs::set_permissions(folder, fs::Permissions::from_mode(0o700));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_folders(&entry.path());
        }
    }
}

fn stale(prefix: &Prefix) -> Vec<PathBuf> {
    let entries = fs::read_dir(prefix.home()).into_iter().flatten().flatten();
    entries
        .filter(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let rest = WORK.iter().find_map(|beginning| name.strip_prefix(beginning));
            let pid = rest.and_then(|rest| rest.split(['-', '.']).next()?.parse().ok());
            pid.is_some_and(|pid| !is_alive(pid))
        })
        .map(|entry| entry.path())
        .collect()
}

/// True if the process exists, even if it belongs to another user, and has not ended. In some containers, nothing
/// waits for processes whose parent has ended, so a killed installer remains as a zombie.
fn is_alive(pid: i32) -> bool {
    let Some(raw) = Pid::from_raw(pid).filter(|_| pid > 0) else { return false };
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !has_ended(&status) && !matches!(test_kill_process(raw), Err(rustix::io::Errno::SRCH))
}

/// True if `status`, the content of `/proc/PID/status`, is of a process that has ended.
fn has_ended(status: &str) -> bool {
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| state.trim_start().starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use super::*;

    // A zombie of a child of this test would do, but until a new child executes its program, it holds the locks of
    // the other tests.
    #[test]
    fn a_zombie_has_ended() {
        let cases = [
            ("Name:\ta\nState:\tZ (zombie)\nPid:\t7\n", true),
            ("Name:\ta\nState:\tX (dead)\n", true),
            ("Name:\tState:\tZ\nState:\tS (sleeping)\n", false),
            ("", false),
        ];
        for (status, expected) in cases {
            assert_eq!(has_ended(status), expected, "{status:?}");
        }
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(is_alive(own) && !is_alive(0) && !is_alive(i32::MAX));
    }

    #[test]
    fn only_what_dead_installers_left_is_stale() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = Prefix::of(Some(folder.path())).unwrap();
        // No Linux process has this number. A real child process could have inherited the other test's lock.
        let ended = i32::MAX;
        let dead = prefix.home().join(format!("{STAGING}{}-x", ended));
        let link = prefix.home().join(format!(".current.{}", ended));
        for path in [
            &dead,
            &link,
            &prefix.home().join(format!("{STAGING}{}-x", std::process::id())),
            &prefix.home().join(".staging-of somebody"),
            &prefix.versions(),
        ] {
            fs::create_dir_all(path).unwrap();
        }
        let mut found = stale(&prefix);
        found.sort();
        assert_eq!(found, [link, dead]);
    }

    #[test]
    fn a_link_in_place_of_the_lock_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = Prefix::of(Some(folder.path())).unwrap();
        fs::create_dir_all(prefix.home()).unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, prefix.home().join(FILE)).unwrap();
        let error = format!("{:#}", PrefixLock::take(&prefix, "install").unwrap_err());
        assert!(error.contains("it is a symbolic link"), "{error}");
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }

    #[test]
    fn a_second_installer_is_told_who_is_at_work() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = Prefix::of(Some(folder.path())).unwrap();
        fs::create_dir_all(prefix.home()).unwrap();
        let held = PrefixLock::take(&prefix, "install").unwrap();
        let error = PrefixLock::take(&prefix, "uninstall").unwrap_err();
        assert_eq!(exit::code_of(&error), 75);
        let holder = format!("install of process {} is running", std::process::id());
        assert!(error.to_string().contains(&holder), "{error}");
        drop(held);
        PrefixLock::take(&prefix, "uninstall").unwrap();
    }
}
