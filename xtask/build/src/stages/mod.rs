//! Plan → artifacts. Each stage is a function; what is finished is remembered in the build folder, so that a
//! build that was stopped goes on where it was.

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
use state::{AUDIT, Borrowed, COMPILE, CONFIGURE, ENGINE, GATE, INSTALL, SMOKE};
pub use state::{Build, Outcome, jobs};
pub use stored::BuildOrigin;

impl<'a> Build<'a> {
    /// Opens the build folder `path`.
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

    /// The same where the sources need not be there: it can be looked at, and taken from elsewhere.
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
            ran: RefCell::default(),
        })
    }

    /// This build with compilers that are run by `launcher`, a compiler cache: it changes no object, so it is no part of
    /// the plan. A tree that is configured already stays as it is.
    pub fn launched_by(self, launcher: &Launcher) -> Self {
        Self { launcher: launcher.clone(), chosen: OnceCell::new(), ..self }
    }

    /// The build, when every stage has passed on what there is now. Nothing is run.
    pub fn there(&self) -> Option<Outcome> {
        let info = self.finished()?;
        Some(Outcome { info, folder: self.folder.path().to_path_buf(), built: false, ran: Vec::new() })
    }

    /// A build of `plan`, which compiles C++ as this one does and links it otherwise: the C++ part is that of this
    /// build, whose record is `info`.
    pub fn linked_anew(&'a self, plan: &'a Plan, info: &BuildInfo) -> Result<Self> {
        let folder = self.workspace.anneal().join(plan.folder_name());
        let borrowed = Borrowed { prefix: self.folder.prefix(), flags: info.effective_flags.clone() };
        let build = Self::unfetched(&folder, self.workspace, self.ui, self.host, plan)?;
        Ok(Self { borrowed: Some(borrowed), tree: self.tree, ..build })
    }

    /// Runs all stages, or none when the build is finished already, and makes it the profile's current one.
    pub fn run(&self, hostname: bool) -> Result<Outcome> {
        let outcome = self.complete(hostname)?;
        self.make_current()?;
        Ok(Outcome { folder: self.workspace.current(&self.plan.profile), ..outcome })
    }

    /// The current build, when it was made from this very one with a profile or by BOLT, and of today's sources.
    ///
    /// # Errors
    /// When its record has to be written anew and cannot.
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

    /// The finished build in `folder`, with the name of the machine and the defaults in its record `info` that are wanted now.
    fn renewed(&self, folder: &Folder, mut info: BuildInfo, hostname: bool) -> Result<Outcome> {
        if !hostname {
            without_hostname(folder, &mut info)?;
        }
        record::renew_defaults(folder, &mut info, self.plan)?;
        Ok(Outcome { info, folder: folder.path().to_path_buf(), built: false, ran: Vec::new() })
    }

    /// The build as [`Build::complete`] gives it, when it is finished already. Nothing is run.
    ///
    /// # Errors
    /// When its record has to be written anew and cannot.
    pub fn finished_before(&self, hostname: bool) -> Result<Option<Outcome>> {
        self.finished().map(|info| self.renewed(&self.folder, info, hostname)).transpose()
    }

    /// Runs all stages, or none when the build is finished already. What is current stays so.
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

    /// Runs the stages up to a program that has generated text.
    fn up_to_smoke_test(&self) -> Result<EffectiveFlags> {
        self.folder.write_plan(self.plan)?;
        self.forget_what_is_lost();
        let counted = self.counts();
        let flags = self.cpp()?;
        self.stage(ENGINE, &self.engine_source, engine::engine)?;
        self.tell_cache(counted);
        border::check(self)?;
        switches::check_engine(self)?;
        self.stage(SMOKE, &self.engine_source, smoke::smoke)?;
        Ok(flags)
    }

    /// Whether the correctness gate is among the stages. The build that the gate's reference is made of cannot be held
    /// against it.
    fn is_gated(&self) -> bool {
        self.plan.profile != gate::REFERENCE_PROFILE
    }

    /// Holds a program that has generated text against the reference, and looks at what is inside.
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

    /// Lets the profile's link point here. The build must be complete.
    pub fn make_current(&self) -> Result<()> {
        self.folder.make_current(&self.workspace.current(&self.plan.profile))
    }

    /// Runs the stages up to a program that has generated text, and names it.
    pub fn engine(&self) -> Result<PathBuf> {
        self.up_to_smoke_test()?;
        self.folder.newest_engine().context("the build folder holds no anneal")
    }

    /// Puts the engine into `out`, linked with what lies in `prefix`. Nothing of this build changes.
    pub fn link_with(&self, prefix: &Path, out: &Path) -> Result<()> {
        let mut progress = self.ui.progress(ENGINE);
        let program = engine::compile(self, prefix, &mut progress);
        progress.finish();
        let program = program?;
        std::fs::copy(&program, out)
            .with_context(|| format!("cannot copy {} to {}", program.display(), out.display()))?;
        Ok(())
    }

    /// Builds only the C++ part, and returns the prefix with the libraries that programs link.
    pub fn link_prefix(&self) -> Result<PathBuf> {
        self.folder.write_plan(self.plan)?;
        self.forget_what_is_lost();
        self.cpp()?;
        Ok(self.folder.prefix())
    }

    /// Runs the C++ part and no more, for whoever times it.
    pub fn compile_only(&self) -> Result<()> {
        self.stage(CONFIGURE, "", configure::configure)?;
        self.stage(COMPILE, "", compile::compile)
    }

    /// The record, when every stage has passed on what there is now.
    fn finished(&self) -> Option<BuildInfo> {
        let installed = self.folder.stamp(INSTALL)?.input == install::input(self).ok()?;
        if !installed || !self.folder.link_json().is_file() {
            return None;
        }
        let info = BuildInfo::read(&self.folder.build_info()).ok()?;
        self.is_finished(&self.folder, &info).then_some(info)
    }

    /// Whether `folder` holds the program of `info`, made of today's sources and seen to work.
    fn is_finished(&self, folder: &Folder, info: &BuildInfo) -> bool {
        folder.stamp(SMOKE).is_some_and(|stamp| stamp.input == self.engine_source)
            && (!self.is_gated()
                || folder.stamp(GATE).is_some_and(|stamp| stamp.input == gate::input(self)))
            && folder.stamp(AUDIT).is_some_and(|stamp| audit::input(self).is_ok_and(|input| stamp.input == input))
            // A kill between putting the engine into place and writing its record leaves an old record.
            && info.artifacts.first().is_some_and(|anneal| {
                crate::fs::digest_file(&folder.anneal()).is_ok_and(|digest| digest == anneal.sha256)
            })
    }

    /// Makes those stages run again whose results are gone.
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

/// Takes this machine's name out of the record of the build in `folder`.
fn without_hostname(folder: &Folder, info: &mut BuildInfo) -> Result<()> {
    if info.hostname.is_none() && info.host.hostname.is_none() {
        return Ok(());
    }
    (info.hostname, info.host.hostname) = (None, None);
    folder.write_record(info)
}
