//! Where things lie below a prefix.
//!
//! ```text
//! PREFIX/bin/anneal -> ../lib/anneal/current/bin/anneal      links, as for the man pages and the completions
//! PREFIX/lib/anneal/current -> versions/NAME                 one rename of this link is the whole switch
//! PREFIX/lib/anneal/previous -> versions/NAME
//! PREFIX/lib/anneal/versions/NAME/                           an archive as it was unpacked
//! PREFIX/lib/anneal/folders                                  folders that we made in PREFIX, and above it
//! PREFIX/lib/anneal/.lock, .staging-PID-RANDOM/
//! ```
//!
//! install.sh keeps to the same, so each can go on where the other was.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use base::exit;

use crate::{files, name};

/// A prefix that is installed to.
#[derive(Clone, Debug)]
pub struct Prefix {
    root: PathBuf,
}

impl Prefix {
    /// The one that was asked for, or that is usual for this user.
    pub fn of(asked: Option<&Path>) -> Result<Self> {
        let root = match asked {
            Some(root) => std::path::absolute(root)?,
            None if rustix::process::geteuid().is_root() => PathBuf::from("/usr/local"),
            None => {
                let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
                home.ok_or_else(|| {
                    exit::usage("HOME names no folder: say where to install with --prefix DIR")
                })?
                .join(".local")
            }
        };
        Ok(Self { root })
    }

    /// The prefix itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// All that is ours alone.
    pub fn home(&self) -> PathBuf {
        self.root.join("lib/anneal")
    }

    /// The unpacked archives.
    pub fn versions(&self) -> PathBuf {
        self.home().join("versions")
    }

    /// One of them.
    pub fn version(&self, name: &str) -> PathBuf {
        self.versions().join(name)
    }

    /// The program, as a shell finds it.
    pub fn program(&self) -> PathBuf {
        self.root.join("bin/anneal")
    }

    /// The link to what is used.
    pub fn current_link(&self) -> PathBuf {
        self.home().join("current")
    }

    /// The link to what was used before.
    pub fn previous_link(&self) -> PathBuf {
        self.home().join("previous")
    }

    fn folders_list(&self) -> PathBuf {
        self.home().join("folders")
    }

    /// Name of the current version.
    pub fn current(&self) -> Result<Option<String>> {
        self.named_by(&self.current_link())
    }

    /// Name of the version that was current before, where it is still there.
    pub fn previous(&self) -> Result<Option<String>> {
        let current = self.current()?;
        Ok(self
            .named_by(&self.previous_link())?
            .filter(|name| self.version(name).is_dir() && Some(name) != current.as_ref()))
    }

    /// Name of the version that a rollback leads to: the previous one, else the newest of the others. Whoever is killed
    /// between the two renames of a switch leaves both links at one version.
    pub fn way_back(&self) -> Result<Option<String>> {
        let Some(current) = self.current()? else { return Ok(None) };
        match self.previous()? {
            Some(previous) => Ok(Some(previous)),
            None => Ok(self.all()?.into_iter().rfind(|name| *name != current)),
        }
    }

