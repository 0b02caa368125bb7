//! Layout of files below a prefix.
//!
//! ```text
//! PREFIX/bin/anneal -> ../lib/anneal/current/bin/anneal      links, also for the man pages and completions
//! PREFIX/lib/anneal/current -> versions/NAME                 renaming this link switches the version
//! PREFIX/lib/anneal/previous -> versions/NAME
//! PREFIX/lib/anneal/versions/NAME/                           an unpacked archive
//! PREFIX/lib/anneal/folders                                  folders that Anneal created in and above PREFIX
//! PREFIX/lib/anneal/.lock, .staging-PID-RANDOM/
//! ```
//!
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use base::exit;

use crate::{files, name};

/// Maximum length of the path PREFIX/lib/anneal in bytes, so that the paths of an archive's files fit into PATH_MAX.
const LONGEST_HOME: usize = 3500;

/// Prefix of an installation.
#[derive(Clone, Debug)]
pub struct Prefix {
    root: PathBuf,
}

impl Prefix {
    /// Returns the requested prefix, or the default for this user.
    ///
    /// # Errors
    /// If the user has no home folder or the prefix cannot be used.
    pub fn of(asked: Option<&Path>) -> Result<Self> {
        let root = match asked {
            Some(root) => std::path::absolute(root)?,
            None if rustix::process::geteuid().is_root() => PathBuf::from("/usr/local"),
            None => {
                let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
                home.ok_or_else(|| {
                    exit::usage(
                        "cannot choose a folder to install to: HOME is not set\nhint: specify a folder with \
                         --prefix DIR",
                    )
                })?
                .join(".local")
            }
        };
        let prefix = Self { root };
        // The list of created folders contains one path per line.
        if prefix.root.as_os_str().as_bytes().contains(&b'\n') {
            return Err(exit::usage(format!(
                "cannot install to {}: the path contains a line break\nhint: choose another folder with --prefix DIR",
                prefix.root.display()
            )));
        }
        let home = prefix.home();
        let length = home.as_os_str().len();
        if length > LONGEST_HOME {
            return Err(exit::usage(format!(
                "cannot install to {}: the path has {length} bytes, more than the maximum of {LONGEST_HOME} bytes\n\
                 hint: choose a shorter path with --prefix DIR",
                home.display()
            )));
        }
        Ok(prefix)
    }

    /// Returns the path of the prefix.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the folder that only Anneal uses.
    pub fn home(&self) -> PathBuf {
        self.root.join("lib/anneal")
    }

    /// Returns the folder of unpacked archives.
    pub fn versions(&self) -> PathBuf {
        self.home().join("versions")
    }

    /// Returns the folder of one version.
    pub fn version(&self, name: &str) -> PathBuf {
        self.versions().join(name)
    }

    /// Returns the path under which a shell finds the program.
    pub fn program(&self) -> PathBuf {
        self.root.join("bin/anneal")
    }

    /// Returns the path of the link to the current version.
    pub fn current_link(&self) -> PathBuf {
        self.home().join("current")
    }

    /// Returns the path of the link to the previous version.
    pub fn previous_link(&self) -> PathBuf {
        self.home().join("previous")
    }

    fn folders_list(&self) -> PathBuf {
        self.home().join("folders")
    }

    /// Returns the name of the current version, or `None`.
    ///
    /// # Errors
    /// If something other than Anneal's link is at the link's path.
    pub fn current(&self) -> Result<Option<String>> {
        self.named_by(&self.current_link())
    }

    /// Returns the name of the previous version, or `None` if no previous version is installed.
    ///
    /// # Errors
    /// If something other than Anneal's link is at the link's path.
    pub fn previous(&self) -> Result<Option<String>> {
        let current = self.current()?;
        Ok(self
            .named_by(&self.previous_link())?
            .filter(|name| self.version(name).is_dir() && Some(name) != current.as_ref()))
    }

    /// Returns the name of the version that a rollback makes current: the previous version, else the newest other
    /// version. If a process was killed between the two renames of a switch, both links point to the same version, and
    /// a rollback uses the newest other version.
    ///
    /// # Errors
    /// If a link or the folder of versions cannot be read.
    pub fn way_back(&self) -> Result<Option<String>> {
        let Some(current) = self.current()? else { return Ok(None) };
        match self.previous()? {
            Some(previous) => Ok(Some(previous)),
            None => Ok(self.all()?.into_iter().rfind(|name| *name != current)),
        }
    }

