//! Stages from a plan to artifacts. Each stage is a function. The build folder records the stages that have passed,
//! so that a stopped build resumes.

mod audit;
mod auditable;
mod blas;
pub mod bolt;
pub mod border;
mod cache;
mod compile;
mod configure;
mod cuda;
mod engine;
mod environment;
pub mod flags;
mod folder;
pub mod gate;
mod install;
mod named;
mod openmp;
mod other_cpu;
mod places;
pub mod planned;
mod record;
mod smoke;
mod state;
mod stored;
mod switches;
pub(crate) mod variants;
pub mod zig;

use std::cell::{OnceCell, RefCell};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use build_info::Host;
use build_info::record::{BuildInfo, EffectiveFlags};
use plan::Plan;

use crate::process::Log;
use crate::tools::Launcher;
use crate::ui::Ui;
use crate::workspace::Workspace;
pub use engine::rust;
use folder::Folder;
pub use folder::{BuildFolder, Builds, CheckoutLock};
pub use named::{executable, named};
use state::{AUDIT, Borrowed, COMPILE, CONFIGURE, GATE, INSTALL, SMOKE};
pub use state::{Build, ENGINE, Outcome, jobs};
pub use stored::BuildOrigin;

impl<'a> Build<'a> {
    /// Opens the build folder `path`.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn open(
        path: &Path,
        workspace: &'a Workspace,
        ui: &'a Ui,
        host: &'a Host,
        plan: &'a Plan,
        tree: &'a llama_source::Tree,
    ) -> Result<Self> {
        Ok(Self { tree: Some(tree), ..Self::unfetched(path, workspace, ui, host, plan)? })
    }

    /// Opens the build folder `path` without the sources. The build can be examined and taken from a store, but not
    /// compiled.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn unfetched(
        path: &Path,
        workspace: &'a Workspace,
        ui: &'a Ui,
        host: &'a Host,
        plan: &'a Plan,
    ) -> Result<Self> {
        let folder = Folder::create(path)?;
        let log = Log::new(folder.log(), ui.verbose());
        let engine_source = engine::source_digest(workspace)?;
        Ok(Self {
            workspace,
            ui,
            host,
            plan,
            tree: None,
            folder,
            log,
            engine_source,
            borrowed: None,
            launcher: Launcher::default(),
            chosen: OnceCell::new(),
            not_run: OnceCell::new(),
            ran: RefCell::default(),
        })
    }

    /// Returns this build with `launcher`, a compiler cache, in front of the compilers. A cache does not change the
    /// objects, so the cache is not part of the plan. A tree that is already configured keeps its cache.
    pub fn launched_by(self, launcher: &Launcher) -> Self {
        Self { launcher: launcher.clone(), chosen: OnceCell::new(), ..self }
    }

    /// Returns the build if every stage has passed with the current inputs. Runs nothing.
    pub fn there(&self) -> Option<Outcome> {
        let info = self.finished()?;
        Some(Outcome { info, folder: self.folder.path().to_path_buf(), built: false, ran: Vec::new() })
    }

    /// Returns a build of `plan` that links the C++ part of this build in a different way. `info` is the record of this
    /// build.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn linked_anew(&'a self, plan: &'a Plan, info: &BuildInfo) -> Result<Self> {
        let folder = self.workspace.anneal().join(plan.folder_name());
        let borrowed = Borrowed { prefix: self.folder.prefix(), flags: info.effective_flags.clone() };
        let build = Self::unfetched(&folder, self.workspace, self.ui, self.host, plan)?;
        Ok(Self { borrowed: Some(borrowed), tree: self.tree, ..build })
    }

    /// Runs all stages that have not passed and makes the build the current build of its profile.
    ///
    /// # Errors
    /// If a stage fails or the user stops the build.
    pub fn run(&self, hostname: bool) -> Result<Outcome> {
        let outcome = self.complete(hostname)?;
        self.make_current()?;
        Ok(Outcome { folder: self.workspace.current(&self.plan.profile), ..outcome })
    }

    /// Returns the current build if it was made from this build by PGO or BOLT and from the current sources.
    ///
    /// # Errors
    /// If the build's record is outdated and cannot be written.
    pub fn improved(&self, hostname: bool) -> Result<Option<Outcome>> {
        let folder = self.workspace.current(&self.plan.profile);
        let Ok(info) = BuildInfo::read(&folder.join("build_info.json")) else { return Ok(None) };
        if info.base_plan.as_ref() != Some(&self.plan.hash()) {
            return Ok(None);
        }
        let improved = Folder::create(&folder)?;
        if !self.is_finished(&improved, &info) {
            return Ok(None);
        }
        self.renewed(&improved, info, hostname).map(Some)
    }

    /// Updates the machine name and the run-time defaults in the record `info` of the finished build in `folder`.
    fn renewed(&self, folder: &Folder, mut info: BuildInfo, hostname: bool) -> Result<Outcome> {
        if !hostname {
            without_hostname(folder, &mut info)?;
        }
        record::renew_defaults(folder, &mut info, self.plan)?;
        Ok(Outcome { info, folder: folder.path().to_path_buf(), built: false, ran: Vec::new() })
    }

    /// Returns what [`Build::complete`] would return if the build is already finished, else `None`. Runs nothing.
    ///
    /// # Errors
    /// If the build's record is outdated and cannot be written.
    pub fn finished_before(&self, hostname: bool) -> Result<Option<Outcome>> {
        self.finished().map(|info| self.renewed(&self.folder, info, hostname)).transpose()
    }

    /// Runs all stages that have not passed. Does not change which build is current.
    ///
    /// # Errors
    /// If a stage fails or the user stops the build.
    pub fn complete(&self, hostname: bool) -> Result<Outcome> {
        if let Some(outcome) = self.finished_before(hostname)? {
            return Ok(outcome);
        }
        let flags = self.up_to_smoke_test()?;
        self.prove()?;
        let info = record::record(self, flags, hostname)?;
        self.folder.finish(&info)?;
        Ok(Outcome { info, folder: self.folder.path().to_path_buf(), built: true, ran: self.ran.take() })
    }

    /// Runs the stages up to and including the smoke test.
    fn up_to_smoke_test(&self) -> Result<EffectiveFlags> {
        self.folder.write_plan(self.plan)?;
        self.forget_what_is_lost();
        let counted = self.counts();
        let flags = self.cpp()?;
        self.stage(ENGINE, &self.engine_source, engine::engine)?;
        self.tell_cache(counted);
        border::check(self)?;
        switches::check_engine(self)?;
        self.stage(SMOKE, &smoke::input(self), smoke::smoke)?;
        Ok(flags)
    }

    /// True if the build goes through the correctness gate. The reference build does not.
    fn is_gated(&self) -> bool {
        self.plan.profile != gate::REFERENCE_PROFILE
    }

    /// Runs the correctness gate and the audit.
    fn prove(&self) -> Result<()> {
        if self.is_gated() {
            self.stage(GATE, &gate::input(self), gate::gate)?;
        }
        self.stage(AUDIT, &audit::input(self)?, audit::audit)
    }

    /// Runs the stages of the C++ part.
    fn cpp(&self) -> Result<EffectiveFlags> {
        if let Some(Borrowed { prefix, flags }) = &self.borrowed {
            self.stage(INSTALL, &install::input(self)?, |build, _| install::borrow(build, prefix))?;
            return Ok(flags.clone());
        }
        let compiles = self.folder.stamp(COMPILE).is_none();
        if compiles && self.is_configured_for_others() {
            self.forget_from(CONFIGURE);
        }
        self.stage(CONFIGURE, &configure::input(self)?, configure::configure)?;
        let flags = flags::check(self.plan, &self.folder.compile_database())?;
        switches::check_definitions(self.plan, &flags)?;
        if compiles {
            self.tell_kept_cache();
        }
        self.stage(COMPILE, "", compile::compile)?;
        self.stage(INSTALL, &install::input(self)?, install::install)?;
        Ok(flags)
    }

    /// Points the link of the profile at this build, which must be complete.
    ///
    /// # Errors
    /// If the link cannot be changed.
    pub fn make_current(&self) -> Result<()> {
        self.folder.make_current(&self.workspace.current(&self.plan.profile))
    }

    /// Runs the stages up to and including the smoke test, and returns the path of the engine.
    ///
    /// # Errors
    /// If a stage fails or the user stops the build.
    pub fn engine(&self) -> Result<PathBuf> {
        self.up_to_smoke_test()?;
        self.folder.engine()
    }

    /// Links the engine with the libraries in `prefix` and writes it to `out`. This build does not change.
    ///
    /// # Errors
    /// If cargo fails or the file cannot be written.
    pub fn link_with(&self, prefix: &Path, out: &Path) -> Result<()> {
        let mut progress = self.ui.progress(ENGINE);
        let program = engine::compile(self, prefix, &mut progress);
        progress.finish();
        let program = program?;
        std::fs::copy(&program, out)
            .with_context(|| format!("cannot copy {} to {}", program.display(), out.display()))?;
        Ok(())
    }

    /// Builds only the C++ part and returns the prefix with the libraries that programs link against.
    ///
    /// # Errors
    /// If a stage fails or the user stops the build.
    pub fn link_prefix(&self) -> Result<PathBuf> {
        self.folder.write_plan(self.plan)?;
        self.forget_what_is_lost();
        self.cpp()?;
        Ok(self.folder.prefix())
    }

    /// Builds only the C++ part, to measure how long it takes.
    ///
    /// # Errors
    /// If a stage fails or the user stops the build.
    pub fn compile_only(&self) -> Result<()> {
        self.stage(CONFIGURE, "", configure::configure)?;
        self.stage(COMPILE, "", compile::compile)
    }

    /// Returns the record if every stage has passed with the current inputs.
    fn finished(&self) -> Option<BuildInfo> {
        let installed = self.folder.stamp(INSTALL)?.input == install::input(self).ok()?;
        if !installed || !self.folder.link_json().is_file() {
            return None;
        }
        let info = BuildInfo::read(&self.folder.build_info()).ok()?;
        self.is_finished(&self.folder, &info).then_some(info)
    }

    /// True if `folder` contains the program of `info`, and the program was made from the current sources and passed
    /// its tests.
    fn is_finished(&self, folder: &Folder, info: &BuildInfo) -> bool {
        folder.stamp(SMOKE).is_some_and(|stamp| stamp.input == smoke::input(self))
            && (!self.is_gated()
                || folder.stamp(GATE).is_some_and(|stamp| stamp.input == gate::input(self)))
            && folder.stamp(AUDIT).is_some_and(|stamp| audit::input(self).is_ok_and(|input| stamp.input == input))
            // A process that is killed between moving the engine and writing its record leaves the old record behind.
            && info.artifacts.first().is_some_and(|anneal| {
                crate::fs::digest_file(&folder.anneal()).is_ok_and(|digest| digest == anneal.sha256)
            })
    }

    /// Invalidates the stages whose results no longer exist.
    fn forget_what_is_lost(&self) {
        let lost = [
            (CONFIGURE, self.borrowed.is_none() && !self.folder.compile_database().is_file()),
            (INSTALL, !self.folder.link_json().is_file()),
            (ENGINE, self.folder.newest_engine().is_none()),
        ];
        for (stage, _) in lost.into_iter().filter(|(_, gone)| *gone) {
            self.forget_from(stage);
        }
    }
}

/// Removes the machine's name from the record of the build in `folder`.
fn without_hostname(folder: &Folder, info: &mut BuildInfo) -> Result<()> {
    if info.hostname.is_none() && info.host.hostname.is_none() {
        return Ok(());
    }
    (info.hostname, info.host.hostname) = (None, None);
    folder.write_record(info)
}
