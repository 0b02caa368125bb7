//! Profile-guided optimisation: instrument → train → merge → rebuild → compare.
//!
//! One engine with counters runs the workloads. The counts tell the C++ and Rust compilers which way branches go and
//! which code is hot. Each step is a method of [`Pipeline`]; [`job`] runs them in order.

pub mod compare;
pub mod coverage;
pub mod gcda;
pub mod job;
pub mod profdata;
pub mod train;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use build_info::optimized::{Coverage, Pgo, Training};
use build_info::record::{StageTime, Tool};
use build_info::{Host, Sha256};
use measure::CpuTime;
use plan::Plan;
use plan::variant::{Profdata, Subject};
use serde::{Deserialize, Serialize};
use toolchain::CompilerKind;

use crate::models::Maker;
use crate::process::Log;
use crate::stages::{Build, Outcome};
use crate::tools::Launcher;
use crate::ui::Ui;
use crate::workload;
use crate::workspace::Workspace;
use profdata::Raw;
use train::TrainingCourse;

/// Names of the steps.
pub mod step {
    /// Build that the result is compared with.
    pub const PLAIN: &str = "build without a profile";
    /// Creation of missing models.
    pub const MODELS: &str = "models";
    /// Build of the engine with counters.
    pub const INSTRUMENT: &str = "instrument";
    /// Training runs, merged into one profile.
    pub const TRAIN: &str = "train and merge";
    /// Copy of the user's profile, instead of the training.
    pub const TAKE: &str = "copy the profile";
    /// Build of the engine with the profile.
    pub const REBUILD: &str = "rebuild";
    /// Interleaved comparison of both builds.
    pub const COMPARE: &str = "compare";
    /// Rewriting of the engine by BOLT.
    pub const BOLT: &str = "bolt";
}

/// Run that measures the coverage of a profile. No training workload has the same lengths or texts.
#[derive(Clone, Copy)]
pub struct HeldOut<'a> {
    /// Path of the user's model if one is used for training; `None` for the workload's own model.
    pub model: Option<&'a Path>,
    /// Maker of the workload's own model.
    pub maker: Maker<'a>,
}

/// State that the steps share.
pub struct Pipeline<'a> {
    /// Checkout with the builds.
    pub workspace: &'a Workspace,
    /// Output for progress and messages.
    pub ui: &'a Ui,
    /// Description of this machine.
    pub host: &'a Host,
    /// llama.cpp sources.
    pub tree: &'a llama_source::Tree,
    /// `llvm-profdata` of the same version as the compilers.
    pub tool: Tool,
    /// Code that is instrumented and optimised.
    pub subject: Subject,
    /// True to store the machine's name in records.
    pub hostname: bool,
    launcher: Launcher,
    times: Vec<StageTime>,
}

/// Profile with its origin.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Merged profile file.
    pub profdata: Profdata,
    /// Training that produced the profile; `None` if the user supplied the profile.
    pub training: Option<Training>,
    /// Coverage of a run that is not part of the training.
    pub coverage: Coverage,
}

/// Stored result of a training.
#[derive(Serialize, Deserialize)]
struct Trained {
    profile: PathBuf,
    digest: build_info::Sha256,
    gcda: Option<PathBuf>,
    training: Training,
    coverage: Coverage,
}

impl<'a> Pipeline<'a> {
    /// Creates a pipeline that has run no step.
    pub fn new(
        workspace: &'a Workspace,
        ui: &'a Ui,
        host: &'a Host,
        tree: &'a llama_source::Tree,
        tool: Tool,
        subject: Subject,
        hostname: bool,
    ) -> Self {
        Self {
            workspace,
            ui,
            host,
            tree,
            tool,
            subject,
            hostname,
            launcher: Launcher::default(),
            times: Vec::new(),
        }
    }

    /// Returns this pipeline with `launcher`, a compiler cache, in front of the compilers.
    pub fn launched_by(self, launcher: Launcher) -> Self {
        Self { launcher, ..self }
    }

    /// Returns the duration of each step so far.
    pub fn times(&self) -> &[StageTime] {
        &self.times
    }

    /// Runs `work` as the step `name` of the final table.
    ///
    /// # Errors
    /// The errors of `work`.
    pub fn step<T>(&mut self, name: &str, work: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let (started, cpu) = (Instant::now(), CpuTime::now());
        let result = work(self)?;
        let (seconds, cpu_seconds) = (started.elapsed().as_secs_f64(), cpu.seconds_since());
        self.times.push(StageTime { name: name.to_string(), seconds, cpu_seconds });
        Ok(result)
    }

    /// Opens the build folder of `plan`.
    ///
    /// # Errors
    /// If the folder cannot be created or is in use.
    pub fn open<'b>(&'b self, plan: &'b Plan) -> Result<Build<'b>> {
        let folder = self.workspace.anneal().join(plan.folder_name());
        let build = Build::open(&folder, self.workspace, self.ui, self.host, plan, self.tree)?;
        Ok(build.launched_by(&self.launcher))
    }

    /// Makes the complete build without a profile.
    ///
    /// # Errors
    /// If a stage fails.
    pub fn plain(&self, plan: &Plan) -> Result<Outcome> {
        self.open(plan)?.complete(self.hostname)
    }

    /// Builds the engine with counters and returns its path.
    ///
    /// # Errors
    /// If a stage fails.
    pub fn instrument(&self, plan: &Plan) -> Result<PathBuf> {
        self.open(plan)?.engine()
    }

