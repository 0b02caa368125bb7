//! Orders to the installer and its answers. An order is data, so it can be stored, printed and repeated.

use std::path::PathBuf;

use build_info::{Bytes, Sha256};
use serde::{Deserialize, Serialize};

/// Maximum length of an archive's name in bytes. With the `/` of a folder, a name of this length fills the name field
/// of a tar header.
pub const LONGEST_NAME: usize = 99;

/// Order to install an archive.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Install {
    /// File, folder or URL.
    pub from: String,
    /// Prefix to install to; `None` for /usr/local as root, else ~/.local.
    pub prefix: Option<PathBuf>,
    /// Digest that the archive must have; `None` for the digest in the file next to the archive.
    pub sha256: Option<String>,
    /// True to accept an archive without a checksum.
    pub no_check: bool,
    /// Public minisign key: a file, or the key itself.
    pub key: Option<String>,
    /// True to replace an installed version with the same name and other content.
    pub force: bool,
    /// True for a dry run, which only returns what would be done.
    pub dry_run: bool,
}

/// Result of an installation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Installed {
    /// Name of the version.
    pub name: String,
    /// Path of the version's folder.
    pub folder: PathBuf,
    /// Path under which a shell finds the program.
    pub program: PathBuf,
    /// Output of `--version`; `None` if the program was not run.
    pub version: Option<String>,
    /// Name of the version that was current before; `None` if no version was.
    pub previous: Option<String>,
    /// True if the version was installed already.
    pub was_there: bool,
    /// True if nothing was changed.
    pub dry_run: bool,
    /// Choices and repairs, with the reasons for them.
    pub notes: Vec<String>,
    /// Warnings about risks and about obstacles to using the program.
    pub warnings: Vec<String>,
}

/// Order to make the previous version current.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    /// Prefix of the installation; `None` for the default.
    pub prefix: Option<PathBuf>,
    /// True for a dry run, which only returns what would be done.
    pub dry_run: bool,
}

/// Result of a rollback.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Switched {
    /// Name of the version that is current now.
    pub current: String,
    /// Name of the version that was current before.
    pub previous: String,
    /// True if nothing was changed.
    pub dry_run: bool,
}

/// Order to remove versions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Uninstall {
    /// Full name or version number of the version; `None` for the current version.
    pub version: Option<String>,
    /// True to remove all versions.
    pub all: bool,
    /// Prefix of the installation; `None` for the default.
    pub prefix: Option<PathBuf>,
    /// True for a dry run, which only returns what would be done.
    pub dry_run: bool,
}

/// Result of an uninstallation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Uninstalled {
    /// Names of the removed versions.
    pub removed: Vec<String>,
    /// Name of the version that is current now; `None` if no version is left.
    pub current: Option<String>,
    /// True if nothing was changed.
    pub dry_run: bool,
}

impl Uninstalled {
    /// Returns the names of the removed versions, or a description of what was removed instead.
    pub fn names(&self) -> String {
        match self.removed.as_slice() {
            [] => "the files of an interrupted installation".to_string(),
            versions => versions.join(", "),
        }
    }
}

/// Order to list the installed versions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Prefix of the installation; `None` for the default.
    pub prefix: Option<PathBuf>,
}

/// Installed version.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InstalledVersion {
    /// Name of the version.
    pub name: String,
    /// True if the version is current.
    pub current: bool,
    /// True if a rollback makes the version current.
    pub previous: bool,
    /// Total size of the version's files.
    pub size: Bytes,
    /// Defect, such as a changed file; `None` if the version is intact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Content of `index.json`, which lists the archives in its folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Index {
    /// Version of the format.
    pub schema: u32,
    /// Archives, sorted by name.
    pub archives: Vec<Listed>,
}

/// Archive in an [`Index`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    /// Name of the file.
    pub file: String,
    /// Version of Anneal.
    pub version: String,
    /// Target triple.
    pub target: String,
    /// Profile of the build.
    pub profile: String,
    /// Size of the file.
    pub size: Bytes,
    /// Digest of the file's content.
    pub sha256: Sha256,
}
