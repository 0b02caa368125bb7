//! What the program `store` can be told to do, and what it answers.

use std::path::PathBuf;

use build_info::tuning::CpuKey;
use build_info::{Bytes, Glibc, Sha256, TuningRecord};
use serde::{Deserialize, Serialize};
pub use ship::order::{Failed, Item};

use crate::entry::{Build, Entry};
use crate::location::Location;

/// What is to be done.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Order {
    /// Say whether a build is there.
    Ask(Ask),
    /// Say whether what is there of a build is whole.
    Check(Check),
    /// Fetch the files of a build folder.
    Take(Take),
    /// Put a build into the store.
    Publish(Box<Publish>),
    /// Put what was tuned into the store.
    Tune(Tune),
    /// Fetch the newest archive for a machine.
    Choose(Choose),
}

/// What came of an order.
pub type Reply = ship::order::Reply<Answer>;

/// The result of each order.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Of [`Order::Ask`]: the entry, if there is one.
    Asked(Option<Box<Entry>>),
    /// Of [`Order::Check`]: nothing where there is no such build.
    Checked(Option<Box<Checked>>),
    /// Of [`Order::Take`]: nothing where there is no such build.
    Taken(Option<Box<Taken>>),
    /// Of [`Order::Publish`].
    Published(Box<Published>),
    /// Of [`Order::Tune`].
    Tuned(Tuned),
    /// Of [`Order::Choose`].
    Chosen(Box<ChosenBuild>),
}

/// Say whether a build is there.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// Where to look.
    pub store: Location,
    /// What it is found by.
    pub key: Sha256,
}

/// Say whether what is there of a build is whole. All of it is read.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// Where to look; no web server.
    pub store: Location,
    /// What it is found by.
    pub key: Sha256,
    /// Whether a whole build that its list does not name is put into it.
    pub list: bool,
    /// An empty folder of the caller's, for copies of the objects. The caller removes it, also after a kill.
    pub work: PathBuf,
}

/// What is there of a build.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Checked {
    /// The entry.
    pub entry: Entry,
    /// What is wrong with its objects.
    pub damaged: Vec<String>,
    /// Whether the list of its kind named it, or had newer ones enough.
    pub listed: bool,
}

/// Fetch the files of a build folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Take {
    /// Where from.
    pub store: Location,
    /// What it is found by.
    pub key: Sha256,
    /// An empty folder of the caller's, on the disk where the files shall stay.
    pub into: PathBuf,
    /// Whose settings are fetched as well.
    pub cpu: Option<CpuKey>,
}

/// What was fetched.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Taken {
    /// The entry.
    pub entry: Entry,
    /// The folder with the files.
    pub folder: PathBuf,
    /// Settings that were found fastest with this build on such a CPU.
    pub tuning: Option<TuningRecord>,
    /// What a person should know.
    pub notes: Vec<String>,
}

/// Put a build into the store.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publish {
    /// Where to.
    pub store: Location,
    /// What is told of the build.
    pub build: Build,
    /// The archive.
    pub archive: PathBuf,
    /// The files of the build folder, if another checkout can take them.
    pub tree: Vec<Item>,
    /// Time of all these files, seconds since 1970.
    pub mtime: u64,
    /// Whether an entry that is there is replaced.
    pub force: bool,
    /// An empty folder of the caller's, for what is packed. The caller removes it, also after a kill.
    pub work: PathBuf,
}

/// What was published.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Published {
    /// The entry that is in the store now.
    pub entry: Entry,
    /// Whether somebody else had put it there.
    pub was_there: bool,
    /// Bytes that were sent.
    pub sent: Bytes,
}

/// Put what was tuned into the store.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tune {
    /// Where to.
    pub store: Location,
    /// The build in the store.
    pub key: Sha256,
    /// What was tuned; entries of other builds are passed over.
    pub record: TuningRecord,
    /// How these entries name the build.
    pub build: Sha256,
}

/// What was put there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tuned {
    /// Entries that are new in the store, or newer than those there.
    pub entries: usize,
}

/// Fetch the newest archive for a machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choose {
    /// Where from.
    pub store: Location,
    /// Kinds that this machine is of, the best first.
    pub kinds: Vec<String>,
    /// Profile of the build.
    pub profile: String,
    /// The C library of this machine, where that is known.
    pub glibc: Option<Glibc>,
    /// An empty folder of the caller's; without one nothing is fetched.
    pub into: Option<PathBuf>,
    /// Whose settings are fetched as well.
    pub cpu: Option<CpuKey>,
}

/// What was chosen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChosenBuild {
    /// The entry.
    pub entry: Entry,
    /// The archive, under the name that it had when it was packed.
    pub archive: Option<PathBuf>,
    /// Settings that were found fastest with this build on such a CPU.
    pub tuning: Option<TuningRecord>,
    /// What a person should know.
    pub notes: Vec<String>,
}
