//! Several builds against each other: in turn, on each model in each shape, round after round.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base::exit;
use build_info::Bytes;
use measure::{Call, Referee, Round, Rule, Stop, Watch, schedule};

use super::candidate::{CandidateBuild, MeasuredProgram};
use super::comparison::{self, Comparison, Contender, Dropped};
use super::ledger::{Ledger, ValueKey};
use super::once::{self, RunRequest};
use super::phase::Phase;
use super::provenance::Provenance;
use super::shape::RunShape;
use crate::process;
use crate::ui::Ui;

/// What is compared on what.
#[derive(Clone, Debug)]
pub struct Contest<'a> {
    /// The builds; the first is what the others are compared with.
    pub builds: &'a [CandidateBuild],
    /// Model files.
    pub models: &'a [PathBuf],
    /// Shapes of prefill and decode; whatever has no size is measured along with the first.
    pub shapes: &'a [RunShape],
    /// What is measured.
    pub phases: &'a [Phase],
    /// Threads of both phases.
    pub threads: u32,
    /// Most rounds, after one that is not counted.
    pub pairs: usize,
    /// Half the width of the interval of prefill and decode that is narrow enough to stop earlier; 0 for all pairs.
    pub precision: f64,
    /// What to tokenise instead of the engine's own text.
    pub text: Option<&'a Path>,
    /// Where to keep the result with all samples, from round to round.
    pub raw: Option<&'a Path>,
    /// What the result says of itself.
    pub provenance: Provenance,
    /// Something its reader should know.
    pub note: Option<String>,
}

/// What was measured until now.
struct ContestProgress {
    ledger: Ledger,
    rounds: Vec<Round>,
    dropped: Vec<Dropped>,
    stop: Option<Stop>,
}

/// One line of a round: a model in a shape, and what is measured there.
struct RoundLine<'a> {
    model: &'a Path,
    name: String,
    shape: RunShape,
    phases: Vec<Phase>,
}

