//! What `ship` can be told to do, and what it answers. Data: an order can be kept, printed and given again.

use std::path::PathBuf;

use build_info::{Bytes, Sha256};
use serde::{Deserialize, Serialize};

/// Bytes in the name of an archive: with the `/` of a folder they fill the field that a tar header has for a name.
pub const LONGEST_NAME: usize = 99;

/// What is to be done.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Order {
    /// Make the archives of a build.
    Pack(Box<Pack>),
    /// Put archives into the folder that installers look into.
    Place(Place),
    /// Say whether an archive is what a stranger may be given.
    Verify(Verify),
    /// Say where two archives differ.
    Compare(Compare),
    /// Install an archive.
    Install(Install),
    /// Make the version current that was so before.
    Rollback(Rollback),
    /// Remove versions.
    Uninstall(Uninstall),
    /// List what is installed.
    List(List),
}

/// What came of an order to this program, or to another that takes orders as it does and has answers `A`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply<A = Answer> {
    /// It was carried out.
    Done(A),
    /// It was not.
    Failed(Failed),
}

/// Why an order was not carried out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failed {
    /// The exit code.
    pub code: u8,
    /// The error and its causes, for people.
    pub said: Vec<String>,
}

/// The result of each order.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Of [`Order::Pack`].
    Packed(Packed),
    /// Of [`Order::Place`]: the archives, where they lie now.
    Placed(Vec<Archive>),
    /// Of [`Order::Verify`].
    Verified(Verified),
    /// Of [`Order::Compare`]: where the two differ, nothing when they do not.
    Compared(Vec<Difference>),
    /// Of [`Order::Install`].
    Installed(Installed),
    /// Of [`Order::Rollback`].
    Switched(Switched),
    /// Of [`Order::Uninstall`].
    Uninstalled(Uninstalled),
    /// Of [`Order::List`].
    Listed(Vec<InstalledVersion>),
}

/// Make the archives of a build.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pack {
    /// Name of the archive without its ending, and of the one folder in it, of at most [`LONGEST_NAME`] bytes.
    pub name: String,
    /// Version of Anneal.
    pub version: String,
    /// Target triple.
    pub target: String,
    /// Profile of the build.
    pub profile: String,
    /// Where the archives go.
    pub out: PathBuf,
    /// The files, in any order.
    pub files: Vec<Item>,
    /// Time of every file, seconds since 1970.
    pub mtime: u64,
    /// Whether to make a `.tar.gz` too, for those who have no zstd.
    pub gz: bool,
    /// The Debian package, if there shall be one.
    pub deb: Option<Deb>,
    /// What the program is made of, for the bill of materials and the licences.
    pub parts: Parts,
}

/// One file of an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// Where it lies.
    pub from: PathBuf,
    /// Its name below the archive's folder, with `/`.
    pub to: String,
    /// Whether it may be run.
    pub executable: bool,
}

/// What a Debian package says beyond the archive.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deb {
    /// Oldest C library that it runs with, `2.31`.
    pub libc: String,
    /// Other packages that it needs, as `Depends` names them.
    pub depends: Vec<String>,
    /// `NAME <ADDRESS>` of who made it.
    pub maintainer: String,
}

/// What a program is made of.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parts {
    /// The Rust part, where it is known.
    pub rust: Option<Rust>,
    /// All that is no crate: llama.cpp, the C++ runtime.
    pub others: Vec<Part>,
    /// Folders whose licence files are copied, with the name that each gets in THIRD-PARTY.
    pub licences: Vec<Licences>,
}

/// The crates of a program, found by asking cargo.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rust {
    /// Top folder of the workspace.
    pub workspace: PathBuf,
    /// The cargo to ask.
    pub cargo: PathBuf,
    /// The package that is the program.
    pub package: String,
    /// Its features beyond the default ones.
    pub features: Vec<String>,
}

/// A part that is no crate.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// SPDX expression.
    pub license: String,
    /// Package URL.
    pub purl: String,
    /// What it does here, and how it got here.
    pub description: String,
    /// Patches on it: name and digest.
    pub patches: Vec<(String, Sha256)>,
    /// More that is known of it: names and values.
    pub properties: Vec<(String, String)>,
}

/// A folder with licence files.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Licences {
    /// The folder, searched down to the bottom where `deep`.
    pub folder: PathBuf,
    /// Name of the folder in THIRD-PARTY.
    pub name: String,
    /// Whether vendored parts lie below.
    pub deep: bool,
}

/// What was packed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Packed {
    /// The archives, the `.tar.zst` first.
    pub archives: Vec<Archive>,
    /// Files in each.
    pub files: usize,
    /// Bytes of them.
    pub unpacked: Bytes,
    /// Crates that are in the bill of materials.
    pub crates: usize,
    /// Crates that came without a licence file; their SPDX expressions are in THIRD-PARTY/README.
    pub without_licence_file: Vec<String>,
}

