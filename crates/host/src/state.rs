//! Folder in which a user's programs store records about the machine.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum wait for another program that is changing a record. A change takes much less time.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the folder for tuning records, rooflines and verdicts: `$ANNEAL_STATE_DIR`, otherwise `anneal` in
/// `$XDG_STATE_HOME`, otherwise `.local/state/anneal` in `$HOME`. `None` if none of these variables is set. A
/// relative `$ANNEAL_STATE_DIR` is resolved against the current folder. Other relative values are ignored, as the
/// XDG Base Directory Specification requires.
pub fn folder() -> Option<PathBuf> {
    folder_of(|name| std::env::var_os(name))
}

fn folder_of(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    // An empty value cannot be made absolute, so it is ignored.
    variable("ANNEAL_STATE_DIR")
        .and_then(|own| std::path::absolute(own).ok())
        .or_else(|| base_folder(&variable, "XDG_STATE_HOME", ".local/state"))
}

/// Returns the folder for files that can be downloaded or computed again: `anneal` in `$XDG_CACHE_HOME`, otherwise
/// `.cache/anneal` in `$HOME`. `None` if neither folder is an absolute path.
pub fn cache() -> Option<PathBuf> {
    base_folder(&|name| std::env::var_os(name), "XDG_CACHE_HOME", ".cache")
}

/// Returns the folder `anneal` in the folder that the variable `xdg` specifies, otherwise in `below_home` of `$HOME`.
fn base_folder(variable: &impl Fn(&str) -> Option<OsString>, xdg: &str, below_home: &str) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    Some(absolute(xdg).or_else(|| Some(absolute("HOME")?.join(below_home)))?.join("anneal"))
}

/// Acquires a lock for reading and replacing the record at `path`, so that concurrent programs do not lose each
/// other's changes. The lock is on the folder, because a rename replaces the file. Returns `None` if the lock cannot
/// be acquired; the caller may then continue without a lock, because the data may have taken minutes to measure.
#[must_use]
pub fn lock(path: &Path) -> Option<File> {
    // The target of a symbolic link is replaced, not the link.
    let real = path.canonicalize().or_else(|_| std::path::absolute(path)).ok()?;
    let folder = File::open(real.parent()?).ok()?;
    let begun = Instant::now();
    loop {
        match folder.try_lock() {
            Ok(()) => return Some(folder),
            Err(std::fs::TryLockError::WouldBlock) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_changes_a_record_after_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        std::fs::write(&path, "").unwrap();
        let add = || {
            let _lock = lock(&path).unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            std::thread::sleep(Duration::from_millis(5));
            std::fs::write(&path, text + "x").unwrap();
        };
        std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(add))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "x".repeat(8));
    }

    #[test]
    fn the_most_special_variable_wins() {
        let own = ("ANNEAL_STATE_DIR", "/a");
        let (xdg, home) = (("XDG_STATE_HOME", "/x"), ("HOME", "/h"));
        type Set<'a> = &'a [(&'a str, &'a str)];
        let here = std::env::current_dir().unwrap().join("relative");
        let cases: [(Set<'_>, Option<&str>); 6] = [
            (&[own, xdg, home], Some("/a")),
            (&[xdg, home], Some("/x/anneal")),
            (&[("XDG_STATE_HOME", "x"), home], Some("/h/.local/state/anneal")),
            (&[("ANNEAL_STATE_DIR", ""), home], Some("/h/.local/state/anneal")),
            (&[("ANNEAL_STATE_DIR", "relative"), home], here.to_str()),
            (&[], None),
        ];
        for (set, expected) in cases {
            let value = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
            assert_eq!(folder_of(value), expected.map(PathBuf::from), "{set:?}");
        }
    }
    #[test]
    fn the_cache_is_that_of_the_xdg_specification() {
        let with = |set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
            base_folder(&value, "XDG_CACHE_HOME", ".cache")
        };
        let home = ("HOME", "/h");
        assert_eq!(with(&[("XDG_CACHE_HOME", "/x"), home]), Some("/x/anneal".into()));
        assert_eq!(with(&[("XDG_CACHE_HOME", "relative"), home]), Some("/h/.cache/anneal".into()));
        assert_eq!(with(&[]), None);
    }
}