    /// Runs the instrumented `engine` on `course`, merges the counts, and measures their coverage of a run that is
    /// not part of `course`. Reuses the stored result if the engine and the course are unchanged.
    ///
    /// # Errors
    /// If a run fails or the profile is unusable.
    pub fn train(
        &self,
        plan: &Plan,
        engine: &Path,
        course: &TrainingCourse,
        held_out: HeldOut,
    ) -> Result<Profile> {
        let build = self.open(plan)?;
        let input = format!("{} {}", crate::fs::digest_file(engine)?, course.digest()?);
        let there = |trained: &Trained| {
            trained.profile.is_file() && trained.gcda.as_ref().is_none_or(|folder| folder.is_dir())
        };
        let trained = build.remember("train", &input, there, |log| {
            let raw = Raw::empty(build.path().join("profraw"))?;
            let gcc = plan.compiler.kind == CompilerKind::Gcc && self.subject.scope.cpp();
            if gcc {
                gcda::clear(&build.cmake())?;
            }
            let training = course.run(engine, &raw.environment(), log, self.ui)?;
            let mut profdata = raw.merge(&self.tool, self.workspace, log)?;
            if gcc {
                let counts = gcda::collect(&build.cmake(), &self.workspace.pgo_profiles())?;
                let both = format!("{} {}", profdata.digest, counts.digest);
                profdata.digest = Sha256::of(both);
                profdata.gcda = Some(counts.folder);
            }
            let coverage = self.hold_against_run(&profdata, engine, held_out, log)?;
            let Profdata { path: profile, digest, gcda } = profdata;
            Ok(Trained { profile, digest, gcda, training, coverage })
        })?;
        let profdata = Profdata { path: trained.profile, digest: trained.digest, gcda: trained.gcda };
        Ok(Profile { profdata, training: Some(trained.training), coverage: trained.coverage })
    }

    /// Copies a profile that the user supplied to the folder of profiles.
    ///
    /// # Errors
    /// If the profile cannot be read or belongs to another program.
    pub fn take(&self, plan: &Plan, engine: &Path, file: &Path, held_out: HeldOut) -> Result<Profile> {
        let build = self.open(plan)?;
        let digest = crate::fs::digest_file(file)?;
        let folder = self.workspace.pgo_profiles();
        let path = folder.join(format!("{}.profdata", digest.short()));
        let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        crate::fs::write_atomically(&path, &bytes)?;
        let profdata = Profdata { path, digest, gcda: None };
        let coverage = self.hold_against_run(&profdata, engine, held_out, build.log())?;
        Ok(Profile { profdata, training: None, coverage })
    }

    fn hold_against_run(
        &self,
        profdata: &Profdata,
        engine: &Path,
        HeldOut { model, maker }: HeldOut,
        log: &Log,
    ) -> Result<Coverage> {
        let workloads = workload::load(&self.workspace.workloads().join("held-out"), &[])?;
        // A profile for the user's model must cover the code that this model uses.
        let course = TrainingCourse::new(&workloads, model, maker)?;
        let raw = Raw::empty(profdata.path.with_extension("held-out"))?;
        course.run(engine, &raw.environment(), log, self.ui)?;
        let run = raw.merge(&self.tool, self.workspace, log)?;
        let trained = profdata::functions(&self.tool, &profdata.path, log)?;
        let seen = profdata::functions(&self.tool, &run.path, log)?;
        let _ = std::fs::remove_file(&run.path);
        let models = course.models().into_iter().map(|(name, _)| name).collect();
        Ok(Coverage { models, ..coverage::coverage(&trained, &seen)? })
    }

    /// Makes the complete build with the profile, without making it current.
    ///
    /// # Errors
    /// If a stage fails, or the compilers ignored so many counts that the profile cannot belong to these sources.
    pub fn rebuild(&self, plan: &Plan, profile: Profile) -> Result<Outcome> {
        let build = self.open(plan)?;
        // The log of a folder grows from run to run. Only new output shows whether this profile is stale.
        let before = std::fs::metadata(build.log().path()).map_or(0, |meta| meta.len());
        let outcome = build.complete(self.hostname)?;
        let log = std::fs::read(build.log().path()).unwrap_or_default();
        let new = log.get(usize::try_from(before).unwrap_or(usize::MAX)..).unwrap_or_default();
        let mismatched = match outcome.info.pgo.as_ref().filter(|_| !outcome.built) {
            Some(pgo) => pgo.coverage.mismatched.clone(),
            None => coverage::mismatched(&String::from_utf8_lossy(new)),
        };
        let coverage = Coverage { mismatched, ..profile.coverage };
        coverage::check_fresh(&coverage)?;
        let mut info = outcome.info;
        info.pgo = Some(Pgo {
            profile: profile.profdata.digest,
            scope: self.subject.scope.to_string(),
            kernels: self.subject.kernels,
            training: profile.training,
            coverage,
        });
        build.amend(&info)?;
        Ok(Outcome { info, ..outcome })
    }

    /// Points the link of the build profile at the build of `plan`.
    ///
    /// # Errors
    /// If the link cannot be changed.
    pub fn make_current(&self, plan: &Plan) -> Result<()> {
        self.open(plan)?.make_current()
    }

    /// Replaces the record of the build of `plan`.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn amend(&self, plan: &Plan, info: &build_info::BuildInfo) -> Result<()> {
        self.open(plan)?.amend(info)
    }
}
