//! Pins in `pins.toml`: version and digest of llama.cpp's sources.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use sha256::Sha256;

/// Pinned sources of every origin except `path`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pins {
    /// Pin of the origin `crate`.
    #[serde(rename = "crate")]
    pub krate: CratePin,
    /// Pin of the origin `sdist`.
    pub sdist: SdistPin,
    /// Pin of the origin `git`.
    pub git: GitPin,
}

/// Crate that contains the tree in its folder `llama.cpp`. The Cargo.lock next to the manifest pins the archive.
/// This pin covers the unpacked files, which cargo does not check again.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CratePin {
    /// Name of the crate.
    pub package: String,
    /// Version of the crate, which must equal the version in the lock file.
    pub version: String,
    /// Tree digest before the patches.
    pub digest: Sha256,
    /// Version of llama.cpp in its CMakeLists.txt.
    pub llama: String,
    /// Version of ggml in its CMakeLists.txt.
    pub ggml: String,
    /// Licence of llama.cpp, as an SPDX expression.
    pub license: String,
}

/// Source distribution that contains the tree in its folder `vendor/llama.cpp`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SdistPin {
    /// Name of the package.
    pub package: String,
    /// Version of the package.
    pub version: String,
    /// SHA-256 of the archive.
    pub archive_sha256: Sha256,
    /// Size of the archive in bytes. The size distinguishes a truncated download from a different archive.
    pub archive_bytes: u64,
    /// Commit of llama.cpp's repository that the archive contains.
    pub commit: String,
    /// Tree digest before the patches, without the stray `.git`.
    pub digest: Sha256,
    /// Version of llama.cpp in its CMakeLists.txt.
    pub llama: String,
    /// Version of ggml in its CMakeLists.txt.
    pub ggml: String,
    /// Licence of llama.cpp, as an SPDX expression.
    pub license: String,
}

/// Commit of a git repository.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GitPin {
    /// URL or path of the repository, in any form that git accepts.
    pub url: String,
    /// Full object name of the commit.
    pub commit: String,
    /// Tree digest before the patches. Without this digest, only the commit's object name (SHA-1, checked by git)
    /// verifies the fetched files, and `check` compares with the result of the first fetch.
    pub digest: Option<Sha256>,
}

impl Pins {
    /// Reads the pins in `file`.
    ///
    /// # Errors
    /// If the file cannot be read, or contains an invalid pin.
    pub fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read the pins in {}", file.display()))?;
        toml::from_str(&text).with_context(|| format!("cannot parse the pins in {}", file.display()))
    }

    /// Returns the pins with a different commit for the origin `git`. The tree digest of that commit is unknown.
    ///
    /// # Errors
    /// If `commit` is not a full object name.
    pub fn with_commit(mut self, commit: &str) -> Result<Self> {
        ensure!(
            is_commit(commit),
            "{commit:?} is not a full commit hash\nhint: git needs all 40 hexadecimal digits, which `git \
             rev-parse NAME` prints in a clone"
        );
        if self.git.commit != commit {
            self.git = GitPin { commit: commit.to_string(), digest: None, ..self.git };
        }
        Ok(self)
    }

    /// Returns the pins with a different repository for the origin `git`: a mirror, or a clone on this machine.
    pub fn with_git_url(mut self, url: &str) -> Self {
        self.git.url = url.to_string();
        self
    }
}

/// True if `text` is a full SHA-1 or SHA-256 object name.
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
