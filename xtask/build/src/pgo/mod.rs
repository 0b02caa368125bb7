//! Profile-guided optimisation: instrument → train → merge → rebuild → compare.
//!
//! One engine with counters is run on workloads; the counts tell the compilers of both languages which way branches
//! go and what is hot. Each step is a method of [`Pipeline`]; [`job`] tells the story.

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
    /// What the result is compared with.
    pub const PLAIN: &str = "build without a profile";
    /// Made where they are missing.
    pub const MODELS: &str = "models";
    /// The engine with counters.
    pub const INSTRUMENT: &str = "instrument";
    /// One profile of many runs.
    pub const TRAIN: &str = "train and merge";
    /// In place of the training, where a profile was given.
    pub const TAKE: &str = "take the profile";
    /// The engine with the profile.
    pub const REBUILD: &str = "rebuild";
    /// Both in turn.
    pub const COMPARE: &str = "compare";
    /// The engine laid out anew.
    pub const BOLT: &str = "bolt";
}

/// The run that a profile is held against: lengths and texts that no workload trains on.
#[derive(Clone, Copy)]
pub struct HeldOut<'a> {
    /// The user's model, where one trains; else the workload's own.
    pub model: Option<&'a Path>,
    /// Makes the workload's own.
    pub maker: Maker<'a>,
}

/// What the steps share.
pub struct Pipeline<'a> {
    /// The checkout.
    pub workspace: &'a Workspace,
    /// Who is told.
    pub ui: &'a Ui,
    /// This machine.
    pub host: &'a Host,
    /// The llama.cpp sources.
    pub tree: &'a llama_source::Tree,
    /// `llvm-profdata` of the compilers' version.
    pub tool: Tool,
    /// Which code counts, and is optimised.
    pub subject: Subject,
    /// Whether this machine's name goes into records.
    pub hostname: bool,
    launcher: Launcher,
    times: Vec<StageTime>,
}

/// A profile, and how it came about.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The file.
    pub profdata: Profdata,
    /// The training, unless the profile was given.
    pub training: Option<Training>,
    /// What it says of a run that was not trained on.
    pub coverage: Coverage,
}

/// What is remembered of a training.
#[derive(Serialize, Deserialize)]
struct Trained {
    profile: PathBuf,
    digest: build_info::Sha256,
    gcda: Option<PathBuf>,
    training: Training,
    coverage: Coverage,
}

impl<'a> Pipeline<'a> {
    /// A pipeline that has not begun.
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

    /// This pipeline with compilers that are run by `launcher`, a compiler cache.
    pub fn launched_by(self, launcher: Launcher) -> Self {
        Self { launcher, ..self }
    }

    /// How long each step took.
    pub fn times(&self) -> &[StageTime] {
        &self.times
    }

    /// Runs `work` as the step `name` of the closing table.
    pub fn step<T>(&mut self, name: &str, work: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let (started, cpu) = (Instant::now(), CpuTime::now());
        let result = work(self)?;
        let (seconds, cpu_seconds) = (started.elapsed().as_secs_f64(), cpu.seconds_since());
        self.times.push(StageTime { name: name.to_string(), seconds, cpu_seconds });
        Ok(result)
    }

    /// The build folder of `plan`, opened.
    pub fn open<'b>(&'b self, plan: &'b Plan) -> Result<Build<'b>> {
        let folder = self.workspace.anneal().join(plan.folder_name());
        let build = Build::open(&folder, self.workspace, self.ui, self.host, plan, self.tree)?;
        Ok(build.launched_by(&self.launcher))
    }

    /// The build without a profile, complete.
    pub fn plain(&self, plan: &Plan) -> Result<Outcome> {
        self.open(plan)?.complete(self.hostname)
    }

    /// The engine with counters.
    pub fn instrument(&self, plan: &Plan) -> Result<PathBuf> {
        self.open(plan)?.engine()
    }

    /// Runs the instrumented `engine` on `course`, merges what it counted, and holds that against a run that is
    /// not in the course. Nothing is run when this engine was trained so before.
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

    /// A profile from elsewhere, copied to where profiles are kept.
    pub fn take(&self, plan: &Plan, engine: &Path, file: &Path, held_out: HeldOut) -> Result<Profile> {
        let build = self.open(plan)?;
        let digest = crate::fs::digest_file(file)?;
        let folder = self.workspace.pgo_profiles();
        let path = folder.join(format!("{}.profdata", digest.short()));
        let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
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
        // A profile of the user's model has to speak of that model's code.
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

    /// The build with the profile, complete but not current.
    ///
    /// # Errors
    /// When the compilers left out more of the profile than a profile of these sources explains.
    pub fn rebuild(&self, plan: &Plan, profile: Profile) -> Result<Outcome> {
        let build = self.open(plan)?;
        // The log of a folder goes on from run to run: what was compiled before says nothing of this profile's age.
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

    /// Lets the profile's link name the build of `plan`.
    pub fn make_current(&self, plan: &Plan) -> Result<()> {
        self.open(plan)?.make_current()
    }

    /// Replaces the record of the build of `plan`.
    pub fn amend(&self, plan: &Plan, info: &build_info::BuildInfo) -> Result<()> {
        self.open(plan)?.amend(info)
    }
}
