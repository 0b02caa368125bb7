//! State that the stages of one build share, and the execution and recording of a stage.

use std::cell::{OnceCell, RefCell};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use build_info::Host;
use build_info::record::{BuildInfo, EffectiveFlags, StageTime};
use measure::CpuTime;
use plan::Plan;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::folder::{self, Folder};
use super::other_cpu;
use crate::pgo::profdata;
use crate::process::{self, Executable, Log, Run};
use crate::tools::Launcher;
use crate::ui::{Progress, Ui};
use crate::workspace::Workspace;

pub(super) const CONFIGURE: &str = "configure";
pub(super) const COMPILE: &str = "compile";
pub(super) const INSTALL: &str = "install";
/// Name of the stage that builds the engine.
pub const ENGINE: &str = "engine";
pub(super) const BOLT: &str = "bolt";
pub(super) const SMOKE: &str = "smoke test";
pub(super) const GATE: &str = "gate";
pub(super) const AUDIT: &str = "audit";
pub(super) const INSTRUMENT: &str = "instrument";
pub(super) const TRAIN: &str = "train";
pub(super) const MERGE: &str = "merge";
/// Names of all stages in order. Each stage depends on the stages before it.
pub(super) const STAGES: [&str; 11] =
    [CONFIGURE, COMPILE, INSTALL, ENGINE, BOLT, SMOKE, GATE, AUDIT, INSTRUMENT, TRAIN, MERGE];

/// State that the stages of one build share.
pub struct Build<'a> {
    pub(super) workspace: &'a Workspace,
    pub(super) ui: &'a Ui,
    pub(super) host: &'a Host,
    pub(super) plan: &'a Plan,
    /// llama.cpp's sources; `None` if they are not needed because nothing is compiled.
    pub(super) tree: Option<&'a llama_source::Tree>,
    pub(super) folder: Folder,
    pub(super) log: Log,
    /// Digest of the engine's Rust sources.
    pub(super) engine_source: String,
    /// Build that provides the C++ part; `None` if this build compiles the C++ part itself.
    pub(super) borrowed: Option<Borrowed>,
    /// Requested compiler cache.
    pub(super) launcher: Launcher,
    /// Compiler cache in use; set once the request has been checked.
    pub(super) chosen: OnceCell<Option<PathBuf>>,
    /// Reason why this machine cannot run the program; set once the program was tried.
    pub(super) not_run: OnceCell<Option<String>>,
    /// Stages that this run executed, with their durations.
    pub(super) ran: RefCell<Vec<StageTime>>,
}

/// C++ part of a finished build.
pub(super) struct Borrowed {
    pub(super) prefix: PathBuf,
    pub(super) flags: EffectiveFlags,
}

/// Result of a build.
pub struct Outcome {
    /// Record of the build.
    pub info: BuildInfo,
    /// Path of the build folder.
    pub folder: PathBuf,
    /// True if this run executed a stage or took the build from a store.
    pub built: bool,
    /// Stages that this run executed, with their durations. Other stages in the record were executed by an earlier
    /// run.
    pub ran: Vec<StageTime>,
}

