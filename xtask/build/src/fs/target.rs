//! Where a result is to be: looked at before the long work whose result it is.

use std::path::Path;

use anyhow::{Context, Result, bail};
use base::{Access, Pending};

/// Sees that a file can be put at `path`: an empty one is made beside it, and is gone when this returns.
///
/// # Errors
/// When its folder is missing or takes no file, or something else than a regular file lies there.
pub fn check_target(path: &Path) -> Result<()> {
    if path.is_dir() {
        bail!("cannot write {}: it is a folder; name a file in it", path.display());
    }
    if path.exists() && !path.is_file() {
        bail!("cannot write {}: it is there and is no regular file; name another place", path.display());
    }
    // What a link leads to is meant, as when it is written.
    let path = base::link_target(path);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) {
        bail!("there is no folder for {}: make it first", path.display());
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
            (path("socket"), "no regular file"),
            ("/dev/full".into(), "no regular file"),
            (path("none/new"), "there is no folder"),
            (path("old/new"), "there is no folder"),
            // Nobody makes files there, whoever runs this.
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
