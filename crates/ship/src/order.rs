//! Orders to `ship` and its answers. An order is data, so it can be stored, printed and repeated.

use std::path::PathBuf;

use build_info::{Bytes, Glibc, Sha256};
use serde::{Deserialize, Serialize};

pub use install::order::{
    Index, Install, Installed, InstalledVersion, LONGEST_NAME, List, Listed, Rollback, Switched, Uninstall,
    Uninstalled,
};

/// Order to the program.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Order {
    /// Make the archives of a build.
    Pack(Box<Pack>),
    /// Put archives into the folder from which installers read.
    Place(Place),
    /// Check if an archive may be distributed.
    Verify(Verify),
    /// List the differences between two archives.
    Compare(Compare),
    /// Install an archive.
    Install(Install),
    /// Make the previous version current.
    Rollback(Rollback),
    /// Remove versions.
    Uninstall(Uninstall),
    /// List the installed versions.
    List(List),
}

/// Reply to an order. `A` is the type of the program's answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply<A = Answer> {
    /// The order was carried out.
    Done(A),
    /// The order failed.
    Failed(Failed),
}

/// Failure of an order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failed {
    /// Exit code.
    pub code: u8,
    /// Error and its causes, for the user.
    pub said: Vec<String>,
}

/// Result of each kind of order.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Answer to [`Order::Pack`].
    Packed(Packed),
    /// Answer to [`Order::Place`]: the archives with their new paths.
    Placed(Vec<Archive>),
    /// Answer to [`Order::Verify`].
    Verified(Verified),
    /// Answer to [`Order::Compare`]: the differences; empty if the archives are equal.
    Compared(Vec<Difference>),
    /// Answer to [`Order::Install`].
    Installed(Installed),
    /// Answer to [`Order::Rollback`].
    Switched(Switched),
    /// Answer to [`Order::Uninstall`].
    Uninstalled(Uninstalled),
    /// Answer to [`Order::List`].
    Listed(Vec<InstalledVersion>),
}

/// Order to make the archives of a build.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pack {
    /// Name of the archive without its suffix, and of the single folder in it; at most [`LONGEST_NAME`] bytes.
    pub name: String,
    /// Version of Anneal.
    pub version: String,
    /// Target triple.
    pub target: String,
    /// Profile of the build.
    pub profile: String,
    /// Folder for the archives.
    pub out: PathBuf,
    /// Files to pack, in any order.
    pub files: Vec<Item>,
    /// Modification time of every file, in seconds since 1970.
    pub mtime: u64,
    /// True to also make a `.tar.gz`, for machines without zstd.
    pub gz: bool,
    /// Fields of the Debian package; `None` to make none.
    pub deb: Option<Deb>,
    /// Properties of the Python wheel; `None` to make none.
    #[serde(default)]
    pub wheel: Option<Wheel>,
    /// Components of the program, for the bill of materials and the licences.
    pub parts: Parts,
}

/// File in an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// Path of the source file.
    pub from: PathBuf,
    /// Name below the archive's folder, with `/`.
    pub to: String,
    /// True if the file is executable.
    pub executable: bool,
}

/// Fields that only a Debian package needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deb {
    /// Oldest glibc version that the program runs with, such as `2.31`.
    pub libc: String,
    /// Other packages that the program needs, in the notation of `Depends`.
    pub depends: Vec<String>,
    /// Maintainer as `NAME <ADDRESS>`.
    pub maintainer: String,
}

/// Properties that only a Python wheel needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wheel {
    /// Oldest glibc that the program runs with.
    pub glibc: Glibc,
    /// Description of the program in one line.
    pub summary: String,
    /// Program without function names, which replaces the archive's program; `None` to keep that program.
    #[serde(default)]
    pub program: Option<PathBuf>,
}

/// Components of a program.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parts {
    /// Rust part; `None` if it is unknown.
    pub rust: Option<Rust>,
    /// Components that are not crates: llama.cpp and the C++ runtime.
    pub others: Vec<Part>,
    /// Folders whose licence files are copied to THIRD-PARTY.
    pub licences: Vec<Licences>,
}

/// Query to cargo for the crates of a program.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rust {
    /// Top folder of the workspace.
    pub workspace: PathBuf,
    /// Path of cargo.
    pub cargo: PathBuf,
    /// Package of the program.
    pub package: String,
    /// Features in addition to the default features.
    pub features: Vec<String>,
}

/// Component that is not a crate.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Name of the component.
    pub name: String,
    /// Version of the component.
    pub version: String,
    /// Licence as an SPDX expression.
    pub license: String,
    /// Package URL.
    pub purl: String,
    /// Description of the component's purpose and origin.
    pub description: String,
    /// Names and digests of the patches applied to the component.
    pub patches: Vec<(String, Sha256)>,
    /// Names and values of additional properties.
    pub properties: Vec<(String, String)>,
}

/// Folder with licence files.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Licences {
    /// Path of the folder, which is searched recursively if `deep` is true.
    pub folder: PathBuf,
    /// Name of the folder in THIRD-PARTY.
    pub name: String,
    /// True if the folder contains vendored components.
    pub deep: bool,
}

/// Result of packing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Packed {
    /// Archives, the `.tar.zst` first.
    pub archives: Vec<Archive>,
    /// Number of files in each archive.
    pub files: usize,
    /// Total size of the files.
    pub unpacked: Bytes,
    /// Number of crates in the bill of materials.
    pub crates: usize,
    /// Crates without a licence file; THIRD-PARTY/README lists their SPDX expressions.
    pub without_licence_file: Vec<String>,
}

/// Finished archive or package.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Archive {
    /// Path of the file.
    pub path: PathBuf,
    /// Size of the file.
    pub size: Bytes,
    /// Digest of the file's content.
    pub sha256: Sha256,
}

/// Order to move archives into the folder from which installers read, and to update its index.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Packed archives, each with its checksum file next to it, on the file system of `out`.
    pub archives: Vec<Archive>,
    /// Path of the folder.
    pub out: PathBuf,
    /// Machines that the archives are for.
    pub audience: Audience,
}

/// Machines that an archive is for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Audience {
    /// CPUs, in words.
    pub cpu: String,
    /// Oldest glibc that the program runs with; `None` if it needs none.
    pub glibc: Option<Glibc>,
}

/// Order to check if an archive may be distributed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verify {
    /// Path of the archive.
    pub archive: PathBuf,
    /// Paths of the build host that no file may contain.
    pub paths: Vec<PathBuf>,
    /// Name of the build host, which no file may contain; `None` if unknown.
    pub hostname: Option<String>,
    /// True to run the program. A build for another machine needs an emulator.
    pub run: bool,
    /// Command that runs the program: the emulator and its options. Empty to run the program directly.
    #[serde(default)]
    pub emulator: Vec<String>,
}

/// Result of [`Verify`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verified {
    /// Number of files that were checked.
    pub files: usize,
    /// Output of `--version`; `None` if the program was not run.
    pub version: Option<String>,
}

/// Order to compare two archives or two Debian packages.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compare {
    /// Path of the first archive.
    pub one: PathBuf,
    /// Path of the second archive.
    pub other: PathBuf,
}

/// Difference between two archives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Name of the member, or of the archive if only its packing differs.
    pub member: String,
    /// Kind of difference: `content at byte 12`, `only in the first`.
    pub what: String,
}