impl<'a> Build<'a> {
    /// Returns a run of the newest engine.
    pub(super) fn run_engine(&self) -> Result<Run<'_>> {
        let anneal = self.folder.engine()?;
        // An instrumented engine would otherwise write a profile to its working folder.
        Ok(self.executable(&anneal).run(&self.log).env(profdata::VARIABLE, "/dev/null"))
    }

    /// Returns the program at `path`, which was built for this build's target, and the emulator that it needs on this
    /// machine, if any.
    pub(super) fn executable(&self, path: &Path) -> Executable {
        Executable::new(path).after(self.plan.emulator_command())
    }

    /// Returns the reason why this machine cannot run the program, or `None` if it can. The smoke test and the gate are
    /// then skipped.
    ///
    /// # Errors
    /// If the program fails for a reason other than the CPU.
    pub(super) fn not_run(&self) -> Result<Option<String>> {
        if let Some(known) = self.not_run.get() {
            return Ok(known.clone());
        }
        let reason = other_cpu::not_run(self)?;
        Ok(self.not_run.get_or_init(|| reason).clone())
    }

    /// Returns the input of a stage that runs the program: `own`, and the emulator, if any.
    pub(super) fn input_of_run(&self, own: &str) -> String {
        match &self.plan.isa.other_cpu {
            Some(_) => format!("{own} {}", self.plan.emulator_command().join(" ")),
            None => own.to_string(),
        }
    }

    /// Returns the newest engine's description of itself.
    pub(super) fn ask_engine<T: DeserializeOwned>(&self) -> Result<T> {
        let text = self.run_engine()?.args(["info", "--json"]).output()?;
        serde_json::from_str(&text).with_context(|| format!("cannot parse the output of anneal: {text}"))
    }

    /// Returns the path of the build folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the path of CMake's build tree.
    pub fn cmake(&self) -> PathBuf {
        self.folder.cmake()
    }

    /// Returns the log with the output of all commands.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Replaces the record of a complete build.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn amend(&self, info: &BuildInfo) -> Result<()> {
        self.folder.write_record(info)
    }

    /// Returns the stored result of `work` if it ran with the same `input` before and `is_there` accepts the result;
    /// otherwise runs `work` and stores its result.
    ///
    /// # Errors
    /// The errors of `work`, and if the result cannot be stored.
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

    /// Invalidates `stage` and all later stages.
    pub(super) fn forget_from(&self, stage: &str) {
        for name in STAGES.iter().skip_while(|name| **name != stage) {
            self.folder.forget(name);
        }
    }

    /// Runs `work` as the stage `name`, unless the stage has passed with the same input.
    pub(super) fn stage(
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
        self.ran.borrow_mut().push(stamp.time(name));
        self.folder.write_stamp(name, &stamp)
    }

    /// Runs `work` as the stage `name` and returns its stamp.
    pub(super) fn timed(
        &self,
        name: &str,
        input: &str,
        work: impl FnOnce(&Self, &mut Progress) -> Result<()>,
    ) -> Result<folder::Stamp> {
        let (started, cpu) = (Instant::now(), CpuTime::now());
        let mut progress = self.ui.progress(name);
        let result = work(self, &mut progress);
        progress.finish();
        // An interruption must not be reported as a failure of the stage.
        process::check_interrupted()?;
        result.with_context(|| format!("stage `{name}` of the {} build failed", self.plan.profile))?;
        let seconds = started.elapsed().as_secs_f64();
        // A cache's server is not a child of this process, and cached objects take no CPU time, so the measured CPU
        // time would be misleading.
        let cached = [CONFIGURE, COMPILE].contains(&name) && self.cache().is_some();
        let cpu_seconds = cpu.seconds_since().filter(|_| !cached);
        self.ui.done("finished", format_args!("{name} in {seconds:.1} s"));
        Ok(folder::Stamp { input: input.to_string(), seconds, cpu_seconds })
    }

    /// Returns the duration of each stage that has passed.
    pub(super) fn stage_times(&self) -> Vec<StageTime> {
        STAGES.into_iter().filter_map(|name| Some(self.folder.stamp(name)?.time(name))).collect()
    }

    /// Returns llama.cpp's sources.
    pub(super) fn tree(&self) -> Result<&'a llama_source::Tree> {
        self.tree.context("llama.cpp's sources are missing\nhint: `cargo xtask vendor` downloads them")
    }

    /// Returns the number of parallel compilations.
    pub(super) fn jobs(&self) -> usize {
        jobs(self.host)
    }
}

/// Returns the number of parallel compilations on `host`: the number of CPUs that this process may use.
pub fn jobs(host: &Host) -> usize {
    let cpus = host.limits.affinity.len().max(1);
    match host.limits.cpu_quota {
        Some(quota) => cpus.min(quota.ceil() as usize).max(1),
        None => cpus,
    }
}
