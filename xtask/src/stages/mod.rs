//! Plan → artifacts. Each stage is a function; what is finished is remembered in the build folder, so that a
//! build that was stopped goes on where it was.

pub mod border;
mod compile;
mod configure;
mod engine;
pub mod flags;
mod folder;
pub mod gate;
mod install;
mod record;
mod smoke;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use build_info::Host;
use build_info::record::{BuildInfo, StageTime};

use crate::plan::Plan;
use crate::process::{self, Log};
use crate::ui::{Progress, Ui};
use crate::workspace::Workspace;
use folder::{Activation, Folder};
pub use folder::{Builds, Lock};

const CONFIGURE: &str = "configure";
const COMPILE: &str = "compile";
const INSTALL: &str = "install";
const ENGINE: &str = "engine";
const SMOKE: &str = "smoke test";
const GATE: &str = "gate";
/// All stages, in order: each stands on those before it.
const STAGES: [&str; 6] = [CONFIGURE, COMPILE, INSTALL, ENGINE, SMOKE, GATE];

/// What the stages of one build share.
pub struct Build<'a> {
    workspace: &'a Workspace,
    ui: &'a Ui,
    host: &'a Host,
    plan: &'a Plan,
    tree: &'a llama_source::Tree,
    folder: Folder,
    log: Log,
    /// Digest of the Rust sources that the engine is made of.
    engine_source: String,
}

/// How a build ended.
pub struct Outcome {
    /// Its record.
    pub info: BuildInfo,
    /// Its folder, by the link that names it.
    pub folder: PathBuf,
    /// Whether anything had to be done.
    pub built: bool,
}

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
        let folder = Folder::create(path)?;
        let log = Log::new(folder.log(), ui.verbose());
        let engine_source = engine::source_digest(workspace)?;
        Ok(Self { workspace, ui, host, plan, tree, folder, log, engine_source })
    }

    /// Runs all stages, or none when the build is finished already.
    pub fn run(&self, hostname: bool) -> Result<Outcome> {
        let link = self.workspace.current(&self.plan.profile);
        if let Some(mut info) = self.finished(&link) {
            if !hostname && (info.hostname.is_some() || info.host.hostname.is_some()) {
                (info.hostname, info.host.hostname) = (None, None);
                self.folder.write_record(&info)?;
            }
            return Ok(Outcome { info, folder: link, built: false });
        }
        self.folder.write_plan(self.plan)?;
        self.forget_what_is_lost();
        self.stage(CONFIGURE, &self.tree.path.to_string_lossy(), configure::configure)?;
        let flags = flags::check(self.plan, &self.folder.compile_database())?;
        self.stage(COMPILE, "", compile::compile)?;
        self.stage(INSTALL, &install::input(self)?, install::install)?;
        self.stage(ENGINE, &self.engine_source, engine::engine)?;
        border::check(self)?;
        self.stage(SMOKE, &self.engine_source, smoke::smoke)?;
        // The reference itself was compared with nothing when it was made.
        if self.plan.profile != gate::REFERENCE_PROFILE {
            self.stage(GATE, &gate::input(self), gate::gate)?;
        }
        let info = record::record(self, flags, hostname)?;
        self.folder.activate(&Activation { link: &link, info: &info })?;
        Ok(Outcome { info, folder: link, built: true })
    }

    /// Runs the C++ part and no more, for whoever times it.
    pub fn compile_only(&self) -> Result<()> {
        self.stage(CONFIGURE, "", configure::configure)?;
        self.stage(COMPILE, "", compile::compile)
    }

    /// The record, when every stage has passed on what there is now and the link points here.
    fn finished(&self, link: &Path) -> Option<BuildInfo> {
        let here = std::fs::canonicalize(link).ok()? == std::fs::canonicalize(self.folder.path()).ok()?;
        let passed = self.folder.stamp(SMOKE)?.input == self.engine_source
            && (self.plan.profile == gate::REFERENCE_PROFILE
                || self.folder.stamp(GATE)?.input == gate::input(self))
            && self.folder.stamp(INSTALL)?.input == install::input(self).ok()?
            && self.folder.link_json().is_file();
        if !here || !passed {
            return None;
        }
        let info = BuildInfo::read(&self.folder.build_info()).ok()?;
        // A kill between putting the engine into place and writing its record leaves an old record.
        let anneal = info.artifacts.first()?;
        (crate::fs::digest_file(&self.folder.anneal()).ok()? == anneal.sha256).then_some(info)
    }

    /// Makes those stages run again whose results are gone.
    fn forget_what_is_lost(&self) {
        let lost = [
            (CONFIGURE, !self.folder.compile_database().is_file()),
            (INSTALL, !self.folder.link_json().is_file()),
            (ENGINE, self.folder.newest_engine().is_none()),
        ];
        for (stage, _) in lost.into_iter().filter(|(_, gone)| *gone) {
            self.forget_from(stage);
        }
    }

    /// Forgets that `stage` has passed, and all that stood on it.
    fn forget_from(&self, stage: &str) {
        for name in STAGES.iter().skip_while(|name| **name != stage) {
            self.folder.forget(name);
        }
    }

    /// Runs `work` as the stage `name`, unless it has passed on the same input before.
    fn stage(
        &self,
        name: &str,
        input: &str,
        work: impl FnOnce(&Self, &mut Progress) -> Result<()>,
    ) -> Result<()> {
        process::check_interrupted()?;
        if self.folder.stamp(name).is_some_and(|stamp| stamp.input == input) {
            self.ui.done("kept", name);
            return Ok(());
        }
        self.forget_from(name);
        let started = Instant::now();
        let mut progress = self.ui.progress(name);
        let result = work(self, &mut progress);
        progress.finish();
        // Ctrl-C is no failure of the stage.
        process::check_interrupted()?;
        result.with_context(|| format!("stage `{name}` of the {} build failed", self.plan.profile))?;
        let seconds = started.elapsed().as_secs_f64();
        self.folder.write_stamp(name, &folder::Stamp { input: input.to_string(), seconds })?;
        self.ui.done("finished", format_args!("{name} in {seconds:.1} s"));
        Ok(())
    }

    /// How long each stage took when it was run.
    fn stage_times(&self) -> Vec<StageTime> {
        STAGES
            .into_iter()
            .filter_map(|name| {
                let seconds = self.folder.stamp(name)?.seconds;
                Some(StageTime { name: name.to_string(), seconds })
            })
            .collect()
    }

    /// How many compilations run side by side: the CPUs this process may use.
    fn jobs(&self) -> usize {
        let cpus = self.host.limits.affinity.len().max(1);
        match self.host.limits.cpu_quota {
            Some(quota) => cpus.min(quota.ceil() as usize).max(1),
            None => cpus,
        }
    }
}
