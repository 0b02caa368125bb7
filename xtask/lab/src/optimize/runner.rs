//! Runs the heats: each build runs in its own process, builds are interleaved, and every run is recorded.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Error, Result, bail};
use build::compare::{CandidateBuild, Phase, RunRequest, RunShape, measure_once};
use build::process;
use build::ui::Ui;
use measure::halving::{Course, Heat, Out, Ran, Standing};
use measure::{FEWEST_PAIRS, Objective, Race, Rule, median};

use super::record::{BuildKey, Lap, Laps, Store};

/// Maximum number of rounds that are repeated because the baseline was disturbed.
const REPEATS: usize = 4;

/// Prefix of the reason why a build was dropped, if it did not run to the end.
pub const FAILED: &str = "failed";

/// Build that takes part.
pub struct Runner {
    /// Program of the build.
    pub engine: CandidateBuild,
    /// Identity of the program.
    pub key: BuildKey,
}

/// Builds, model and record of the heats.
pub struct Track<'a> {
    /// User interface for progress messages.
    pub ui: &'a Ui,
    /// Path of the model to measure with.
    pub model: &'a Path,
    /// Objective that determines the score of a run.
    pub objective: &'a Objective,
    /// Builds that take part.
    pub runners: Vec<&'a Runner>,
    /// Store of earlier and new runs.
    pub store: &'a mut Store,
    /// Time at which measuring ends.
    pub until: Instant,
    /// Dropped builds with the reasons.
    pub outs: BTreeMap<usize, String>,
    /// Standings of the dropped builds, at the time they were dropped.
    pub stood: Vec<Standing>,
    /// Median prefill and decode speeds in each build's last heat, in tokens per second.
    pub speeds: BTreeMap<usize, (Option<f64>, Option<f64>)>,
}

/// Error that ended a heat early.
struct Failed {
    /// Index of the failed build in the field; `None` if the record could not be written.
    place: Option<usize>,
    error: Error,
}

impl<'a> Track<'a> {
    /// Creates a track without runs.
    pub fn new(
        ui: &'a Ui,
        model: &'a Path,
        objective: &'a Objective,
        runners: Vec<&'a Runner>,
        store: &'a mut Store,
        until: Instant,
    ) -> Self {
        let (outs, stood, speeds) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        Self { ui, model, objective, runners, store, until, outs, stood, speeds }
    }

    /// Runs `who` once, to check that the build works. Returns the time of the run, which is not recorded.
    pub fn lap(&mut self, who: usize, heat: &Heat) -> Result<Duration> {
        let started = Instant::now();
        self.measure(who, heat)?;
        Ok(started.elapsed())
    }

    fn measure(&self, who: usize, heat: &Heat) -> Result<(Option<f64>, Option<f64>)> {
        let wanted = [(Phase::Prefill, heat.prompt), (Phase::Decode, heat.generate)];
        let phases: Vec<Phase> =
            wanted.into_iter().filter(|(_, tokens)| *tokens > 0).map(|(phase, _)| phase).collect();
        let request = RunRequest {
            model: self.model,
            shape: RunShape { prompt: heat.prompt, generate: heat.generate, depth: 0 },
            phases: &phases,
            threads: self.store.record.threads,
            text: None,
        };
        let values = measure_once(&self.runners[who].engine, &request)?;
        let of = |wanted| values.iter().find(|(phase, _)| *phase == wanted).map(|(_, value)| *value);
        Ok((of(Phase::Prefill), of(Phase::Decode)))
    }