/// One finished file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Archive {
    /// Where it lies.
    pub path: PathBuf,
    /// Its size.
    pub size: Bytes,
    /// Digest of its content.
    pub sha256: Sha256,
}

/// Put archives that may be passed on into the folder that installers look into, and list there what it holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The archives as they were packed, each with its sum beside it, on the file system of `out`.
    pub archives: Vec<Archive>,
    /// The folder.
    pub out: PathBuf,
}

/// Say whether an archive is what a stranger may be given.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verify {
    /// The archive.
    pub archive: PathBuf,
    /// Paths of the build host that must be in no file.
    pub paths: Vec<PathBuf>,
    /// Name of the build host.
    pub hostname: Option<String>,
    /// Whether the program is run: a build for another machine cannot be, but by an emulator.
    pub run: bool,
    /// The words that stand before it then: the emulator and its options.
    #[serde(default)]
    pub emulator: Vec<String>,
}

/// What [`Verify`] looked at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verified {
    /// Files that were looked through.
    pub files: usize,
    /// What the program said of itself, where it was run.
    pub version: Option<String>,
}

/// Say where two archives, or two Debian packages, differ.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compare {
    /// One archive.
    pub one: PathBuf,
    /// The other.
    pub other: PathBuf,
}

/// One thing that differs between two archives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Name of the member, or of the archive when only its packing differs.
    pub member: String,
    /// What differs: `content at byte 12`, `only in the first`.
    pub what: String,
}

/// Install an archive.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Install {
    /// File, folder or URL.
    pub from: String,
    /// Where to; by default /usr/local for root, else ~/.local.
    pub prefix: Option<PathBuf>,
    /// The digest that the archive must have, in place of the one in the file beside it.
    pub sha256: Option<String>,
    /// Whether an archive without a sum is taken.
    pub no_check: bool,
    /// Public key of minisign: a file, or the key itself.
    pub key: Option<String>,
    /// Whether another content under the same name is replaced.
    pub force: bool,
    /// Whether to say what would be done, and do nothing.
    pub dry_run: bool,
}

/// What was installed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Installed {
    /// Name of the version.
    pub name: String,
    /// Where it lies.
    pub folder: PathBuf,
    /// The program, as a shell finds it.
    pub program: PathBuf,
    /// What the program said of itself.
    pub version: Option<String>,
    /// The version that was current before.
    pub previous: Option<String>,
    /// Whether it was there already.
    pub was_there: bool,
    /// Whether this is what would be.
    pub dry_run: bool,
    /// What was chosen or repaired, and why.
    pub notes: Vec<String>,
    /// Risks, and what stands in the way of using it.
    pub warnings: Vec<String>,
}

/// Make the version current that was so before.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    /// Where it is installed.
    pub prefix: Option<PathBuf>,
    /// Whether to say what would be done, and do nothing.
    pub dry_run: bool,
}

/// What was switched.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Switched {
    /// The current version now.
    pub current: String,
    /// The one before.
    pub previous: String,
    /// Whether this is what would be.
    pub dry_run: bool,
}

/// Remove versions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Uninstall {
    /// The version, by its whole name or by its number where one has that; the current one without.
    pub version: Option<String>,
    /// All of them.
    pub all: bool,
    /// Where they are installed.
    pub prefix: Option<PathBuf>,
    /// Whether to say what would be done, and do nothing.
    pub dry_run: bool,
}

/// What was removed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Uninstalled {
    /// The versions.
    pub removed: Vec<String>,
    /// The current version now, if one is left.
    pub current: Option<String>,
    /// Whether this is what would be.
    pub dry_run: bool,
}

/// List what is installed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Where to look.
    pub prefix: Option<PathBuf>,
}

/// One installed version.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InstalledVersion {
    /// Its name.
    pub name: String,
    /// Whether it is the current one.
    pub current: bool,
    /// Whether a rollback leads to it.
    pub previous: bool,
    /// Bytes of its files.
    pub size: Bytes,
    /// What is wrong with it: a file that is not what was installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The list of archives that lies beside them: `index.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Index {
    /// Version of this format.
    pub schema: u32,
    /// The archives, by name.
    pub archives: Vec<Listed>,
}

/// One archive of an [`Index`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    /// Name of its file.
    pub file: String,
    /// Version of Anneal.
    pub version: String,
    /// Target triple.
    pub target: String,
    /// Profile of the build.
    pub profile: String,
    /// Its size.
    pub size: Bytes,
    /// Digest of its content.
    pub sha256: Sha256,
}