impl Contest<'_> {
    /// Runs it. When a build fails, or the user stops it, what was measured until then is in the raw file.
    pub fn run(&self, ui: &Ui) -> Result<Comparison> {
        self.check_builds()?;
        self.check_inputs()?;
        if self.models.is_empty() && self.phases.iter().any(|phase| phase.is_of_engine()) {
            return Err(exit::usage("no model is named"));
        }
        let events = self.events();
        let mut done = ContestProgress {
            ledger: Ledger::new(self.builds.len()),
            rounds: Vec::new(),
            dropped: Vec::new(),
            stop: None,
        };
        self.sizes(&mut done.ledger)?;
        let mut referee = Referee::new(self.pairs.div_ceil(2));
        let mut warned = false;
        let mut progress = ui.progress("compare");
        // Round 0 warms the page cache and the clock up.
        for round in 0.. {
            let watch = Watch::start();
            let mut values = Ledger::new(self.builds.len());
            if let Err(error) = self.round(round, &events, &mut values) {
                progress.finish();
                return Err(self.keep_part(error, &done, ui));
            }
            if round > 0 {
                self.take(values, watch.stop(), &mut referee, &mut done);
                // No reason to lose what was measured: it is tried again after the next round.
                if let Err(error) = self.keep(&self.comparison(&done, self.stopped(&done)))
                    && !std::mem::replace(&mut warned, true)
                {
                    ui.warn(format_args!("the samples are not kept: {error:#}"));
                }
            }
            progress.step(done.rounds.len() as u64 + 1, self.pairs as u64 + 1, "rounds");
            if done.stop.is_some() {
                break;
            }
        }
        progress.finish();
        Ok(self.comparison(&done, None))
    }

    /// Adds a round, unless its anchor says that the machine was disturbed: then it will be measured again.
    fn take(&self, values: Ledger, machine: Round, referee: &mut Referee, done: &mut ContestProgress) {
        // The first build is the anchor: all its speeds of the round together.
        let speed = comparison::speeds(&values, 0).first().copied();
        if let Some(anchor) = speed
            && referee.judge(speed) == Call::Again
        {
            done.dropped.push(Dropped { after: done.rounds.len(), anchor, machine });
            return;
        }
        done.ledger.append(values);
        done.rounds.push(machine);
        let rule = Rule { pairs: self.pairs, precision: self.precision };
        let ratios = |number| comparison::ratios(&done.ledger, number);
        done.stop = match done.rounds.len() >= self.pairs {
            true => Some(Stop::Pairs),
            // A precision asks for an early end; without one all pairs are wanted.
            false if self.precision > 0.0 => rule.over_for_all((1..self.builds.len()).map(ratios)),
            false => None,
        };
    }

    /// Says before the long part what cannot work with these builds.
    pub fn check_builds(&self) -> Result<()> {
        let usage = |why: String| Err(exit::usage(why));
        if self.builds.len() < 2 {
            return usage("a comparison needs two builds or more".to_string());
        }
        for (number, build) in self.builds.iter().enumerate() {
            if self.builds[..number].iter().any(|other| other.name == build.name) {
                return usage(format!("{} is named twice: give one of them a label, LABEL=PATH", build.name));
            }
        }
        let foreign = |phase: &&Phase| !Phase::OF_LLAMA_BENCH.contains(phase);
        let bench = self.builds.iter().find(|build| build.program == MeasuredProgram::LlamaBench);
        if let (Some(bench), Some(phase)) = (bench, self.phases.iter().find(foreign)) {
            return usage(format!(
                "{} is llama-bench, which cannot be asked for {phase}: leave it out of --phases",
                bench.name
            ));
        }
        Ok(())
    }

    /// Says what cannot work with any build: also before there is one.
    pub fn check_inputs(&self) -> Result<()> {
        let usage = |why: String| Err(exit::usage(why));
        if self.pairs == 0 || self.threads == 0 || self.phases.is_empty() || self.shapes.is_empty() {
            return usage("a comparison needs a pair, a thread, a phase and a shape at least".to_string());
        }
        let empty = |shape: &&RunShape| {
            (self.phases.contains(&Phase::Prefill) && shape.prompt == 0)
                || (self.phases.contains(&Phase::Decode) && shape.generate == 0)
        };
        if let Some(shape) = self.shapes.iter().find(empty) {
            return usage(format!(
                "{} prompt tokens and {} generated ones: prefill and decode need one each, or leave the phase out",
                shape.prompt, shape.generate
            ));
        }
        // Twice the same would count each round twice, and make of chance an interval.
        if self.phases.iter().enumerate().any(|(number, phase)| self.phases[..number].contains(phase)) {
            return usage("the same phase is named twice".to_string());
        }
        if self.shapes.iter().enumerate().any(|(number, shape)| self.shapes[..number].contains(shape)) {
            return usage("the same numbers of tokens are named twice".to_string());
        }
        for (number, model) in self.models.iter().enumerate() {
            let found = std::fs::metadata(model).with_context(|| format!("no model {}", model.display()))?;
            if !found.is_file() {
                anyhow::bail!("the model {} is no file", model.display());
            }
            if found.len() == 0 {
                anyhow::bail!("the model {} is empty", model.display());
            }
            if self.models[..number].iter().any(|other| name_of(other) == name_of(model)) {
                return usage(format!("two models are called {}: rename one", name_of(model)));
            }
        }
        if let Some(text) = self.text {
            crate::fs::text(text).with_context(|| format!("cannot read the text {}", text.display()))?;
        }
        self.raw.map_or(Ok(()), crate::overwrite_guard::check_record)
    }

    fn events(&self) -> Vec<RoundLine<'_>> {
        let mut events = Vec::new();
        for model in self.models {
            for (number, &shape) in self.shapes.iter().enumerate() {
                let wanted = |phase: &Phase| phase.has_shape() || (number == 0 && phase.is_of_model());
                let phases: Vec<Phase> = self.phases.iter().copied().filter(wanted).collect();
                if !phases.is_empty() {
                    events.push(RoundLine { model, name: name_of(model), shape, phases });
                }
            }
        }
        events
    }

    /// Every build on every event, in this round's order.
    fn round(&self, round: usize, events: &[RoundLine<'_>], ledger: &mut Ledger) -> Result<()> {
        let builds = self.builds.len();
        for event in events {
            schedule::turns(round, builds, |number| {
                let request = RunRequest {
                    model: event.model,
                    shape: event.shape,
                    phases: &event.phases,
                    threads: self.threads,
                    text: self.text,
                };
                for (phase, value) in once::measure(&self.builds[number], &request)? {
                    let shape = phase.has_shape().then_some(event.shape);
                    ledger.add(ValueKey { phase, model: Some(event.name.clone()), shape }, number, value);
                }
                Ok::<_, anyhow::Error>(())
            })?;
        }
        for (phase, arguments) in [(Phase::StartVersion, ["--version"]), (Phase::StartInfo, ["info"])] {
            if self.phases.contains(&phase) {
                let values =
                    schedule::turns(round, builds, |number| once::start(&self.builds[number], &arguments))?;
                for (number, value) in values.into_iter().enumerate() {
                    ledger.add(ValueKey { phase, model: None, shape: None }, number, value);
                }
            }
        }
        Ok(())
    }

    /// Sizes of files do not vary: once is enough.
    fn sizes(&self, ledger: &mut Ledger) -> Result<()> {
        if !self.phases.contains(&Phase::BinarySize) {
            return Ok(());
        }
        for (number, build) in self.builds.iter().enumerate() {
            let size = std::fs::metadata(&build.path)
                .with_context(|| format!("{}: cannot look at {}", build.name, build.path.display()))?
                .len();
            let key = ValueKey { phase: Phase::BinarySize, model: None, shape: None };
            ledger.add(key, number, comparison::as_value(Bytes(size)));
        }
        Ok(())
    }

    fn comparison(&self, done: &ContestProgress, stopped: Option<String>) -> Comparison {
        let builds: Vec<Contender> =
            self.builds.iter().map(|build| Contender::new(&build.name, build.record.as_ref())).collect();
        let overall = comparison::overall(&done.ledger, &builds);
        Comparison {
            provenance: self.provenance.clone(),
            note: self.note.clone(),
            stopped,
            threads: self.threads,
            pairs: self.pairs,
            warm_up_rounds: 1,
            figures: comparison::figures(&done.ledger, &builds),
            stop: done.stop,
            floor: comparison::floor(&comparison::speeds(&done.ledger, 0), &overall),
            overall,
            builds,
            rounds: done.rounds.clone(),
            dropped: done.dropped.clone(),
        }
    }

    /// What a raw file says that is not the last of its run.
    fn stopped(&self, done: &ContestProgress) -> Option<String> {
        let (rounds, all) = (done.rounds.len(), self.pairs);
        done.stop.is_none().then(|| format!("{rounds} of {all} rounds were complete when this was written"))
    }

    /// Writes `comparison` to the raw file, where there is to be one.
    pub fn keep(&self, comparison: &Comparison) -> Result<()> {
        match self.raw {
            Some(path) => crate::fs::write_atomically(path, &serde_json::to_vec_pretty(comparison)?),
            None => Ok(()),
        }
    }

    /// `error` with the place of what was measured before it; where there is none, it is shown.
    fn keep_part(&self, error: anyhow::Error, done: &ContestProgress, ui: &Ui) -> anyhow::Error {
        let why =
            if process::interrupted() { "stopped by the user".to_string() } else { format!("{error:#}") };
        let first = why.lines().next().unwrap_or_default();
        let stopped = format!("in round {} of {}: {first}", done.rounds.len() + 1, self.pairs);
        if done.rounds.is_empty() {
            return error;
        }
        let part = self.comparison(done, Some(stopped));
        let Some(path) = self.raw else {
            ui.say(part.table());
            return error;
        };
        match self.keep(&part) {
            Ok(()) => error.context(format!("not finished; what was measured is in {}", path.display())),
            Err(second) => error.context(format!("not finished, and not kept: {second:#}")),
        }
    }
}

/// A model, as figures name it.
fn name_of(model: &Path) -> String {
    model.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