    /// The version that `link` leads to.
    ///
    /// # Errors
    /// When something else lies there.
    fn named_by(&self, link: &Path) -> Result<Option<String>> {
        let target = match fs::read_link(link) {
            Ok(target) => target,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            // No link.
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

    /// Names of all versions, the newest last.
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

    /// Makes the folder `below` the prefix, which everybody may enter, and remembers which ones had to be made: those go
    /// again with the last version, and no others.
    pub fn make_folder(&self, below: &str) -> Result<()> {
        let folder = self.root.join(below);
        let missing: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
        // The deepest first.
        let unmake = |made: &[&Path]| made.iter().for_each(|folder| drop(fs::remove_dir(folder)));
        for (at, folder) in missing.iter().enumerate().rev() {
            if let Err(error) = files::make_open(folder, 0o755) {
                unmake(&missing[at + 1..]);
                return Err(error).with_context(|| {
                    format!(
                        "cannot make {}: take a folder that you may write to with --prefix DIR, or install as root",
                        folder.display()
                    )
                });
            }
        }
        if missing.is_empty() || !self.home().is_dir() {
            return Ok(());
        }
        // One that is not in the list would never go.
        self.remember(&missing).inspect_err(|_| unmake(&missing))
    }

    /// Adds `made` to the list of folders that go with the last version.
    fn remember(&self, made: &[&Path]) -> Result<()> {
        let mut all = self.made_folders()?;
        all.extend(made.iter().filter_map(|folder| match folder.strip_prefix(&self.root) {
            Ok(below) if below.as_os_str().is_empty() => Some(".".to_string()),
            Ok(below) => Some(below.to_str()?.to_string()),
            // What `..` leads to was there, whatever lies before it.
            Err(_) if folder.file_name().is_none() => None,
            // By where it lies: the prefix may be called otherwise the next time, or be moved away from there.
            Err(_) => Some(folder.canonicalize().ok()?.to_str()?.to_string()),
        }));
        let text: String = all.iter().map(|folder| format!("{folder}\n")).collect();
        files::replace(&self.folders_list(), text.as_bytes())
    }

    /// Folders that we made: `.` is the prefix, a relative one lies below it, an absolute one above.
    fn made_folders(&self) -> Result<BTreeSet<String>> {
        let known = |line: &&str| *line == "." || line.starts_with('/') || name::check_member(line).is_ok();
        match fs::read_to_string(self.folders_list()) {
            Ok(text) => Ok(text.lines().filter(known).map(str::to_string).collect()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(error) => {
                Err(error).with_context(|| format!("cannot read {}", self.folders_list().display()))
            }
        }
    }

    /// Whether nothing is installed, and nobody put anything in its place.
    pub fn is_empty(&self) -> bool {
        let nothing = |mut entries: fs::ReadDir| entries.next().is_none();
        fs::read_dir(self.versions()).is_ok_and(nothing)
            && !is_there(&self.current_link())
            && !is_there(&self.previous_link())
    }

    /// Removes what is left of us when no version is: our own folder, then those that we made and nobody else uses.
    pub fn remove_empty(&self) -> Result<()> {
        let made = self.made_folders()?;
        let gone = |path: PathBuf| match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        };
        gone(self.folders_list())?;
        gone(self.home().join(super::lock::FILE))?;
        let root = self.root.canonicalize().ok();
        // What is not empty holds what others put there.
        let _ = fs::remove_dir(self.versions());
        let _ = fs::remove_dir(self.home());
        // The deepest first: what is below the prefix, the prefix itself, what is above it.
        let mut made: Vec<String> = made.into_iter().collect();
        made.sort_by_key(|folder| {
            let depth = std::cmp::Reverse(folder.matches('/').count());
            (folder.starts_with('/'), folder == ".", depth, folder.clone())
        });
        for folder in made {
            let path = match folder.as_str() {
                // `rmdir PREFIX/.` is refused.
                "." => self.root.clone(),
                above if above.starts_with('/') => match &root {
                    Some(root) if root.starts_with(above) && root != Path::new(above) => PathBuf::from(above),
                    // The prefix was moved away from there.
                    _ => continue,
                },
                below => self.root.join(below),
            };
            let _ = fs::remove_dir(path);
        }
        Ok(())
    }
}

/// Whether `link` is there, as a link or as anything else.
pub fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Something of somebody else lies in our way.
pub fn foreign(path: &Path) -> anyhow::Error {
    anyhow!(
        "{} is there and was not put there by an installer of Anneal: nothing was changed; move it away, or install \
         elsewhere with --prefix DIR",
        path.display()
    )
}

/// A name in `there` that is `asked`, whole or by its version's number.
pub fn find(asked: &str, there: &[String]) -> Result<String> {
    if there.iter().any(|name| name == asked) {
        return Ok(asked.to_string());
    }
    let of_version = |name: &&String| name::parts(name).is_some_and(|(version, ..)| version == asked);
    match there.iter().filter(of_version).collect::<Vec<_>>().as_slice() {
        [one] => Ok((*one).clone()),
        [] => bail!("{asked} is not installed; installed are {}", there.join(", ")),
        several => Err(exit::usage(format!(
            "{asked} may be {}: give the whole name",
            several.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" or ")
        ))),
    }
}
