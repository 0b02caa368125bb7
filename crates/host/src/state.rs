//! Where a user's programs keep what they have learned about the machine.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Whoever changes a record has done so in much less.
const PATIENCE: Duration = Duration::from_secs(10);

/// The folder for tuning records, rooflines and verdicts: `$ANNEAL_STATE_DIR`, else `anneal` in `$XDG_STATE_HOME`, else
/// `.local/state/anneal` in `$HOME`. `None` if none is set. A relative `$ANNEAL_STATE_DIR` counts from the current folder.
/// The XDG Base Directory Specification demands that other relative values are ignored.
pub fn folder() -> Option<PathBuf> {
    folder_of(|name| std::env::var_os(name))
}

fn folder_of(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // An empty value has no absolute path.
    variable("ANNEAL_STATE_DIR")
        .and_then(|own| std::path::absolute(own).ok())
        .or_else(|| Some(absolute("XDG_STATE_HOME")?.join("anneal")))
        .or_else(|| Some(absolute("HOME")?.join(".local/state/anneal")))
}

/// Held while the record at `path` is read and replaced, so that of two programs that change it the second sees what the
/// first has made. The lock is on its folder: a renamed file is another one. Nothing where it cannot be had, which stops
/// nobody: what is to be written may have been measured for minutes.
#[must_use]
pub fn lock(path: &Path) -> Option<File> {
    // What a link leads to is replaced, not the link.
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
}
