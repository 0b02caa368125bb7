//! Task of a tuning run, its progress, and the runner that measures candidates.

use std::time::Duration;

use build_info::Bytes;
use build_info::tuning::{Chosen, CpuKey, Sample, TuningKey};
use serde::{Deserialize, Serialize};

use super::check::OutputComparison;
use super::objective::Objective;
use super::space::TuningStage;

/// Maximum number of tokens before the measured tokens. Restoring the state of these tokens before each run takes
/// time.
pub(crate) const DEEPEST: u32 = 4096;

/// Token counts of a run: the measured tokens, and the tokens before them. Each earlier token makes attention slower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Work {
    /// Number of prompt tokens; 0 skips the phase.
    pub prompt: u32,
    /// Number of tokens before the prompt.
    pub prompt_after: u32,
    /// Number of generated tokens; 0 skips the phase.
    pub generate: u32,
    /// Number of tokens before the generated tokens; with 0, the generated tokens follow the prompt.
    pub generate_after: u32,
}

impl Work {
    /// Returns the work for `prompt` and `generate` tokens in the middle of `objective`'s prompt and answer, where a
    /// token has average cost.
    pub(crate) fn amid(prompt: u32, generate: u32, objective: &Objective) -> Self {
        let (whole, answer) = (objective.usual_prompt(), objective.usual_answer());
        let prompt_after = whole.saturating_sub(prompt) / 2;
        let generate_after = whole.saturating_add(answer.saturating_sub(generate) / 2);
        Work {
            prompt,
            prompt_after: if prompt > 0 { prompt_after.min(DEEPEST) } else { 0 },
            generate,
            generate_after: if generate > 0 { generate_after.min(DEEPEST) } else { 0 },
        }
    }

    /// Returns the same work, but in an empty context.
    pub(crate) fn at_the_start(self) -> Self {
        Work { prompt_after: 0, generate_after: 0, ..self }
    }

    /// Returns the maximum number of tokens before a phase.
    pub fn depth(&self) -> u32 {
        self.prompt_after.max(self.generate_after)
    }

    /// Returns the context size, in tokens, that the work needs.
    pub fn n_ctx(&self) -> u32 {
        self.depth().saturating_add(self.prompt).saturating_add(self.generate)
    }
}

/// Measurements of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunFigures {
    /// Times of the run.
    pub sample: Sample,
    /// Peak memory of the process during the run; `None` if the system does not report peak memory.
    pub peak: Option<Bytes>,
}

/// Reason why a run has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The user interrupted the run.
    Interrupted,
    /// Description of any other failure: the candidate was refused, crashed, was killed or hung.
    Failed(String),
}

/// Reason why a tuning run stops early. Finished stages are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The user interrupted the tuning run.
    Interrupted,
    /// The machine changed.
    Changed(String),
    /// The baseline cannot be run.
    Failed(String),
    /// The progress cannot be saved.
    Unwritable(String),
}

/// Event for the display of a tuning run.
#[derive(Clone, Debug)]
pub enum TuningEvent<'a> {
    /// A stage begins.
    Stage {
        /// Name of the stage.
        name: &'a str,
        /// Number of candidates, including the baseline.
        candidates: usize,
        /// Seconds left of the budget.
        left: f64,
    },
    /// A rung is over.
    Rung {
        /// Number of rounds so far.
        round: usize,
        /// Number of candidates left, excluding the baseline.
        left: usize,
        /// Name of the best candidate, and its speed-up.
        best: Option<(String, f64)>,
    },
    /// A candidate was dropped.
    Dropped {
        /// Name of the candidate.
        name: &'a str,
        /// Reason why the candidate was dropped.
        why: &'a str,
    },
    /// A stage is over.
    Decided(&'a build_info::tuning::Stage),
    /// Warning for the user.
    Warning(&'a str),
}

/// Runner of candidates. The real runner starts processes; the tests' runner has preset speeds and its own clock.
pub trait Runner {
    /// Runs `work` under `settings`.
    ///
    /// # Errors
    /// If the run has no result: see [`Failure`].
    fn measure(&mut self, settings: &Chosen, work: Work) -> Result<RunFigures, Failure>;
    /// Compares the output under `settings` with the untuned output.
    ///
    /// # Errors
    /// If the run has no result: see [`Failure`].
    fn check(&mut self, settings: &Chosen) -> Result<OutputComparison, Failure>;
    /// Returns the time since the start, on a monotonic clock.
    fn elapsed(&self) -> Duration;
    /// True if the user has interrupted the tuning run.
    fn is_interrupted(&self) -> bool;
    /// Returns the number of cores that other processes have kept busy since the last call; `None` if the system does
    /// not report this number.
    fn cores_busy_elsewhere(&mut self) -> Option<f64>;
    /// Returns the CPUs that this process may use now.
    fn given(&mut self) -> Option<CpuKey>;
    /// Announces that only `settings` and the untuned settings will be run from now on.
    fn keep_only(&mut self, settings: &Chosen);
    /// Reports an event.
    fn tell(&mut self, event: TuningEvent<'_>);
}

/// Task of a tuning run.
#[derive(Clone, Debug)]
pub struct Task {
    /// Model, machine and build to which the result applies.
    pub key: TuningKey,
    /// Objective that weighs the phases.
    pub objective: Objective,
    /// Time budget of the tuning run.
    pub budget: Duration,
    /// Maximum memory of a candidate; `None` without a limit.
    pub ceiling: Option<Bytes>,
    /// True if settings that lose accuracy may be tried.
    pub lossy: bool,
    /// Stages to run.
    pub stages: Vec<TuningStage>,
    /// Number of cores of the machine.
    pub cores: u32,
}

/// Progress of a tuning run, stored in a file so that an interrupted tuning run can resume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuningProgress {
    /// Model, machine and build to which the result applies.
    pub key: TuningKey,
    /// True if settings that lose accuracy may be tried.
    pub lossy: bool,
    /// Maximum memory of a candidate; `None` without a limit.
    pub ceiling: Option<Bytes>,
    /// Best settings so far.
    pub chosen: Chosen,
    /// Finished stages.
    pub done: Vec<build_info::tuning::Stage>,
    /// Seconds that the finished stages took.
    pub seconds: f64,
}

impl TuningProgress {
    /// Returns progress with no finished stage.
    pub fn new(task: &Task) -> Self {
        Self {
            key: task.key.clone(),
            lossy: task.lossy,
            ceiling: task.ceiling,
            chosen: Chosen::default(),
            done: Vec::new(),
            seconds: 0.0,
        }
    }

    /// Returns the index of the result of `stage`; `None` if the stage has not run.
    pub fn position(&self, stage: &TuningStage) -> Option<usize> {
        self.done.iter().position(|done| done.name == stage.name)
    }

    /// True if the values are valid. A user may have edited the file.
    pub fn is_sound(&self) -> bool {
        self.done.iter().all(|stage| (stage.winner as usize) < stage.candidates.len())
            && self.seconds.is_finite()
            && engine_core::tuning::requested(&self.chosen).is_ok()
    }

    /// Removes stages that were not tried, or that were cut short without a result, so that they run again.
    pub fn forget_the_undecided(&mut self) {
        self.done.retain(build_info::tuning::Stage::is_decided);
    }

    /// True if the progress belongs to `task`.
    pub fn is_of(&self, task: &Task) -> bool {
        self.key == task.key && self.lossy == task.lossy && self.ceiling == task.ceiling
    }
}
