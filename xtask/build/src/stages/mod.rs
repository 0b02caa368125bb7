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
mod stored;
mod switches;
mod variants;
pub mod zig;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use build_info::Host;
use build_info::record::{BuildInfo, EffectiveFlags, StageTime};
use measure::CpuTime;
use plan::{Cross, Plan};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::pgo::profdata;
use crate::process::{self, Executable, Log, Run};
use crate::tools::Launcher;
use crate::ui::{Progress, Ui};
use crate::workspace::Workspace;
pub use engine::rust;
use folder::Folder;
pub use folder::{Builds, Found, Lock};
pub use named::{executable, named};
pub use stored::Origin;
pub use variants::file as kernels_file;

const CONFIGURE: &str = "configure";
const COMPILE: &str = "compile";
const INSTALL: &str = "install";
const ENGINE: &str = "engine";
const BOLT: &str = "bolt";
const SMOKE: &str = "smoke test";
const GATE: &str = "gate";
const AUDIT: &str = "audit";
const INSTRUMENT: &str = "instrument";
const TRAIN: &str = "train";
const MERGE: &str = "merge";
/// All stages, in order: each stands on those before it.
const STAGES: [&str; 11] =
    [CONFIGURE, COMPILE, INSTALL, ENGINE, BOLT, SMOKE, GATE, AUDIT, INSTRUMENT, TRAIN, MERGE];

/// What the stages of one build share.
pub struct Build<'a> {
    workspace: &'a Workspace,
    ui: &'a Ui,
    host: &'a Host,
    plan: &'a Plan,
    /// llama.cpp's sources; none where they need not be there, since nothing is compiled.
    tree: Option<&'a llama_source::Tree>,
    folder: Folder,
    log: Log,
    /// Digest of the Rust sources that the engine is made of.
    engine_source: String,
    /// Where the C++ part comes from when it is not compiled here.
    borrowed: Option<Borrowed>,
    /// A compiler cache that runs the compilers.
    launcher: Launcher,
    /// The same, once it was seen whether it may.
    chosen: OnceCell<Option<PathBuf>>,
}

/// The C++ part of a finished build.
struct Borrowed {
    prefix: PathBuf,
    flags: EffectiveFlags,
}

/// How a build ended.
pub struct Outcome {
    /// Its record.
    pub info: BuildInfo,
    /// Its folder.
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
        Some(Outcome { info, folder: self.folder.path().to_path_buf(), built: false })
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
        Ok(Outcome { info, folder: folder.path().to_path_buf(), built: false })
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
        Ok(Outcome { info, folder: self.folder.path().to_path_buf(), built: true })
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

    /// The newest engine, to be run.
    fn run_engine(&self) -> Result<Run<'_>> {
        let anneal = self.folder.newest_engine().context("the build folder holds no anneal")?;
        // One with counters would leave a profile wherever it is run.
        Ok(self.executable(&anneal).run(&self.log).env(profdata::VARIABLE, "/dev/null"))
    }

    /// How the program at `path`, which is for this build's target, is run here.
    fn executable(&self, path: &Path) -> Executable {
        Executable::new(path).after(self.plan.cross.iter().flat_map(Cross::command))
    }

    /// What the newest engine tells of itself.
    fn ask_engine<T: DeserializeOwned>(&self) -> Result<T> {
        let text = self.run_engine()?.args(["info", "--json"]).output()?;
        serde_json::from_str(&text).with_context(|| format!("cannot understand what anneal printed: {text}"))
    }

    /// The build folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// CMake's build tree.
    pub fn cmake(&self) -> PathBuf {
        self.folder.cmake()
    }

    /// All output of all commands.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Replaces the record of a complete build.
    pub fn amend(&self, info: &BuildInfo) -> Result<()> {
        self.folder.write_record(info)
    }

    /// What `work` gave when it was run on the same `input` before and `is_there` says that it still stands; else
    /// what it gives now.
    pub fn remember<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        input: &str,
        is_there: impl FnOnce(&T) -> bool,
        work: impl FnOnce(&Log) -> Result<T>,
    ) -> Result<T> {
        let earlier = self
            .folder
            .stamp(name)
            .filter(|stamp| stamp.input == input)
            .and_then(|_| self.folder.value(name));
        if let Some(value) = earlier.filter(is_there) {
            self.ui.done("kept", name);
            return Ok(value);
        }
        self.folder.forget(name);
        let (started, cpu) = (Instant::now(), CpuTime::now());
        let value = work(&self.log)?;
        let seconds = started.elapsed().as_secs_f64();
        self.folder.write_value(name, &value)?;
        let stamp = folder::Stamp { input: input.to_string(), seconds, cpu_seconds: cpu.seconds_since() };
        self.folder.write_stamp(name, &stamp)?;
        self.ui.done("finished", format_args!("{name} in {seconds:.1} s"));
        Ok(value)
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
        let stamp = self.timed(name, input, work)?;
        self.folder.write_stamp(name, &stamp)
    }

    /// Runs `work` as the stage `name`; what is to be remembered of it.
    fn timed(
        &self,
        name: &str,
        input: &str,
        work: impl FnOnce(&Self, &mut Progress) -> Result<()>,
    ) -> Result<folder::Stamp> {
        let (started, cpu) = (Instant::now(), CpuTime::now());
        let mut progress = self.ui.progress(name);
        let result = work(self, &mut progress);
        progress.finish();
        // Ctrl-C is no failure of the stage.
        process::check_interrupted()?;
        result.with_context(|| format!("stage `{name}` of the {} build failed", self.plan.profile))?;
        let seconds = started.elapsed().as_secs_f64();
        // A compiler cache's server is no child of ours, and what it had already costs nothing.
        let cached = [CONFIGURE, COMPILE].contains(&name) && self.cache().is_some();
        let cpu_seconds = cpu.seconds_since().filter(|_| !cached);
        self.ui.done("finished", format_args!("{name} in {seconds:.1} s"));
        Ok(folder::Stamp { input: input.to_string(), seconds, cpu_seconds })
    }

    /// How long each stage took when it was run.
    fn stage_times(&self) -> Vec<StageTime> {
        STAGES.into_iter().filter_map(|name| Some(self.folder.stamp(name)?.time(name))).collect()
    }

    /// llama.cpp's sources.
    fn tree(&self) -> Result<&'a llama_source::Tree> {
        self.tree.context("llama.cpp's sources were not fetched: `cargo xtask vendor` does it")
    }

    /// How many compilations run side by side.
    fn jobs(&self) -> usize {
        jobs(self.host)
    }
}

/// How many compilations run side by side on `host`: the CPUs this process may use.
pub fn jobs(host: &Host) -> usize {
    let cpus = host.limits.affinity.len().max(1);
    match host.limits.cpu_quota {
        Some(quota) => cpus.min(quota.ceil() as usize).max(1),
        None => cpus,
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
