//! Where things lie in a checkout.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// One checkout of Anneal.
#[derive(Clone, Debug)]
pub struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// The checkout that cargo runs this program in, or else that it was compiled in. `ANNEAL_WORKSPACE` names another one (for
    /// an xtask that was moved elsewhere, and for tests).
    ///
    /// # Errors
    /// If none of them is a checkout.
    pub fn find() -> Result<Self> {
        let root = match std::env::var_os("ANNEAL_WORKSPACE") {
            Some(root) => PathBuf::from(root),
            None => base::checkout(env!("CARGO_MANIFEST_DIR"))
                .context("xtask lies in no checkout of Anneal: run cargo xtask in one")?,
        };
        let root = std::path::absolute(root)?;
        if !root.join("profiles/build").is_dir() {
            bail!(
                "{} is no checkout of Anneal: it has no profiles/build; run cargo xtask in a checkout",
                root.display()
            );
        }
        Ok(Self { root })
    }

    /// The one at `root`, which is there or will be.
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    /// Its top folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Profiles of builds.
    pub fn build_profiles(&self) -> PathBuf {
        self.root.join("profiles/build")
    }

    /// Presets of run-time settings.
    pub fn runtime_presets(&self) -> PathBuf {
        self.root.join("profiles/runtime")
    }

    /// Workloads that profiles are gathered from.
    pub fn workloads(&self) -> PathBuf {
        self.root.join("profiles/workloads")
    }

    /// Synthetic models that are made once.
    pub fn models(&self) -> PathBuf {
        self.anneal().join("models")
    }

    /// Merged profiles, each named by its digest.
    pub fn pgo_profiles(&self) -> PathBuf {
        self.anneal().join("profiles")
    }

    /// All that Anneal makes: build folders, sources, caches.
    pub fn anneal(&self) -> PathBuf {
        self.root.join("target/anneal")
    }

    /// The link that names the newest finished build of `profile`.
    pub fn current(&self, profile: &str) -> PathBuf {
        self.anneal().join(profile)
    }

    /// Lets the link `alias` lead to that of `profile`, whatever that leads to now and later.
    pub fn make_alias(&self, alias: &str, profile: &str) -> Result<PathBuf> {
        let link = self.current(alias);
        crate::fs::switch_link(&link, Path::new(profile))?;
        Ok(link)
    }

    /// Cargo's target folder for the engine, shared by all builds: cargo tells their flags apart.
    pub fn cargo_target(&self) -> PathBuf {
        self.anneal().join("cargo")
    }

    /// Cargo's target folder for the tests that run against `portable`, beside those against `native`.
    pub fn portable_tests(&self) -> PathBuf {
        self.anneal().join("test-portable")
    }

    /// Finished archives.
    pub fn dist(&self) -> PathBuf {
        self.anneal().join("dist")
    }

    /// Cargo's target folder for programs of ours that xtask runs.
    pub fn cargo_tools(&self) -> PathBuf {
        self.anneal().join("cargo-tools")
    }

    /// Folders of commands that are at work.
    pub fn scratch(&self) -> PathBuf {
        self.anneal().join("scratch")
    }

    /// Remembered versions of tools.
    pub fn tool_cache(&self) -> PathBuf {
        self.anneal().join("tools.json")
    }
}
