//! Interleaved comparison of several builds on each model in each shape, round after round.

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
use crate::fs;
use crate::process;
use crate::ui::Ui;

/// Settings of a comparison.
#[derive(Clone, Debug)]
pub struct Contest<'a> {
    /// Builds to compare; the first is the baseline.
    pub builds: &'a [CandidateBuild],
    /// Paths of the model files.
    pub models: &'a [PathBuf],
    /// Shapes of prefill and decode. Phases without a shape are measured with the first shape.
    pub shapes: &'a [RunShape],
    /// Phases to measure.
    pub phases: &'a [Phase],
    /// Number of threads in prefill and decode.
    pub threads: u32,
    /// Maximum number of rounds, after one warm-up round that is not counted.
    pub pairs: usize,
    /// Half-width of the interval of prefill and decode at which the comparison stops early; 0 to run all rounds.
    pub precision: f64,
    /// Text to tokenise; `None` for the engine's own text.
    pub text: Option<&'a Path>,
    /// Path of the raw file, which is written with all samples after each round; `None` for no file.
    pub raw: Option<&'a Path>,
    /// Date, command and machine for the result.
    pub provenance: Provenance,
    /// Additional remark for the reader of the result.
    pub note: Option<String>,
}

/// Measurements of a comparison that is still running.
struct ContestProgress {
    ledger: Ledger,
    rounds: Vec<Round>,
    dropped: Vec<Dropped>,
    stop: Option<Stop>,
}

/// Part of a round: one model in one shape, and the phases to measure on it.
struct RoundLine<'a> {
    model: &'a Path,
    name: String,
    shape: RunShape,
    phases: Vec<Phase>,
}

