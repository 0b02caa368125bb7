//! Digest of a source tree.
//!
//! The listing has one line for each regular file, `<SHA-256 of the content>  <path>\n`. Paths are relative to the
//! tree and use `/` between components. Lines are in ascending order of the paths' bytes. The tree's digest is the
//! SHA-256 of the listing. Files and folders called `.git`, at any depth, are ignored. You can compute the digest
//! with coreutils, and so check a pin without this program:
//!
//! ```text
//! cd TREE
//! find . -name .git -prune -o -type f -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' sha256sum | sha256sum
//! ```
//!
//! Times, owners, file modes and empty folders are ignored: they do not affect compilation, and some file systems,
//! umasks and git checkouts change them. Symbolic links and devices are errors, and so are names that are not
//! UTF-8, or that contain a control character or a backslash. llama.cpp's trees contain none of them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha256::Sha256;

/// Files of a tree with their digests, in ascending order of their paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing(Vec<(String, Sha256)>);

impl Listing {
    /// Reads every file of the tree at `root`.
    ///
    /// # Errors
    /// If a file cannot be read or listed, or its name is not allowed.
    pub fn of(root: &Path) -> Result<Self> {
        Self::of_files(files(root)?)
    }

    /// Creates the listing of a tree from pairs of a current path and a path in the tree.
    pub(crate) fn of_files(mut files: Vec<(PathBuf, String)>) -> Result<Self> {
        files.sort_by(|(_, one), (_, other)| one.as_bytes().cmp(other.as_bytes()));
        let lines =
            files.into_iter().map(|(file, path)| Ok((path, of_file(&file)?))).collect::<Result<_>>()?;
        Ok(Self(lines))
    }

    /// Returns the digest of the tree.
    pub fn digest(&self) -> Sha256 {
        Sha256::of(self.to_text())
    }

    /// Returns the listing as text, which is the input of the digest and readable by `sha256sum -c`.
    pub fn to_text(&self) -> String {
        self.0.iter().map(|(path, digest)| format!("{digest}  {path}\n")).collect()
    }

    /// Parses the output of [`Listing::to_text`].
    ///
    /// # Errors
    /// If a line is malformed.
    pub fn parse(text: &str) -> Result<Self> {
        text.lines()
            .map(|line| {
                let (digest, path) = line.split_once("  ").context("a line without two spaces")?;
                let digest = Sha256::try_from(digest.to_string()).map_err(anyhow::Error::msg)?;
                Ok((path.to_string(), digest))
            })
            .collect::<Result<_>>()
            .map(Self)
    }

    /// Compares this listing with `now` and returns the differences: `changed PATH`, `missing PATH`, `added PATH`.
    pub fn differences(&self, now: &Listing) -> Vec<String> {
        let then: std::collections::BTreeMap<_, _> =
            self.0.iter().map(|(path, digest)| (path, digest)).collect();
        let now: std::collections::BTreeMap<_, _> =
            now.0.iter().map(|(path, digest)| (path, digest)).collect();
        let lost = then.iter().filter_map(|(path, digest)| match now.get(path) {
            None => Some(format!("missing {path}")),
            Some(found) if found != digest => Some(format!("changed {path}")),
            Some(_) => None,
        });
        let added = now.keys().filter(|path| !then.contains_key(**path)).map(|path| format!("added {path}"));
        lost.chain(added).collect()
    }
}

/// Returns the files of the tree at `root`: their full paths, and their paths within the tree.
pub(crate) fn files(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut paths = Vec::new();
    collect(root, "", &mut paths)?;
    Ok(paths.into_iter().map(|path| (root.join(&path), path)).collect())
}

/// Collects the paths of all files below `dir`, whose path within the tree is `prefix` (empty or ending in `/`).
fn collect(dir: &Path, prefix: &str, paths: &mut Vec<String>) -> Result<()> {
    let failed = || format!("cannot list {}", dir.display());
    for entry in fs::read_dir(dir).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let name = checked_name(&entry.file_name(), dir)?;
        if name == ".git" {
            continue;
        }
        let kind = entry.file_type().with_context(failed)?;
        if kind.is_dir() {
            collect(&entry.path(), &format!("{prefix}{name}/"), paths)?;
        } else if kind.is_file() {
            paths.push(format!("{prefix}{name}"));
        } else {
            bail!(
                "{} is a symbolic link or a special file, which a source tree must not contain",
                entry.path().display()
            );
        }
    }
    Ok(())
}

