//! Paths in a checkout.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Checkout of Anneal.
#[derive(Clone, Debug)]
pub struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Returns the checkout in which cargo runs this program, else the checkout in which the program was compiled. The
    /// variable `ANNEAL_WORKSPACE` overrides both, for tests and for an xtask that was moved.
    ///
    /// # Errors
    /// If no checkout is found.
    pub fn find() -> Result<Self> {
        let root = match std::env::var_os("ANNEAL_WORKSPACE") {
            Some(root) => PathBuf::from(root),
            None => base::checkout(env!("CARGO_MANIFEST_DIR"))
                .context("cannot find a checkout of Anneal\nhint: run cargo xtask in a checkout")?,
        };
        let root = std::path::absolute(root)?;
        if !root.join("profiles/build").is_dir() {
            bail!(
                "{} is not a checkout of Anneal: it has no profiles/build\nhint: run cargo xtask in a checkout",
                root.display()
            );
        }
        Ok(Self { root })
    }

    /// Returns the checkout at `root`, which need not exist yet.
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    /// Returns the top folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the folder of build profiles.
    pub fn build_profiles(&self) -> PathBuf {
        self.root.join("profiles/build")
    }

    /// Returns the folder with the presets for run-time settings.
    pub fn runtime_presets(&self) -> PathBuf {
        self.root.join("profiles/runtime")
    }

    /// Returns the folder of workloads.
    pub fn workloads(&self) -> PathBuf {
        self.root.join("profiles/workloads")
    }

    /// Returns the folder of synthetic models.
    pub fn models(&self) -> PathBuf {
        self.anneal().join("models")
    }

    /// Returns the folder of merged PGO profiles, each named after its digest.
    pub fn pgo_profiles(&self) -> PathBuf {
        self.anneal().join("profiles")
    }

    /// Returns the folder of everything that Anneal creates: build folders, sources, caches.
    pub fn anneal(&self) -> PathBuf {
        self.root.join("target/anneal")
    }

    /// Returns the link to the newest finished build of `profile`.
    pub fn current(&self, profile: &str) -> PathBuf {
        self.anneal().join(profile)
    }

    /// Points the link `alias` at the link of `profile`, so that the alias follows later changes to that link.
    ///
    /// # Errors
    /// If the link cannot be created.
    pub fn make_alias(&self, alias: &str, profile: &str) -> Result<PathBuf> {
        let link = self.current(alias);
        crate::fs::switch_link(&link, Path::new(profile))?;
        Ok(link)
    }

    /// Returns cargo's target folder for the engine. All builds share the folder, because cargo distinguishes builds
    /// by their flags.
    pub fn cargo_target(&self) -> PathBuf {
        self.anneal().join("cargo")
    }

    /// Returns the folder of finished archives.
    pub fn dist(&self) -> PathBuf {
        self.anneal().join("dist")
    }

    /// Returns cargo's target folder for the workspace's programs that xtask runs.
    pub fn cargo_tools(&self) -> PathBuf {
        self.anneal().join("cargo-tools")
    }

    /// Returns the folder that contains all scratch folders.
    pub fn scratch(&self) -> PathBuf {
        self.anneal().join("scratch")
    }

    /// Returns the path of the cache of tool versions.
    pub fn tool_cache(&self) -> PathBuf {
        self.anneal().join("tools.json")
    }
}