impl Contest<'_> {
    /// Runs the comparison. If a build fails or the user stops the comparison, the raw file keeps the rounds measured
    /// so far.
    ///
    /// # Errors
    /// If an input is invalid, a build fails, or the user stops the comparison.
    pub fn run(&self, ui: &Ui) -> Result<Comparison> {
        self.check_builds()?;
        self.check_inputs()?;
        if self.models.is_empty() && self.phases.iter().any(|phase| phase.is_of_engine()) {
            return Err(exit::usage("no model was given"));
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
        // Round 0 is the warm-up: it fills the page cache and lets the CPU reach its clock rate.
        for round in 0.. {
            let watch = Watch::start();
            let mut values = Ledger::new(self.builds.len());
            if let Err(error) = self.round(round, &events, &mut values) {
                progress.finish();
                return Err(self.keep_part(error, &done, ui));
            }
            if round > 0 {
                self.take(values, watch.stop(), &mut referee, &mut done);
                // A failed write must not discard the measurements; the next round tries again.
                if let Err(error) = self.keep(&self.comparison(&done, self.stopped(&done)))
                    && !std::mem::replace(&mut warned, true)
                {
                    ui.warn(format_args!("cannot save the samples: {error:#}"));
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

    /// Adds a round. If the round's anchor shows that the machine was disturbed, the round is repeated instead.
    fn take(&self, values: Ledger, machine: Round, referee: &mut Referee, done: &mut ContestProgress) {
        // The anchor is the geometric mean of the first build's speeds in this round.
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
            // Only a requested precision allows an early end; otherwise all pairs are measured.
            false if self.precision > 0.0 => rule.over_for_all((1..self.builds.len()).map(ratios)),
            false => None,
        };
    }

    /// Checks the builds before the long measurement begins.
    ///
    /// # Errors
    /// A usage error if there are fewer than two builds, two builds have the same name, or llama-bench does not
    /// support a phase.
    pub fn check_builds(&self) -> Result<()> {
        let usage = |why: String| Err(exit::usage(why));
        if self.builds.len() < 2 {
            return usage(
                "a comparison needs at least two builds\nhint: list them with --builds A,B".to_string(),
            );
        }
        for (number, build) in self.builds.iter().enumerate() {
            if self.builds[..number].iter().any(|other| other.name == build.name) {
                return usage(format!(
                    "{} is listed twice\nhint: choose a different build, or label a program with LABEL=PATH",
                    build.name
                ));
            }
        }
        let foreign = |phase: &&Phase| !Phase::OF_LLAMA_BENCH.contains(phase);
        let bench = self.builds.iter().find(|build| build.program == MeasuredProgram::LlamaBench);
        if let (Some(bench), Some(phase)) = (bench, self.phases.iter().find(foreign)) {
            return usage(format!(
                "{} is llama-bench, which does not support {phase}\nhint: remove it from --phases",
                bench.name
            ));
        }
        Ok(())
    }

    /// Checks the inputs that do not depend on the builds. Callers can run this check before the builds exist.
    ///
    /// # Errors
    /// If a number, shape or phase is invalid, a model or the text cannot be read, or the raw file cannot be written.
    pub fn check_inputs(&self) -> Result<()> {
        let usage = |why: String| Err(exit::usage(why));
        if self.pairs == 0 || self.threads == 0 || self.phases.is_empty() || self.shapes.is_empty() {
            return usage(
                "a comparison needs at least one pair, one thread, one phase and one shape".to_string(),
            );
        }
        let empty = |shape: &&RunShape| {
            (self.phases.contains(&Phase::Prefill) && shape.prompt == 0)
                || (self.phases.contains(&Phase::Decode) && shape.generate == 0)
        };
        if let Some(shape) = self.shapes.iter().find(empty) {
            return usage(format!(
                "cannot measure {} prompt tokens and {} generated tokens: prefill and decode need at least \
                 one token each\nhint: change the numbers, or remove the phase from --phases",
                shape.prompt, shape.generate
            ));
        }
        // A duplicate would count each round twice and make the interval too narrow.
        if self.phases.iter().enumerate().any(|(number, phase)| self.phases[..number].contains(phase)) {
            return usage("a phase is listed twice".to_string());
        }
        if self.shapes.iter().enumerate().any(|(number, shape)| self.shapes[..number].contains(shape)) {
            return usage(
                "the same combination of prompt tokens, generated tokens and depth is listed twice"
                    .to_string(),
            );
        }
        for (number, model) in self.models.iter().enumerate() {
            fs::check_model(model)?;
            if self.models[..number].iter().any(|other| name_of(other) == name_of(model)) {
                return usage(format!("two models are called {}\nhint: rename one of them", name_of(model)));
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

    /// Runs every build on each of `events`, in the order of this round.
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

    /// Records the size of each program once, because sizes do not vary.
    fn sizes(&self, ledger: &mut Ledger) -> Result<()> {
        if !self.phases.contains(&Phase::BinarySize) {
            return Ok(());
        }
        for (number, build) in self.builds.iter().enumerate() {
            let size = std::fs::metadata(&build.path)
                .with_context(|| format!("{}: cannot examine {}", build.name, build.path.display()))?
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

    /// Returns the reason why an intermediate raw file is incomplete.
    fn stopped(&self, done: &ContestProgress) -> Option<String> {
        let (rounds, all) = (done.rounds.len(), self.pairs);
        done.stop
            .is_none()
            .then(|| format!("{rounds} of {all} rounds were complete when this file was written"))
    }

    /// Writes `comparison` to the raw file, if the comparison has one.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn keep(&self, comparison: &Comparison) -> Result<()> {
        match self.raw {
            Some(path) => crate::fs::write_atomically(path, &serde_json::to_vec_pretty(comparison)?),
            None => Ok(()),
        }
    }

    /// Saves the measurements so far and returns `error` with the path of the raw file. Without a raw file, prints
    /// the measurements.
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
            Ok(()) => error.context(format!(
                "the comparison is incomplete; the results so far are in {}",
                path.display()
            )),
            Err(second) => error.context(format!(
                "the comparison is incomplete, and its results cannot be saved: {second:#}"
            )),
        }
    }
}

/// Returns the name of a model in figures: its file name without the extension.
fn name_of(model: &Path) -> String {
    model.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