    /// Returns the version that `link` points to.
    ///
    /// # Errors
    /// If something other than Anneal's link is at the path `link`.
    fn named_by(&self, link: &Path) -> Result<Option<String>> {
        let target = match fs::read_link(link) {
            Ok(target) => target,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            // `InvalidInput` means that the file is not a link.
            Err(error) if error.kind() == ErrorKind::InvalidInput => return Err(foreign(link)),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read the link {}", link.display()));
            }
        };
        let name = target.to_str().and_then(|target| target.strip_prefix("versions/"));
        match name.filter(|name| name::check_version(name).is_ok()) {
            Some(name) => Ok(Some(name.to_string())),
            None => Err(foreign(link)),
        }
    }

    /// Returns the names of all versions, the newest last.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn all(&self) -> Result<Vec<String>> {
        let versions = self.versions();
        let entries = match fs::read_dir(&versions) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).with_context(|| format!("cannot list {}", versions.display())),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot list {}", versions.display()))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name::check_version(&name).is_ok() && entry.file_type()?.is_dir() {
                names.push(name);
            }
        }
        names.sort_by_key(|name| {
            let version = name::parts(name).map_or("", |(version, ..)| version);
            (name::order(version), name.clone())
        });
        Ok(names)
    }

    /// Creates the folder `below` the prefix, accessible to all users, and records the folders that had to be
    /// created. Only recorded folders are removed with the last version.
    ///
    /// # Errors
    /// If a folder cannot be created or recorded.
    pub fn make_folder(&self, below: &str) -> Result<()> {
        let folder = self.root.join(below);
        let missing: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
        // The deepest folder is removed first.
        let unmake = |made: &[&Path]| made.iter().for_each(|folder| drop(fs::remove_dir(folder)));
        for (at, folder) in missing.iter().enumerate().rev() {
            if let Err(error) = files::make_open(folder, 0o755) {
                unmake(&missing[at + 1..]);
                return Err(error).with_context(|| {
                    format!(
                        "cannot create {}\nhint: choose a writable folder with --prefix DIR, or install as root",
                        folder.display()
                    )
                });
            }
        }
        if missing.is_empty() || !self.home().is_dir() {
            return Ok(());
        }
        // A folder that is not in the list would never be removed.
        self.remember(&missing).inspect_err(|_| unmake(&missing))
    }

    /// Adds `made` to the list of folders to remove with the last version.
    fn remember(&self, made: &[&Path]) -> Result<()> {
        let mut all = self.made_folders()?;
        all.extend(made.iter().filter_map(|folder| match folder.strip_prefix(&self.root) {
            Ok(below) if below.as_os_str().is_empty() => Some(PathBuf::from(".")),
            Ok(below) => Some(below.to_path_buf()),
            // A folder that was reached through `..` existed before.
            Err(_) if folder.file_name().is_none() => None,
            // The path is recorded as an absolute path, because the prefix may be renamed or moved.
            Err(_) => folder.canonicalize().ok(),
        }));
        let lines: Vec<&[u8]> = all.iter().map(|folder| folder.as_os_str().as_bytes()).collect();
        files::replace(&self.folders_list(), &[&lines.join(&b'\n')[..], b"\n"].concat())
    }

    /// Returns the folders that Anneal created: `.` is the prefix, relative paths are below it, absolute paths above
    /// it.
    fn made_folders(&self) -> Result<BTreeSet<PathBuf>> {
        let known = |line: &Path| {
            line == Path::new(".")
                || line.is_absolute()
                || name::check_member(&line.to_string_lossy()).is_ok()
        };
        match fs::read(self.folders_list()) {
            Ok(text) => {
                let lines = text.split(|byte| *byte == b'\n').map(|line| Path::new(OsStr::from_bytes(line)));
                Ok(lines.filter(|line| known(line)).map(Path::to_path_buf).collect())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(error) => {
                Err(error).with_context(|| format!("cannot read {}", self.folders_list().display()))
            }
        }
    }

    /// True if no version is installed and the folder of versions is empty.
    pub fn is_empty(&self) -> bool {
        let nothing = |mut entries: fs::ReadDir| entries.next().is_none();
        fs::read_dir(self.versions()).is_ok_and(nothing)
            && !is_there(&self.current_link())
            && !is_there(&self.previous_link())
    }

    /// Removes Anneal's own folder after the last version was removed, and then the folders that Anneal created,
    /// unless they are in use.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn remove_empty(&self) -> Result<()> {
        let made = self.made_folders()?;
        let gone = |path: PathBuf| match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        };
        gone(self.folders_list())?;
        gone(self.home().join(crate::lock::FILE))?;
        let root = self.root.canonicalize().ok();
        // A folder that is not empty contains foreign files, so it is kept.
        let _ = fs::remove_dir(self.versions());
        let _ = fs::remove_dir(self.home());
        // The deepest folders come first: folders below the prefix, then the prefix, then folders above the prefix.
        let mut made: Vec<PathBuf> = made.into_iter().collect();
        made.sort_by_key(|folder| {
            let depth = std::cmp::Reverse(folder.components().count());
            (folder.is_absolute(), folder == Path::new("."), depth, folder.clone())
        });
        for folder in made {
            let path = if folder == Path::new(".") {
                // The system would refuse `rmdir PREFIX/.`.
                self.root.clone()
            } else if folder.is_absolute() {
                match &root {
                    Some(root) if root.starts_with(&folder) && *root != folder => folder,
                    // The prefix was moved away from this folder.
                    _ => continue,
                }
            } else {
                self.root.join(folder)
            };
            let _ = fs::remove_dir(path);
        }
        Ok(())
    }
}

/// True if anything exists at `path`, even a dangling link.
pub fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Returns the error for a foreign file at a path that Anneal needs.
pub fn foreign(path: &Path) -> anyhow::Error {
    anyhow!(
        "cannot replace {}: it was not created by Anneal's installer; nothing was changed\nhint: move it away, or \
         choose another folder with --prefix DIR",
        path.display()
    )
}

/// Returns the name in `there` that equals `asked` or contains the version number `asked`.
///
/// # Errors
/// If no name or more than one name matches.
pub fn find(asked: &str, there: &[String]) -> Result<String> {
    if there.iter().any(|name| name == asked) {
        return Ok(asked.to_string());
    }
    let of_version = |name: &&String| name::parts(name).is_some_and(|(version, ..)| version == asked);
    match there.iter().filter(of_version).collect::<Vec<_>>().as_slice() {
        [one] => Ok((*one).clone()),
        [] => bail!("{asked} is not installed; installed versions: {}", there.join(", ")),
        several => Err(exit::usage(format!(
            "{asked} is ambiguous: it matches {}\nhint: give the full name",
            several.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" or ")
        ))),
    }
}
