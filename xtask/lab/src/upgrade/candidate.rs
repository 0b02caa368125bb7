//! Another version of llama.cpp that may replace the present version: fetched, checked, and built alongside it.

use std::path::PathBuf;

use anyhow::{Context, Result};
use base::exit;
use build::openblas::{self, ArchiveArgs};
use build::process;
use build::profile;
use build::setup;
use build::stages::{Build, CheckoutLock, Outcome};
use build::tools::{self, Cache, SourceArgs};
use build::ui::Ui;
use build::workspace::Workspace;
use build_info::{BuildInfo, Host};
use llama_source::{Origin, OtherSource, Store, Tree};
use plan::profile::Profile;
use toolchain::Toolchain;

use super::source_check::{SourceCheck, Trees};

/// Prerequisites of the builds of several versions.
pub struct Workshop<'a> {
    /// Checkout.
    pub workspace: &'a Workspace,
    /// Output for progress and messages.
    pub ui: &'a Ui,
    /// Profile of all builds.
    pub profile: Profile,
    /// This machine.
    pub host: Host,
    /// Pinned sources of this checkout.
    pub store: Store,
    toolchain: Toolchain,
    cache: Cache,
}

/// Other version, which was fetched and patched.
pub struct Candidate {
    /// Name on the command line.
    pub other: OtherSource,
    /// Store whose pins name the version.
    pub store: Store,
    origin: Origin,
    /// Patched sources.
    pub tree: Tree,
}

impl Candidate {
    /// Returns the version within the origin.
    pub fn version(&self) -> String {
        match &self.other {
            OtherSource::Crate(version) => version.clone(),
            _ => self.tree.version.clone(),
        }
    }
}

impl<'a> Workshop<'a> {
    /// Prepares builds of `profile`. With `git_url`, commits come from that repository. Installs missing tools after
    /// asking, or without asking if `yes` is set.
    ///
    /// # Errors
    /// If the profile is unknown, a pin cannot be read, or a tool is missing.
    pub fn new(
        workspace: &'a Workspace,
        profile: &str,
        git_url: Option<&str>,
        cache: Cache,
        yes: bool,
        ui: &'a Ui,
    ) -> Result<Self> {
        let profile = profile::load_with(&workspace.build_profiles(), profile, &[])?;
        let mut store = Store::of_workspace(&workspace.anneal())?;
        if let Some(url) = git_url {
            store.pins = store.pins.with_git_url(url);
        }
        let host = tools::host(ui);
        let mut toolchain = setup::ready(workspace, &profile, &SourceArgs::default(), yes, ui)?;
        openblas::provide(workspace, &profile, &host, &ArchiveArgs::default(), &mut toolchain, ui)?;
        Ok(Self { workspace, ui, profile, host, store, toolchain, cache })
    }

    /// Returns the folder and the record of the current build of the profile.
    ///
    /// # Errors
    /// If the profile has no finished plain build.
    pub fn present(&self) -> Result<(PathBuf, BuildInfo)> {
        let name = &self.profile.name;
        let link = self.workspace.current(name);
        let record = link.join("build_info.json");
        let info = BuildInfo::read(&record).with_context(|| {
            format!(
                "{name} has no finished build to compare with\nhint: run `cargo xtask build --profile {name}` first"
            )
        })?;
        if info.base_plan.is_some() {
            return Err(exit::usage(format!(
                "the current build of {name} is a PGO or BOLT build, and a plain build of another version would be \
                 compared with it\nhint: run `cargo xtask build --profile {name} --plain`, upgrade, and run pgo or \
                 bolt again"
            )));
        }
        let folder =
            link.canonicalize().with_context(|| format!("cannot resolve the link {}", link.display()))?;
        Ok((folder, info))
    }

    /// Fetches, verifies and patches `other`, alongside the present sources.
    ///
    /// # Errors
    /// If the sources cannot be fetched or verified, or a required patch does not apply.
    pub fn fetch(&self, other: &OtherSource) -> Result<Candidate> {
        let progress = self.ui.progress("fetch");
        let mut say = |line: &str| progress.message(line);
        let fetched = self.store.of_other(other, &mut say).and_then(|(store, origin)| {
            let tree = store.ensure(&origin, &mut say)?;
            Ok(Candidate { other: other.clone(), store, origin, tree })
        });
        progress.finish();
        fetched
    }

    /// Compares the patches, the C API and the shim of `candidate` with the pinned version.
    ///
    /// # Errors
    /// If the pinned sources cannot be fetched, a file cannot be read, or the compiler cannot be started.
    pub fn check(&self, candidate: &Candidate) -> Result<SourceCheck> {
        let progress = self.ui.progress("check");
        let mut say = |line: &str| progress.message(line);
        let checked = self.store.ensure(&Origin::Crate, &mut say).and_then(|present| {
            let unpatched = candidate.store.unpatched(&candidate.origin, &mut say)?;
            let trees = Trees { present, other: candidate.tree.clone() };
            say("trying the patches, and compiling the shim");
            let cxx = &self.plan(&candidate.tree)?.compiler.cxx;
            let version = candidate.version();
            SourceCheck::run(&trees, &version, &unpatched, &self.store, cxx, self.workspace)
        });
        progress.finish();
        checked
    }

    fn plan(&self, tree: &Tree) -> Result<plan::Plan> {
        plan::plan(&self.host, &self.profile, &tools::source_of(tree)?, &self.toolchain)
    }

    /// Builds `candidate` in its own folder, including the correctness gate. The current build does not change.
    ///
    /// # Errors
    /// If a stage fails or the user stops the build.
    pub fn build(&self, candidate: &Candidate) -> Result<Outcome> {
        self.with_build(candidate, |build| build.complete(true))
    }

    /// Makes the finished build of `candidate` the current build of the profile.
    ///
    /// # Errors
    /// If the build is not finished, or the link cannot be changed.
    pub fn make_current(&self, candidate: &Candidate) -> Result<()> {
        self.with_build(candidate, |build| {
            build.there().context("the build of the other version is not finished")?;
            build.make_current()
        })?;
        if let Some(alias) = &self.profile.alias {
            self.workspace.make_alias(alias, &self.profile.name)?;
        }
        Ok(())
    }

    fn with_build<T>(&self, candidate: &Candidate, work: impl FnOnce(&Build) -> Result<T>) -> Result<T> {
        let _lock = CheckoutLock::wait(self.workspace, self.ui)?;
        process::check_interrupted()?;
        let plan = self.plan(&candidate.tree)?;
        let folder = self.workspace.anneal().join(plan.folder_name());
        let launcher = self.cache.launcher(&self.toolchain)?;
        let build = Build::open(&folder, self.workspace, self.ui, &self.host, &plan, &candidate.tree)?;
        work(&build.launched_by(&launcher))
    }
}
