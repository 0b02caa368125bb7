//! File operations: atomic writes, digests and links.

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base::Access;
use build_info::Sha256;
use sha2::Digest;

mod given;
mod replace;
mod target;

pub use given::{check_model, content, text};
pub use replace::replace_all;
pub use target::check_target;

/// True if `error` was caused by a missing file.
pub fn is_absent(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Replaces the content of `path` with `content`, so that a reader sees either the old or the new content. The
/// permissions of an existing file are kept.
///
/// # Errors
/// If the file cannot be written, or if something other than a regular file exists at `path`: the rename would
/// replace a device with a file.
pub fn write_atomically(path: &Path, content: &[u8]) -> Result<()> {
    write_with(path, content, Access::Usual)
}

/// Works like [`write_atomically`], but makes a new file readable only by this user.
///
/// # Errors
/// The errors of [`write_atomically`].
pub fn write_privately(path: &Path, content: &[u8]) -> Result<()> {
    write_with(path, content, Access::PrivateIfNew)
}

fn write_with(path: &Path, content: &[u8], access: Access) -> Result<()> {
    // The rename must replace the file that a link points to, not the link.
    let path = base::link_target(path);
    if path.exists() && !path.is_file() {
        bail!(
            "cannot write {}: it exists and is not a regular file\nhint: choose another path",
            path.display()
        );
    }
    base::replace(&path, content, access).with_context(|| format!("cannot write {}", path.display()))
}

/// Works like [`write_atomically`], and makes the file executable.
///
/// # Errors
/// The errors of [`write_atomically`], and if the permissions cannot be changed.
pub fn write_script(path: &Path, text: &str) -> Result<()> {
    write_atomically(path, text.as_bytes())?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot make {} executable", path.display()))
}

/// Points the symbolic link `link` at `target` with a single rename.
pub fn switch_link(link: &Path, target: &Path) -> Result<()> {
    base::switch_link(link, target)
        .with_context(|| format!("cannot point the symbolic link {} at {}", link.display(), target.display()))
}

/// Creates the folder `to` with the files of `from`, as hard links if the file system supports them, else as copies.
pub fn link_tree(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for entry in std::fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        let done = if kind.is_dir() {
            link_tree(&source, &target)?;
            continue;
        } else if kind.is_symlink() {
            std::fs::read_link(&source).and_then(|name| std::os::unix::fs::symlink(name, &target))
        } else {
            std::fs::hard_link(&source, &target).or_else(|_| std::fs::copy(&source, &target).map(|_| ()))
        };
        done.with_context(|| format!("cannot copy {} to {}", source.display(), target.display()))?;
    }
    Ok(())
}

/// Returns the SHA-256 of a file's content.
pub fn digest_file(path: &Path) -> Result<Sha256> {
    // Reading a pipe without a writer would block forever, and a device may have no end.
    if path.exists() && !path.is_file() {
        bail!("cannot read {}: it is not a regular file", path.display());
    }
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    Sha256::of_reader(file).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns the SHA-256 of the names and contents of all files below `folders`, relative to `root`. Skips hidden files
/// and `target` folders, which editors and cargo create.
pub fn digest_tree(root: &Path, folders: &[&str]) -> Result<Sha256> {
    let mut files = Vec::new();
    for folder in folders {
        collect(&root.join(folder), &mut files)?;
    }
    files.sort();
    let mut hasher = sha2::Sha256::new();
    for file in files {
        let name = file.strip_prefix(root).unwrap_or(&file);
        hasher.update(name.as_os_str().as_encoded_bytes());
        hasher.update([0]);
        hasher.update(digest_file(&file)?.as_str());
    }
    Ok(hasher.into())
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    if hidden || path.ends_with("target") {
        return Ok(());
    }
    let kind = std::fs::metadata(path).with_context(|| format!("cannot examine {}", path.display()))?;
    if kind.is_dir() {
        for entry in std::fs::read_dir(path).with_context(|| format!("cannot list {}", path.display()))? {
            collect(&entry?.path(), files)?;
        }
    } else {
        files.push(path.to_path_buf());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_under_temporary_names_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("victim"), "precious").unwrap();
        for name in ["record.json", "current"] {
            std::os::unix::fs::symlink(path("victim"), path(&format!(".{name}.{}", std::process::id())))
                .unwrap();
        }
        write_atomically(&path("record.json"), b"{}").unwrap();
        check_target(&path("record.json")).unwrap();
        switch_link(&path("current"), Path::new("victim")).unwrap();
        assert_eq!(std::fs::read(path("victim")).unwrap(), b"precious");
        assert_eq!(std::fs::read(path("record.json")).unwrap(), b"{}");
    }

    #[test]
    fn a_failed_write_keeps_the_old_content_and_leaves_nothing_beside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a folder in the way");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("old"), "old").unwrap();
        assert!(write_atomically(&path, b"new").is_err());
        assert_eq!(std::fs::read(path.join("old")).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn who_may_read_a_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (own, all) = (folder.path().join("own"), folder.path().join("all"));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        write_privately(&own, b"1").unwrap();
        write_atomically(&own, b"2").unwrap();
        assert_eq!(mode(&own), 0o600);
        write_atomically(&all, b"1").unwrap();
        std::fs::set_permissions(&all, std::fs::Permissions::from_mode(0o640)).unwrap();
        write_privately(&all, b"2").unwrap();
        assert_eq!(mode(&all), 0o640);
    }

    #[test]
    fn a_linked_tree_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to/there"));
        std::fs::create_dir_all(from.join("deep/deeper")).unwrap();
        std::fs::write(from.join("deep/deeper/a"), "1").unwrap();
        std::os::unix::fs::symlink("deep/deeper/a", from.join("link")).unwrap();
        link_tree(&from, &to).unwrap();
        assert_eq!(std::fs::read(to.join("link")).unwrap(), b"1");
        assert!(to.join("link").is_symlink());
        // Replacing the file in the copy must not change the original.
        write_atomically(&to.join("deep/deeper/a"), b"2").unwrap();
        assert_eq!(std::fs::read(from.join("deep/deeper/a")).unwrap(), b"1");
        assert!(
            format!("{:#}", link_tree(&folder.path().join("absent"), &to).unwrap_err()).contains("absent")
        );
    }

    #[test]
    fn a_link_is_followed_and_what_is_no_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link, socket) =
            (folder.path().join("file"), folder.path().join("link"), folder.path().join("socket"));
        std::fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_atomically(&link, b"new").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
        assert!(link.is_symlink(), "the link was replaced");

        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let error = write_atomically(&socket, b"new").unwrap_err().to_string();
        assert!(error.contains("is not a regular file"), "{error}");
        assert!(socket.exists() && !socket.is_file());
    }

    #[test]
    fn a_tree_digest_sees_names_and_contents_but_not_hidden_files() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir(root.join("src")).unwrap();
        std::fs::write(root.join("src/a"), "1").unwrap();
        let first = digest_tree(root, &["src"]).unwrap();
        std::fs::write(root.join("src/.a.swp"), "x").unwrap();
        assert_eq!(digest_tree(root, &["src"]).unwrap(), first);
        std::fs::write(root.join("src/a"), "2").unwrap();
        let second = digest_tree(root, &["src"]).unwrap();
        assert_ne!(second, first);
        std::fs::rename(root.join("src/a"), root.join("src/b")).unwrap();
        assert_ne!(digest_tree(root, &["src"]).unwrap(), second);
    }
}
