//! Orders to the program `store` and its answers.

use std::path::PathBuf;

use build_info::tuning::CpuKey;
use build_info::{Bytes, Glibc, Sha256, TuningRecord};
use serde::{Deserialize, Serialize};
pub use ship::order::{Failed, Item};

use crate::entry::{Build, Entry};
use crate::location::Location;

/// Order to the program.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Order {
    /// Look up a build.
    Ask(Ask),
    /// Check if the stored files of a build are intact.
    Check(Check),
    /// Download the files of a build folder.
    Take(Take),
    /// Publish a build to the store.
    Publish(Box<Publish>),
    /// Publish tuned settings to the store.
    Tune(Tune),
    /// Download the newest archive for a machine.
    Choose(Choose),
}

/// Reply to an order.
pub type Reply = ship::order::Reply<Answer>;

/// Result of each kind of order.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Answer to [`Order::Ask`]: the entry, or `None`.
    Asked(Option<Box<Entry>>),
    /// Answer to [`Order::Check`]; `None` if the store does not have the build.
    Checked(Option<Box<Checked>>),
    /// Answer to [`Order::Take`]; `None` if the store does not have the build.
    Taken(Option<Box<Taken>>),
    /// Answer to [`Order::Publish`].
    Published(Box<Published>),
    /// Answer to [`Order::Tune`].
    Tuned(Tuned),
    /// Answer to [`Order::Choose`].
    Chosen(Box<ChosenBuild>),
}

/// Order to look up a build.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// Location of the store.
    pub store: Location,
    /// Key of the build.
    pub key: Sha256,
}

/// Order to check if the stored files of a build are intact. The check reads all of these files.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// Location of the store, which must not be a web server.
    pub store: Location,
    /// Key of the build.
    pub key: Sha256,
    /// True to add an intact but unlisted build to its list.
    pub list: bool,
    /// Empty folder for copies of the objects. The caller removes the folder, even if this process is killed.
    pub work: PathBuf,
}

/// Result of [`Check`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Checked {
    /// Entry of the build.
    pub entry: Entry,
    /// Defects of the build's objects.
    pub damaged: Vec<String>,
    /// True if the list for the build's kind contains the entry, or is full of newer entries.
    pub listed: bool,
}

/// Order to download the files of a build folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Take {
    /// Location of the store.
    pub store: Location,
    /// Key of the build.
    pub key: Sha256,
    /// Empty folder for the files, on the disk where the files will stay.
    pub into: PathBuf,
    /// CPU whose tuned settings are downloaded, too; `None` to download no settings.
    pub cpu: Option<CpuKey>,
}

/// Result of [`Take`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Taken {
    /// Entry of the build.
    pub entry: Entry,
    /// Folder with the files.
    pub folder: PathBuf,
    /// Settings that were fastest with this build on this kind of CPU; `None` if the store has no such settings.
    pub tuning: Option<TuningRecord>,
    /// Messages for the user.
    pub notes: Vec<String>,
}

/// Order to publish a build to the store.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publish {
    /// Location of the store.
    pub store: Location,
    /// Description of the build.
    pub build: Build,
    /// Path of the archive.
    pub archive: PathBuf,
    /// Files of the build folder; empty if another checkout cannot use them.
    pub tree: Vec<Item>,
    /// Modification time of all packed files, in seconds since 1970.
    pub mtime: u64,
    /// True to replace an existing entry.
    pub force: bool,
    /// Empty folder for packing. The caller removes the folder, even if this process is killed.
    pub work: PathBuf,
}

/// Result of [`Publish`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Published {
    /// Entry that is in the store now.
    pub entry: Entry,
    /// True if another publisher had already published the build.
    pub was_there: bool,
    /// Number of bytes that were sent.
    pub sent: Bytes,
}

/// Order to publish tuned settings to the store.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tune {
    /// Location of the store.
    pub store: Location,
    /// Key of the build in the store.
    pub key: Sha256,
    /// Tuned settings. Entries for other builds are ignored.
    pub record: TuningRecord,
    /// Name of the build in the entries of `record`.
    pub build: Sha256,
}

/// Result of [`Tune`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tuned {
    /// Number of entries that are new in the store, or newer than the store's entries.
    pub entries: usize,
}

/// Order to download the newest archive for a machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choose {
    /// Location of the store.
    pub store: Location,
    /// Kinds that match this machine, in order of preference.
    pub kinds: Vec<String>,
    /// Profile of the build.
    pub profile: String,
    /// C library of this machine; `None` if unknown.
    pub glibc: Option<Glibc>,
    /// Empty folder for the archive; `None` to download nothing.
    pub into: Option<PathBuf>,
    /// CPU whose tuned settings are downloaded, too; `None` to download no settings.
    pub cpu: Option<CpuKey>,
}

/// Result of [`Choose`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChosenBuild {
    /// Entry of the build.
    pub entry: Entry,
    /// Path of the archive, which keeps its original name; `None` if nothing was downloaded.
    pub archive: Option<PathBuf>,
    /// Settings that were fastest with this build on this kind of CPU; `None` if the store has no such settings.
    pub tuning: Option<TuningRecord>,
    /// Messages for the user.
    pub notes: Vec<String>,
}
