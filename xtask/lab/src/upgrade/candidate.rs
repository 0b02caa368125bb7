//! Another version of llama.cpp that may replace the present version: fetched, checked, and built alongside it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base::exit;
use build::fs;
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
    pub name: String,
    other: OtherSource,
    /// Store whose pins name the version.
    pub store: Store,
    origin: Origin,
    /// True if one of the pinned version's patches was left out on purpose.
    lacks_patch: bool,
    /// Patched sources.
    pub tree: Tree,
}

impl Candidate {
    /// Returns the version within the origin.
    pub fn version(&self) -> String {
        match &self.other {
            OtherSource::Crate(_) => self.name.clone(),
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
            Ok(Candidate {
                name: other.to_string(),
                other: other.clone(),
                store,
                origin,
                lacks_patch: false,
                tree,
            })
        });
        progress.finish();
        fetched
    }

    /// Fetches the pinned version of the crate without the patch `name`.
    ///
    /// # Errors
    /// If the sources cannot be fetched or verified, or a required patch does not apply without `name`.
    pub fn fetch_without(&self, name: &str) -> Result<Candidate> {
        let store = self.store.without(name)?;
        let progress = self.ui.progress("fetch");
        let tree = store.ensure(&Origin::Crate, &mut |line: &str| progress.message(line));
        progress.finish();
        let other = OtherSource::Crate(store.pins.krate.version.clone());
        let (name, origin) = (format!("{other} without {}", name.trim_end_matches(".patch")), Origin::Crate);
        Ok(Candidate { name, other, store, origin, lacks_patch: true, tree: tree? })
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
            SourceCheck::run(&trees, &version, &unpatched, &candidate.store, cxx, self.workspace)
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
        // A build that lacks a patch never becomes current, so another build may change its link.
        let tree = if candidate.lacks_patch { self.linked(candidate)? } else { candidate.tree.clone() };
        self.with_build(&tree, |build| build.complete(true))
    }

    /// Builds the engine of `candidate` for a search, and returns its path. The gate and the audit do not run, because
    /// a search must also find the version at which the output became wrong.
    ///
    /// # Errors
    /// If a stage fails or the user stops the build.
    pub fn engine(&self, candidate: &Candidate) -> Result<PathBuf> {
        self.with_build(&self.linked(candidate)?, |build| match build.there() {
            Some(outcome) => Ok(outcome.folder.join("bin/anneal")),
            None => build.engine(),
        })
    }

    /// Makes the finished build of `candidate` the current build of the profile.
    ///
    /// # Errors
    /// If the build is not finished, or the link cannot be changed.
    pub fn make_current(&self, candidate: &Candidate) -> Result<()> {
        self.with_build(&candidate.tree, |build| {
            build.there().context("the build of the other version is not finished")?;
            build.make_current()
        })?;
        if let Some(alias) = &self.profile.alias {
            self.workspace.make_alias(alias, &self.profile.name)?;
        }
        Ok(())
    }

    fn with_build<T>(&self, tree: &Tree, work: impl FnOnce(&Build) -> Result<T>) -> Result<T> {
        let _lock = CheckoutLock::wait(self.workspace, self.ui)?;
        process::check_interrupted()?;
        let plan = self.plan(tree)?;
        let launcher = self.cache.launcher(&self.toolchain)?;
        let build = Build::open(&self.folder(&plan), self.workspace, self.ui, &self.host, &plan, tree)?;
        work(&build.launched_by(&launcher))
    }

    /// Returns the tree of `candidate` with the path of a link in its build folder.
    fn linked(&self, candidate: &Candidate) -> Result<Tree> {
        linked(&candidate.tree, &self.folder(&self.plan(&candidate.tree)?))
    }

    /// Returns the build folder of `plan`.
    fn folder(&self, plan: &plan::Plan) -> PathBuf {
        self.workspace.anneal().join(plan.folder_name())
    }
}

/// Returns `tree` with the path of a link in the build folder `folder`. Relative to the folder in which the compiler
/// runs, the sources of all versions then have the same path, so that a compiler cache finds the objects of files that
/// did not change between versions.
fn linked(tree: &Tree, folder: &Path) -> Result<Tree> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let link = folder.join("llama.cpp");
    fs::switch_link(&link, &tree.path)?;
    Ok(Tree { path: link, ..tree.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linked_tree_has_the_path_of_its_build_folder() {
        let temp = tempfile::tempdir().unwrap();
        for version in ["one", "two"] {
            let (sources, folder) = (temp.path().join(version).join("llama.cpp"), temp.path().join("build"));
            std::fs::create_dir_all(&sources).unwrap();
            std::fs::write(sources.join("CMakeLists.txt"), version).unwrap();
            let digest = "0".repeat(64);
            let tree = serde_json::json!({
                "origin": "git", "version": "1", "digest": digest, "patched_digest": digest, "patches": [],
                "llama_version": "1", "ggml_version": "1", "build_commit": "c",
            });
            let tree = Tree { path: sources, ..serde_json::from_value(tree).unwrap() };
            let linked = linked(&tree, &folder).unwrap();
            assert_eq!(linked.path, folder.join("llama.cpp"));
            assert_eq!(fs::text(&linked.path.join("CMakeLists.txt")).unwrap(), version);
            // git looks for a repository above the real folder.
            assert_eq!(linked.cmake_environment().1, temp.path().join(version).canonicalize().unwrap());
        }
    }
}
