//! What is to be tuned, and what carries it out.

use std::time::Duration;

use build_info::Bytes;
use build_info::tuning::{Chosen, CpuKey, Sample, TuningKey};
use serde::{Deserialize, Serialize};

use super::check::OutputComparison;
use super::objective::Objective;
use super::space::TuningStage;

/// The most tokens before what is run: their state is put back before each run, which takes time too.
pub(crate) const DEEPEST: u32 = 4096;

/// How much is run at once, and behind what: attention costs more with each token before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Work {
    /// Prompt tokens; 0 leaves the phase out.
    pub prompt: u32,
    /// Tokens before them.
    pub prompt_after: u32,
    /// Tokens generated; 0 leaves the phase out.
    pub generate: u32,
    /// Tokens before them; 0 is no place of its own: then they follow the prompt.
    pub generate_after: u32,
}

impl Work {
    /// `prompt` and `generate` tokens in the middle of the prompt and of the answer of `objective`, which cost what the
    /// others cost on average.
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

    /// The same in an empty context.
    pub(crate) fn at_the_start(self) -> Self {
        Work { prompt_after: 0, generate_after: 0, ..self }
    }

    /// The most tokens before a phase.
    pub fn depth(&self) -> u32 {
        self.prompt_after.max(self.generate_after)
    }

    /// Tokens that a context must hold for it.
    pub fn n_ctx(&self) -> u32 {
        self.depth().saturating_add(self.prompt).saturating_add(self.generate)
    }
}

/// What one run showed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunFigures {
    /// Its times.
    pub sample: Sample,
    /// The most memory that the process had meanwhile, where the system tells.
    pub peak: Option<Bytes>,
}

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Ctrl-C.
    Interrupted,
    /// Anything else, in words: refused, crashed, killed, hung.
    Failed(String),
}

/// Why a tuning ends before its end. What was decided until then is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Ctrl-C.
    Interrupted,
    /// The machine is not what it was.
    Changed(String),
    /// Not even the settings to beat can be run.
    Failed(String),
    /// The state cannot be kept.
    Unwritable(String),
}

/// What happens, for whoever watches.
#[derive(Clone, Debug)]
pub enum TuningEvent<'a> {
    /// A stage begins.
    Stage {
        /// Its name.
        name: &'a str,
        /// Candidates, the one to beat among them.
        candidates: usize,
        /// Seconds left of the budget.
        left: f64,
    },
    /// Some rounds are over.
    Rung {
        /// Rounds so far.
        round: usize,
        /// Candidates that are left, without the one to beat.
        left: usize,
        /// The best of them, and how many times as fast it is.
        best: Option<(String, f64)>,
    },
    /// A candidate is out.
    Dropped {
        /// Its name.
        name: &'a str,
        /// Why.
        why: &'a str,
    },
    /// A stage is over.
    Decided(&'a build_info::tuning::Stage),
    /// Something that the user should know.
    Warning(&'a str),
}

/// Runs candidates. The real one starts processes; the tests' has planted speeds and a clock of its own.
pub trait Runner {
    /// Runs `work` under `settings`.
    fn measure(&mut self, settings: &Chosen, work: Work) -> Result<RunFigures, Failure>;
    /// Compares the output under `settings` with that without tuning.
    fn check(&mut self, settings: &Chosen) -> Result<OutputComparison, Failure>;
    /// Time since the start, on a clock that nobody sets.
    fn elapsed(&self) -> Duration;
    /// Whether the user wants it to end.
    fn is_interrupted(&self) -> bool;
    /// Cores that others kept busy since the last call, where the system tells.
    fn cores_busy_elsewhere(&mut self) -> Option<f64>;
    /// What this process is given of the machine now.
    fn given(&mut self) -> Option<CpuKey>;
    /// Nothing but `settings`, and no settings at all, will be run from now on.
    fn keep_only(&mut self, settings: &Chosen);
    /// Passes on what happens.
    fn tell(&mut self, event: TuningEvent<'_>);
}

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Task {
    /// What the result is good for.
    pub key: TuningKey,
    /// What is weighed.
    pub objective: Objective,
    /// Time for all of it.
    pub budget: Duration,
    /// Memory that a candidate may take.
    pub ceiling: Option<Bytes>,
    /// Whether what loses accuracy may be tried.
    pub lossy: bool,
    /// What is tried.
    pub stages: Vec<TuningStage>,
    /// Cores of the machine.
    pub cores: u32,
}

/// How far a tuning has come: kept in a file, so that one that was stopped goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuningProgress {
    /// What it is good for.
    pub key: TuningKey,
    /// Whether what loses accuracy may be tried.
    pub lossy: bool,
    /// The ceiling.
    pub ceiling: Option<Bytes>,
    /// The best so far.
    pub chosen: Chosen,
    /// The stages that are over.
    pub done: Vec<build_info::tuning::Stage>,
    /// Seconds that they took.
    pub seconds: f64,
}

impl TuningProgress {
    /// Nothing done yet.
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

    /// Whether its numbers mean something: somebody may have changed the file.
    pub fn is_sound(&self) -> bool {
        self.done.iter().all(|stage| (stage.winner as usize) < stage.candidates.len())
            && self.seconds.is_finite()
            && engine_core::tuning::requested(&self.chosen).is_ok()
    }

    /// Takes stages that were not tried, or cut short before they said anything, for what they are: to be done.
    pub fn forget_the_undecided(&mut self) {
        self.done.retain(build_info::tuning::Stage::is_decided);
    }

    /// Whether it is a part of `task`.
    pub fn is_of(&self, task: &Task) -> bool {
        self.key == task.key && self.lossy == task.lossy && self.ceiling == task.ceiling
    }
}
