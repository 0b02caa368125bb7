//! Sources of a version other than the pinned one.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::digest::Listing;
use crate::fetch;
use crate::origin::Origin;
use crate::patch;
use crate::pins::{CratePin, is_commit};
use crate::progress::FetchProgress;
use crate::store::Store;
use crate::tree::{self, TREE, Tree};
use crate::trial::{PatchTrial, try_patches};

/// Another version of llama.cpp, written as a crate version, `sdist`, a commit, or a folder.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum OtherSource {
    /// Version of the crate.
    Crate(String),
    /// The pinned Python package, which contains the complete llama.cpp.
    Sdist,
    /// Commit of llama.cpp's repository.
    Git(String),
    /// Folder on this machine.
    Path(PathBuf),
}

impl fmt::Display for OtherSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OtherSource::Crate(version) => f.pad(version),
            OtherSource::Sdist => f.pad("sdist"),
            OtherSource::Git(commit) => f.pad(commit),
            OtherSource::Path(folder) => f.pad(&folder.display().to_string()),
        }
    }
}

impl FromStr for OtherSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_version =
            text.split('.').count() == 3 && text.split('.').all(|part| part.parse::<u32>().is_ok());
        match text {
            "sdist" => Ok(OtherSource::Sdist),
            _ if is_version => Ok(OtherSource::Crate(text.to_string())),
            _ if is_commit(text) => Ok(OtherSource::Git(text.to_string())),
            // A folder is recognised by its slash, so that a misspelt version is not taken for a folder.
            _ if text.contains('/') => Ok(OtherSource::Path(PathBuf::from(text))),
            _ => Err(format!(
                "{text:?} is not a version of llama.cpp\nhint: use a crate version such as 0.1.161, sdist, the 40 \
                 digits of a commit, or a folder with a slash, such as ./llama.cpp"
            )),
        }
    }
}

impl TryFrom<String> for OtherSource {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<OtherSource> for String {
    fn from(source: OtherSource) -> Self {
        source.to_string()
    }
}

impl Store {
    /// Returns the version that `text` specifies: [`OtherSource`], or `latest` for the newest version of the crate.
    ///
    /// # Errors
    /// If `text` is not a version, or the newest version is unknown.
    pub fn named(&self, text: &str) -> Result<OtherSource> {
        if text != "latest" {
            return text.parse().map_err(anyhow::Error::msg);
        }
        let list = self.releases(false);
        let newest = list.newest().with_context(|| {
            let why = list.stale.as_deref().unwrap_or("the index does not list it");
            format!(
                "cannot find the newest version of {}: {why}\nhint: specify a version, such as {}",
                self.pins.krate.package, self.pins.krate.version
            )
        })?;
        Ok(OtherSource::Crate(newest.version.clone()))
    }

    /// Returns a store that pins `other`, and the origin of `other` in that store. Fetches the crate of another
    /// version, because its digest must be known. cargo verifies the archive with the checksum in the registry's index.
    ///
    /// # Errors
    /// If the crate cannot be fetched, or a file cannot be written.
    pub fn of_other(&self, other: &OtherSource, progress: FetchProgress<'_>) -> Result<(Self, Origin)> {
        let mut store = self.clone();
        let origin = match other {
            OtherSource::Crate(version) if *version == self.pins.krate.version => Origin::Crate,
            OtherSource::Crate(version) => {
                (store.pins.krate, store.crate_manifest) = self.other_crate(version, progress)?;
                Origin::Crate
            }
            OtherSource::Sdist => Origin::Sdist,
            OtherSource::Git(commit) => {
                store.pins = store.pins.with_commit(commit)?;
                Origin::Git
            }
            OtherSource::Path(folder) => Origin::Path(folder.clone()),
        };
        Ok((store, origin))
    }

    /// Returns the tree of `origin` without patches.
    ///
    /// # Errors
    /// See [`Store::ensure`].
    pub fn unpatched(&self, origin: &Origin, progress: FetchProgress<'_>) -> Result<Tree> {
        let patches = self.root.join("sources/downloads/no-patches");
        fs::create_dir_all(&patches).with_context(|| format!("cannot create {}", patches.display()))?;
        Store { patches, ..self.clone() }.ensure(origin, progress)
    }

    /// Returns this store without the patch `name`.
    ///
    /// # Errors
    /// If a patch cannot be copied.
    pub fn without(&self, name: &str) -> Result<Self> {
        let folder = self.root.join("sources/downloads").join(format!("without-{name}"));
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot clear {}", folder.display()))?;
        }
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        for patch in patch::load(&self.patches)?.into_iter().filter(|patch| patch.name != name) {
            fs::copy(&patch.path, folder.join(&patch.name))
                .with_context(|| format!("cannot copy the patch {}", patch.name))?;
        }
        Ok(Self { patches: folder, ..self.clone() })
    }

    /// Tries this store's patches on the unpatched tree `tree`.
    ///
    /// # Errors
    /// If the tree cannot be copied, a patch is invalid, or git is missing.
    pub fn try_patches(&self, tree: &Tree) -> Result<Vec<PatchTrial>> {
        try_patches(
            &tree.path,
            &patch::load(&self.patches)?,
            &self.root.join("sources/downloads"),
            &self.tools,
        )
    }

