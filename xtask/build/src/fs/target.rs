//! Check of an output path before the long work that produces the output.

use std::path::Path;

use anyhow::{Context, Result, bail};
use base::{Access, Pending};

/// Checks that a file can be created at `path`, by creating an empty file next to it and removing it again.
///
/// # Errors
/// If the folder does not exist or is not writable, or if something other than a regular file exists at `path`.
pub fn check_target(path: &Path) -> Result<()> {
    if path.is_dir() {
        bail!("cannot write {}: it is a folder\nhint: give the path of a file in it", path.display());
    }
    if path.exists() && !path.is_file() {
        bail!(
            "cannot write {}: it exists and is not a regular file\nhint: choose another path",
            path.display()
        );
    }
    // If `path` is a link, its target is checked, because the target will be written.
    let path = base::link_target(path);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) {
        bail!("cannot write {}: its folder does not exist\nhint: create the folder first", path.display());
    }
    let made = Pending::beside(&path, Access::Private);
    made.map(drop).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_cannot_be_written_is_told_and_nothing_is_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("old"), "old").unwrap();
        symlink(path("old"), path("link")).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        let before = std::fs::read_dir(folder.path()).unwrap().count();
        for good in ["old", "link", "new"] {
            check_target(&path(good)).unwrap();
        }
        check_target(Path::new("a-name-alone.json")).unwrap();
        let cases = [
            (folder.path().to_path_buf(), "it is a folder"),
            (path("socket"), "not a regular file"),
            ("/dev/full".into(), "not a regular file"),
            (path("none/new"), "its folder does not exist"),
            (path("old/new"), "its folder does not exist"),
            // No user can create files in /proc, not even root.
            ("/proc/new.json".into(), "cannot write /proc/new.json"),
        ];
        for (path, expected) in cases {
            let error = check_target(&path).unwrap_err().to_string();
            assert!(error.contains(expected), "{}: {error}", path.display());
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), before);
        assert_eq!(std::fs::read(path("old")).unwrap(), b"old");
    }
}