/// Returns the name `name` of an entry in `dir` if a listing can contain the name.
pub(crate) fn checked_name(name: &std::ffi::OsStr, dir: &Path) -> Result<String> {
    match name.to_str() {
        Some(name) if !name.chars().any(|c| c.is_control() || c == '\\') => Ok(name.to_string()),
        _ => bail!(
            "{} contains {name:?}: the name of a source file must be UTF-8 without control characters or backslashes",
            dir.display()
        ),
    }
}

/// Returns the SHA-256 of the content of `file`.
///
/// # Errors
/// If the file cannot be read.
pub fn of_file(file: &Path) -> Result<Sha256> {
    let read = || Sha256::of_reader(File::open(file)?);
    read().with_context(|| format!("cannot read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn tree() -> Result<tempfile::TempDir> {
        let dir = tempfile::tempdir()?;
        // `a-b` sorts before `a/`, and `a.c` lies between them. A directory walk has a different order.
        for (path, text) in
            [("a/one", "1"), ("a-b", "2"), ("a.c", "3"), ("Z", "4"), ("z/ä b", "5"), ("z/empty", "")]
        {
            let file = dir.path().join(path);
            fs::create_dir_all(file.parent().context("no parent")?)?;
            fs::write(file, text)?;
        }
        Ok(dir)
    }

    #[test]
    fn it_is_the_digest_that_coreutils_give() -> Result<()> {
        let dir = tree()?;
        fs::create_dir_all(dir.path().join("a/.git/objects"))?;
        fs::write(dir.path().join("a/.git/HEAD"), "not counted")?;
        let script = r"find . -name .git -prune -o -type f -printf '%P\n' \
            | LC_ALL=C sort | xargs -d '\n' sha256sum | sha256sum";
        let output = Command::new("sh").args(["-c", script]).current_dir(dir.path()).output()?;
        let theirs = String::from_utf8(output.stdout)?;
        assert_eq!(theirs.split(' ').next(), Some(Listing::of(dir.path())?.digest().as_str()));
        Ok(())
    }

    #[test]
    fn names_and_content_count_modes_and_times_do_not() -> Result<()> {
        let dir = tree()?;
        let before = Listing::of(dir.path())?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(dir.path().join("Z"), fs::Permissions::from_mode(0o755))?;
        }
        File::options().write(true).open(dir.path().join("Z"))?.set_modified(std::time::UNIX_EPOCH)?;
        fs::create_dir(dir.path().join("empty folder"))?;
        assert_eq!(Listing::of(dir.path())?.digest(), before.digest());

        fs::write(dir.path().join("Z"), "4 ")?;
        fs::rename(dir.path().join("a.c"), dir.path().join("a.d"))?;
        let after = Listing::of(dir.path())?;
        assert_ne!(after.digest(), before.digest());
        assert_eq!(before.differences(&after), ["changed Z", "missing a.c", "added a.d"]);
        Ok(())
    }

    #[test]
    fn a_listing_is_read_back_as_it_is_written() -> Result<()> {
        let listing = Listing::of(tree()?.path())?;
        assert_eq!(Listing::parse(&listing.to_text())?, listing);
        assert!(Listing::parse("abc  path").is_err());
        Ok(())
    }

    #[cfg(unix)]
    #[test]
    fn links_and_odd_names_are_refused() -> Result<()> {
        let dir = tree()?;
        std::os::unix::fs::symlink("Z", dir.path().join("link"))?;
        assert!(format!("{:#}", Listing::of(dir.path()).unwrap_err()).contains("symbolic link"));
        fs::remove_file(dir.path().join("link"))?;
        fs::write(dir.path().join("two\nlines"), "")?;
        assert!(format!("{:#}", Listing::of(dir.path()).unwrap_err()).contains("control characters"));
        Ok(())
    }
}
