//! One installer at a time in a prefix; what a killed one left is removed by the next.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use base::TempDir;
use base::exit;
use rustix::process::{Pid, test_kill_process};

use super::prefix::Prefix;

/// Its file, in our own folder. install.sh takes the same with flock(1).
pub const FILE: &str = ".lock";

/// How folders of work begin: `.staging-PID-RANDOM`.
const STAGING: &str = ".staging-";

/// How all begins that is renamed to its place when it is whole; the number of the process follows.
const WORK: [&str; 4] = [STAGING, ".current.", ".previous.", ".folders."];

/// Held while a prefix is changed; the system frees it when the process ends, however it does.
#[derive(Debug)]
pub struct PrefixLock {
    _file: File,
}

impl PrefixLock {
    /// Takes the lock of `prefix`, whose folder must be there, and removes what killed installers left.
    ///
    /// # Errors
    /// When another installer holds it, with exit code 75.
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
                        "{holder} is at work in {prefix}: wait for its end, then run the same again"
                    )));
                }
                Err(TryLockError::Error(error)) => return Err(error).with_context(cannot),
            }
            // Whoever removed the last version removed the file that we have locked.
            let ours = file.metadata().with_context(cannot)?;
            if fs::metadata(&path).is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
                break file;
            }
        };
        // Only for the message of another one.
        let _ = file.rewind();
        let _ = file.set_len(0);
        let _ = write!(file, "{what} of process {}", std::process::id());
        remove_stale(prefix);
        Ok(Self { _file: file })
    }
}

/// Makes a folder of our own on the file system that is installed to; it goes however the work in it ends.
pub fn staging(prefix: &Prefix) -> Result<TempDir> {
    let name = format!("{STAGING}{}-", std::process::id());
    base::scratch_in(&prefix.home(), &name)
        .with_context(|| format!("cannot write to {}", prefix.home().display()))
}

/// Removes what was begun by processes that are gone. What cannot be removed is in nobody's way.
fn remove_stale(prefix: &Prefix) {
    for path in stale(prefix) {
        let folder = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir());
        let _ = if folder { fs::remove_dir_all(path) } else { fs::remove_file(path) };
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

/// Whether a process is there. Another user's is, though we may not ask it.
fn is_alive(pid: i32) -> bool {
    let Some(pid) = Pid::from_raw(pid).filter(|_| pid > 0) else { return false };
    !matches!(test_kill_process(pid), Err(rustix::io::Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_dead_installers_left_is_stale() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = Prefix::of(Some(folder.path())).unwrap();
        // Linux has no such number. A process of our own that has ended would have held the other test's lock.
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
        let holder = format!("install of process {} is at work", std::process::id());
        assert!(error.to_string().contains(&holder), "{error}");
        drop(held);
        PrefixLock::take(&prefix, "uninstall").unwrap();
    }
}
