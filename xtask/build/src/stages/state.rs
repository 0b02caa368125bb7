//! What the stages of one build share, and how one of them is run and remembered.

use std::cell::{OnceCell, RefCell};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use build_info::Host;
use build_info::record::{BuildInfo, EffectiveFlags, StageTime};
use measure::CpuTime;
use plan::{Cross, Plan};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::folder::{self, Folder};
use crate::pgo::profdata;
use crate::process::{self, Executable, Log, Run};
use crate::tools::Launcher;
use crate::ui::{Progress, Ui};
use crate::workspace::Workspace;

pub(super) const CONFIGURE: &str = "configure";
pub(super) const COMPILE: &str = "compile";
pub(super) const INSTALL: &str = "install";
pub(super) const ENGINE: &str = "engine";
pub(super) const BOLT: &str = "bolt";
pub(super) const SMOKE: &str = "smoke test";
pub(super) const GATE: &str = "gate";
pub(super) const AUDIT: &str = "audit";
pub(super) const INSTRUMENT: &str = "instrument";
pub(super) const TRAIN: &str = "train";
pub(super) const MERGE: &str = "merge";
/// All stages, in order: each stands on those before it.
pub(super) const STAGES: [&str; 11] =
    [CONFIGURE, COMPILE, INSTALL, ENGINE, BOLT, SMOKE, GATE, AUDIT, INSTRUMENT, TRAIN, MERGE];

/// What the stages of one build share.
pub struct Build<'a> {
    pub(super) workspace: &'a Workspace,
    pub(super) ui: &'a Ui,
    pub(super) host: &'a Host,
    pub(super) plan: &'a Plan,
    /// llama.cpp's sources; none where they need not be there, since nothing is compiled.
    pub(super) tree: Option<&'a llama_source::Tree>,
    pub(super) folder: Folder,
    pub(super) log: Log,
    /// Digest of the Rust sources that the engine is made of.
    pub(super) engine_source: String,
    /// Where the C++ part comes from when it is not compiled here.
    pub(super) borrowed: Option<Borrowed>,
    /// A compiler cache that runs the compilers.
    pub(super) launcher: Launcher,
    /// The same, once it was seen whether it may.
    pub(super) chosen: OnceCell<Option<PathBuf>>,
    /// Stages that this run did, and what they took.
    pub(super) ran: RefCell<Vec<StageTime>>,
}

/// The C++ part of a finished build.
pub(super) struct Borrowed {
    pub(super) prefix: PathBuf,
    pub(super) flags: EffectiveFlags,
}

/// How a build ended.
pub struct Outcome {
    /// Its record.
    pub info: BuildInfo,
    /// Its folder.
    pub folder: PathBuf,
    /// Whether anything had to be done.
    pub built: bool,
    /// Stages that this run did, and what they took. The others in the record were done by an earlier run.
    pub ran: Vec<StageTime>,
}

impl<'a> Build<'a> {
    /// The newest engine, to be run.
    pub(super) fn run_engine(&self) -> Result<Run<'_>> {
        let anneal = self.folder.newest_engine().context("the build folder holds no anneal")?;
        // One with counters would leave a profile wherever it is run.
        Ok(self.executable(&anneal).run(&self.log).env(profdata::VARIABLE, "/dev/null"))
    }

    /// How the program at `path`, which is for this build's target, is run here.
    pub(super) fn executable(&self, path: &Path) -> Executable {
        Executable::new(path).after(self.plan.cross.iter().flat_map(Cross::command))
    }

    /// What the newest engine tells of itself.
    pub(super) fn ask_engine<T: DeserializeOwned>(&self) -> Result<T> {
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

    /// Forgets that `stage` has passed, and all that stood on it.
    pub(super) fn forget_from(&self, stage: &str) {
        for name in STAGES.iter().skip_while(|name| **name != stage) {
            self.folder.forget(name);
        }
    }

    /// Runs `work` as the stage `name`, unless it has passed on the same input before.
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

    /// Runs `work` as the stage `name`; what is to be remembered of it.
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
    pub(super) fn stage_times(&self) -> Vec<StageTime> {
        STAGES.into_iter().filter_map(|name| Some(self.folder.stamp(name)?.time(name))).collect()
    }

    /// llama.cpp's sources.
    pub(super) fn tree(&self) -> Result<&'a llama_source::Tree> {
        self.tree.context("llama.cpp's sources were not fetched: `cargo xtask vendor` does it")
    }

    /// How many compilations run side by side.
    pub(super) fn jobs(&self) -> usize {
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