    /// Fetches another version of the crate with a generated manifest. Returns its pin and the path of the manifest.
    fn other_crate(&self, version: &str, progress: FetchProgress<'_>) -> Result<(CratePin, PathBuf)> {
        let folder =
            std::path::absolute(self.root.join("sources/downloads").join(format!("crate-{version}")))?;
        let manifest = folder.join("Cargo.toml");
        let own = &self.pins.krate;
        let pin = CratePin { version: version.to_string(), ..own.clone() };
        let unpacked = match fetch::krate::locate(&pin, &manifest, &self.tools) {
            Ok(package) => package,
            Err(_) => {
                progress(&format!("fetching {} {version} with cargo", own.package));
                let write = |name: &str, text: &[u8]| {
                    let path = folder.join(name);
                    base::replace(&path, text, base::Access::Usual)
                        .with_context(|| format!("cannot write {}", path.display()))
                };
                fs::create_dir_all(folder.join("src"))
                    .with_context(|| format!("cannot create {}", folder.display()))?;
                let text = fs::read_to_string(&self.crate_manifest)
                    .with_context(|| format!("cannot read {}", self.crate_manifest.display()))?;
                write("src/lib.rs", b"")?;
                write("Cargo.toml", with_version(&text, &own.package, version)?.as_bytes())?;
                // Beginning with this workspace's lock file keeps the versions of all other crates, which need not be
                // downloaded again.
                let lock = fs::read(self.crate_manifest.with_file_name("Cargo.lock")).with_context(|| {
                    format!("cannot read the lock file of {}", self.crate_manifest.display())
                })?;
                write("Cargo.lock", &lock)?;
                fetch::krate::resolve(&pin, &manifest, &self.tools)?;
                fetch::krate::locate(&pin, &manifest, &self.tools)?
            }
        };
        let sources = unpacked.join(TREE);
        let digest = Listing::of(&sources)?.digest();
        let (llama, ggml) = tree::versions(&sources)?;
        Ok((CratePin { digest, llama, ggml, ..pin }, manifest))
    }

    /// Returns the texts of the files that pin `self`'s crate: manifest, lock file and pins, each with its path in
    /// `workspace`, the store of the checkout. The pins are last, because only they decide which tree is used.
    ///
    /// # Errors
    /// If a file cannot be read, or has an unexpected form.
    pub fn pin_files(&self, workspace: &Self, pins_file: &Path) -> Result<Vec<(PathBuf, String)>> {
        let read =
            |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
        let (old, new) = (&workspace.pins.krate, &self.pins.krate);
        let manifest = with_version(&read(&workspace.crate_manifest)?, &old.package, &new.version)?;
        let lock = read(&self.crate_manifest.with_file_name("Cargo.lock"))?;
        let mut pins = read(pins_file)?;
        for (key, from, to) in [
            ("version", &old.version, &new.version),
            ("digest", &old.digest.as_str().to_string(), &new.digest.as_str().to_string()),
            ("llama", &old.llama, &new.llama),
            ("ggml", &old.ggml, &new.ggml),
        ] {
            pins = in_section(&pins, "crate", key, from, to)?;
        }
        Ok(vec![
            (workspace.crate_manifest.clone(), manifest),
            (workspace.crate_manifest.with_file_name("Cargo.lock"), lock),
            (pins_file.to_path_buf(), pins),
        ])
    }
}

/// Returns the manifest `text` with a different version of `package`.
fn with_version(text: &str, package: &str, version: &str) -> Result<String> {
    let start = format!("{package} = ");
    let mut found = false;
    let lines = text.lines().map(|line| match line.starts_with(&start) {
        true => {
            found = true;
            format!("{package} = \"={version}\"\n")
        }
        false => format!("{line}\n"),
    });
    let text = lines.collect();
    found.then_some(text).with_context(|| format!("the manifest of the pinned crate has no line {start:?}"))
}

/// Returns the TOML `text` with the value `to` instead of `from` for `key` in `[section]`. Comments and order are kept.
fn in_section(text: &str, section: &str, key: &str, from: &str, to: &str) -> Result<String> {
    let (wanted, line) = (format!("[{section}]"), format!("{key} = \"{from}\""));
    let (mut inside, mut found) = (false, false);
    let mut changed = String::new();
    for own in text.lines() {
        if own.starts_with('[') {
            inside = own == wanted;
        }
        if inside && own == line {
            found = true;
            changed += &format!("{key} = \"{to}\"\n");
        } else {
            changed += &format!("{own}\n");
        }
    }
    found.then_some(changed).with_context(|| format!("pins.toml has no line {line:?} in {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_back_as_they_are_written() {
        for text in ["0.1.161", "sdist", &"ab".repeat(20), "./llama.cpp", "/x/y"] {
            assert_eq!(text.parse::<OtherSource>().map(|other| other.to_string()).as_deref(), Ok(text));
        }
        for text in ["", "latest", "0.1", "0.1.x", "abcdef", "llama.cpp", "git"] {
            assert!(text.parse::<OtherSource>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_the_section_of_the_crate_is_changed() -> Result<()> {
        let text = "# pins\n[crate]\nversion = \"1\" \nversion = \"1\"\n[sdist]\nversion = \"1\"\n";
        assert_eq!(
            in_section(text, "crate", "version", "1", "2")?,
            "# pins\n[crate]\nversion = \"1\" \nversion = \"2\"\n[sdist]\nversion = \"1\"\n"
        );
        assert!(in_section(text, "git", "version", "1", "2").is_err());
        assert_eq!(with_version("[dependencies]\nx = \"=1\"\n", "x", "2")?, "[dependencies]\nx = \"=2\"\n");
        assert!(with_version("y = \"=1\"\n", "x", "2").is_err());
        Ok(())
    }
}