    /// Runs one heat of `field`. Runs that are in the record are not repeated.
    fn heat(&mut self, heat: &Heat, field: &[usize], time: Duration) -> Result<Ran, Failed> {
        let record = &self.store.record;
        let keys = field.iter().map(|&who| self.runners[who].key.clone()).collect();
        let new = Laps::new(&record.model, record.threads, heat, keys);
        let mut laps = self.store.resume(new);
        let (known, mut next) = (laps.laps.len(), 0);
        let race = Race {
            contestants: field.len(),
            rule: Rule { pairs: heat.pairs, precision: heat.precision },
            warm_up: 1,
            repeats: REPEATS,
            time: Some(time),
        };
        let mut progress = self.ui.progress("measure");
        let total = ((heat.pairs + 1) * field.len()) as u64;
        let result = race.run(|place| {
            if laps.laps.get(next).is_none_or(|lap| lap.build != place) {
                // From this run on, the order of runs differs from the recorded order, so the remaining record does
                // not apply.
                laps.laps.truncate(next);
                let started = Instant::now();
                let (prefill, decode) =
                    self.measure(field[place], heat).map_err(|error| Failed { place: Some(place), error })?;
                let seconds = started.elapsed().as_secs_f64();
                laps.laps.push(Lap { build: place, prefill, decode, seconds });
                if laps.laps.len().is_multiple_of(field.len()) {
                    self.store.keep(laps.clone());
                    self.store.save().map_err(|error| Failed { place: None, error })?;
                }
            }
            let lap = laps.laps[next];
            next += 1;
            progress.step(next as u64, total.max(next as u64), "runs");
            let seconds = self.objective.seconds(lap.prefill, lap.decode);
            // NaN makes the race repeat the round.
            Ok(seconds.map_or(f64::NAN, |seconds| 1.0 / seconds))
        });
        progress.finish();
        if known > 0 {
            self.ui.done(
                "kept",
                format_args!("{known} of {} runs from an earlier optimisation", laps.laps.len()),
            );
        }
        laps.stop = result.as_ref().ok().map(|finish| finish.stop);
        let seconds: Vec<f64> = laps.laps.iter().map(|lap| lap.seconds).collect();
        self.remember_speeds(&laps, field);
        self.store.keep(laps);
        let finish = result?;
        let lap = Duration::try_from_secs_f64(median(&seconds)).unwrap_or_default();
        Ok(Ran { field: field.to_vec(), samples: finish.samples, lap })
    }

    fn remember_speeds(&mut self, laps: &Laps, field: &[usize]) {
        for (place, &who) in field.iter().enumerate() {
            // Skip the warm-up round.
            let own = || laps.laps.iter().skip(field.len()).filter(move |lap| lap.build == place);
            let middle = |values: Vec<f64>| (!values.is_empty()).then(|| median(&values));
            let prefill = middle(own().filter_map(|lap| lap.prefill).collect());
            let decode = middle(own().filter_map(|lap| lap.decode).collect());
            self.speeds.insert(who, (prefill, decode));
        }
    }
}

impl Course for Track<'_> {
    type Error = Error;

    /// Runs a heat. If a build crashes or is killed, it is dropped, and the other builds start the heat again.
    fn race(&mut self, heat: &Heat, field: &[usize], time: Duration) -> Result<Ran> {
        let until = Instant::now() + time;
        let mut field = field.to_vec();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let failed = match self.heat(heat, &field, left) {
                Ok(ran) => return Ok(ran),
                Err(failed) => failed,
            };
            process::check_interrupted()?;
            let Some(place) = failed.place else { return Err(failed.error) };
            let who = field.remove(place);
            let why = format!("{:#}", failed.error);
            self.ui.warn(format_args!("dropping {}: {why}", self.runners[who].engine.name));
            let first = why.lines().next().unwrap_or_default();
            self.outs.insert(who, format!("{FAILED}: {first}"));
            if field.is_empty() {
                bail!("no build ran to the end: {why}");
            }
            if field.len() == 1 {
                return Ok(Ran { field, samples: vec![Vec::new()], lap: Duration::ZERO });
            }
        }
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    fn out(&mut self, who: usize, standing: &Standing, why: Out) {
        let ratio = standing.against_best;
        let words = match why {
            Out::Slower => format!("slower than the best build after the short heat: {ratio}"),
            Out::NoTime => {
                let few = ratio.pairs < FEWEST_PAIRS;
                let shown = if few {
                    "too few pairs for a verdict"
                } else {
                    "not shown to be slower than the best build"
                };
                format!("{shown} ({ratio}), but the budget is used up")
            }
        };
        self.ui.say(format_args!("{:>11} {}: {words}", "dropped", self.runners[who].engine.name));
        self.outs.insert(who, words);
        self.stood.push(*standing);
    }
}

#[cfg(test)]
mod tests;
