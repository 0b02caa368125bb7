//! Search for the fastest settings, stage by stage.

use std::time::Duration;

use build_info::Bytes;
use build_info::tuning::{Candidate, Chosen, Confirmation, Entry, Sample};
use measure::{FEWEST_PAIRS, Rule, median};

use super::halving::{REPEATS, Terms, contest, interval};
use super::space::{Phases, TuningStage, memory, with};
use super::task::{Failure, Runner, Stop, Task, TuningEvent, TuningProgress, Work};

/// Number of pairs for a stage's last two candidates in a short budget.
pub(crate) const PAIRS: usize = 8;

/// Number of pairs for the confirmation, if time is left.
pub(crate) const CONFIRMATION: usize = 16;

/// Number of confirmation pairs that the stages leave time for. It is twice the minimum, because the confirmation also
/// starts both processes and checks the output, and a run takes longer than its measured time.
pub(crate) const KEPT: usize = 2 * FEWEST_PAIRS;

/// Half width at which an interval is narrow enough to end the confirmation.
pub(crate) const NARROW: f64 = 0.01;

/// Runs `task`, continuing from `progress`. `save` stores the progress after every stage.
///
/// # Errors
/// The reason why tuning stopped early; `progress` contains the finished stages.
pub fn tune(
    task: &Task,
    runner: &mut dyn Runner,
    progress: &mut TuningProgress,
    save: &mut dyn FnMut(&TuningProgress) -> Result<(), String>,
) -> Result<Entry, Stop> {
    let before = progress.seconds;
    progress.forget_the_undecided();
    let open = task.stages.iter().filter(|stage| progress.position(stage).is_none());
    let pace = Pace::probe(task, runner, total_runs(task, open))?;
    // The limit on repeats applies to all stages together, because a machine that is always busy is busy in every
    // stage.
    let mut run = TuningRun { task, pace, repeats: REPEATS, before };
    run.stages(runner, progress, save, false)?;
    // Stages that end early leave time for undecided stages.
    run.stages(runner, progress, save, true)?;
    confirm(task, &run.pace, runner, progress, before)
}

/// State that all stages share.
pub(crate) struct TuningRun<'a> {
    pub task: &'a Task,
    pub pace: Pace,
    /// Number of rounds that may still be repeated.
    pub repeats: usize,
    /// Seconds that earlier runs took.
    pub before: f64,
}

impl TuningRun<'_> {
    /// Runs the stages that are not done yet or, with `again`, the stages that are done but undecided.
    ///
    /// # Errors
    /// The reason why tuning stopped early.
    pub fn stages(
        &mut self,
        runner: &mut dyn Runner,
        progress: &mut TuningProgress,
        save: &mut dyn FnMut(&TuningProgress) -> Result<(), String>,
        again: bool,
    ) -> Result<(), Stop> {
        let task = self.task;
        for (at, stage) in task.stages.iter().enumerate() {
            let known = progress.position(stage);
            let is_open = match known {
                Some(known) => again && !progress.done[known].is_decided(),
                None => !again,
            };
            if !is_open {
                continue;
            }
            if runner.is_interrupted() {
                return Err(Stop::Interrupted);
            }
            unchanged(task, runner)?;
            // An earlier stage may already have decided one of this stage's changes.
            let mut stage = stage.clone();
            stage.changes.retain(|change| with(&progress.chosen, &change.set) != progress.chosen);
            if stage.changes.is_empty() {
                continue;
            }
            let end = task.budget.saturating_sub(self.pace.confirmation(task));
            let least = self.pace.time_for(self.pace.stage_work(task, &stage), stage.changes.len() + 1);
            if again && runner.elapsed() + least > end {
                continue;
            }
            let later = task.stages[at + 1..].iter();
            let later = later.filter(|later| !again && progress.position(later).is_none());
            let limits = StageLimits { end, later: self.pace.plan(task, later) };
            let chosen = &progress.chosen;
            let record = self.stage(&stage, runner, chosen, limits)?;
            // If the machine changed during a stage, the stage decides nothing.
            unchanged(task, runner)?;
            runner.tell(TuningEvent::Decided(&record));
            self.pace.learn(&record);
            progress.chosen = record.candidates[record.winner as usize].settings.clone();
            runner.keep_only(&progress.chosen);
            match known {
                // A stage that is decided later builds on the results of the stages after it, so the stage is moved to
                // the end.
                Some(known) if record.is_decided() => {
                    progress.done.remove(known);
                    progress.done.push(record);
                }
                // If a stage stays undecided, its first measurements are kept.
                Some(_) => {}
                None => progress.done.push(record),
            }
            progress.seconds = self.before + runner.elapsed().as_secs_f64();
            save(progress).map_err(Stop::Unwritable)?;
        }
        Ok(())
    }

    /// Runs one stage and returns its decision.
    fn stage(
        &mut self,
        stage: &TuningStage,
        runner: &mut dyn Runner,
        chosen: &Chosen,
        limits: StageLimits,
    ) -> Result<build_info::tuning::Stage, Stop> {
        let (task, pace) = (self.task, &self.pace);
        let mut work = pace.stage_work(task, stage);
        let mut changes = stage.changes.clone();
        let left = limits.end.saturating_sub(runner.elapsed());
        let mut cut_short = None;
        let is_too_long = pace.time_for(work, changes.len() + 1) > left.saturating_sub(limits.later);
        if stage.least_prompt > 0 && is_too_long {
            // Larger graphs need long prompts.
            changes.retain(|change| change.set.n_ubatch.is_none_or(|tokens| tokens <= 512));
            work = pace.amid(task, work.prompt.min(512), work.generate);
            cut_short = Some("only small graphs were tried: there was no time for long prompts".to_string());
        }
        let mut candidates = vec![candidate("as before", chosen.clone())];
        candidates.extend(changes.iter().map(|change| candidate(&change.name, with(chosen, &change.set))));
        // The baseline is never dropped at this point. Otherwise, the first candidate would become the baseline without
        // being measured.
        for candidate in candidates.iter_mut().skip(1) {
            let needed = memory(&task.key.model, &candidate.settings, work.n_ctx());
            if let Some(ceiling) = task.ceiling.filter(|ceiling| needed > *ceiling) {
                let why = format!("it would need {needed} of memory, but the limit is {ceiling}");
                runner.tell(TuningEvent::Dropped { name: &candidate.name, why: &why });
                candidate.dropped = Some(why);
            }
        }
        let (candidates, dropped): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|candidate| candidate.dropped.is_none());
        let finished = |mut candidates: Vec<Candidate>, winner: usize, cut_short| {
            candidates.extend(dropped);
            build_info::tuning::Stage {
                name: stage.name.to_string(),
                candidates,
                winner: u32::try_from(winner).unwrap_or(0),
                cut_short,
            }
        };
        if candidates.len() < 2 {
            return Ok(finished(candidates, 0, cut_short));
        }
        if pace.time_for(work, 2) > left {
            let why = "not tried: no time was left; use a longer --budget".to_string();
            return Ok(finished(candidates, 0, Some(why)));
        }
        runner.tell(TuningEvent::Stage {
            name: stage.name,
            candidates: candidates.len(),
            left: left.as_secs_f64(),
        });
        // A stage leaves time for the later stages unless its own minimum work needs all the time, because the first
        // stages gain the most.
        let needed = pace.time_for(work, candidates.len()).saturating_mul(4) / 3;
        let terms = Terms {
            objective: &task.objective,
            work,
            deadline: runner.elapsed() + left.saturating_sub(limits.later).max(needed).min(left),
            run: pace.time_of(work),
            ceiling: task.ceiling,
            cores: task.cores,
            repeats: self.repeats,
            // Results are not tested after each pair, because repeated tests would find differences that do not exist.
            rule: Rule { pairs: pairs(task), precision: 0.0 },
            second_look: true,
        };
        let outcome = contest(runner, candidates, terms)?;
        self.repeats = self.repeats.saturating_sub(outcome.repeats);
        Ok(finished(outcome.candidates, outcome.winner, outcome.cut_short.or(cut_short)))
    }
}

/// Times that limit a stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageLimits {
    /// Time on the runner's clock at which all stages must end.
    pub end: Duration,
    /// Time that the later stages need.
    pub later: Duration,
}

/// Checks that the CPUs that this process may use still match the tuning key.
///
/// # Errors
/// [`Stop::Changed`] if the CPUs have changed.
pub(crate) fn unchanged(task: &Task, runner: &mut dyn Runner) -> Result<(), Stop> {
    match runner.given().filter(|given| *given != task.key.cpu) {
        None => Ok(()),
        Some(given) => Err(Stop::Changed(format!(
            "the CPUs that this process may use have changed from {} to {}: earlier measurements cannot \
             be compared with later ones; tune again when the CPUs no longer change",
            task.key.cpu.given(),
            given.given()
        ))),
    }
}

/// Returns the number of pairs for a stage's last two candidates. A larger budget allows more pairs, which reveal
/// smaller differences.
pub(crate) fn pairs(task: &Task) -> usize {
    if task.budget < Duration::from_secs(300) { PAIRS } else { 2 * PAIRS }
}

pub(crate) fn candidate(name: &str, settings: Chosen) -> Candidate {
    Candidate {
        name: name.to_string(),
        settings,
        samples: Vec::new(),
        ratio: None,
        output: None,
        dropped: None,
    }
}

/// True if `new` may replace `old`, which has the same key. If `old` chose settings and `new` chose none, `new` may
/// replace `old` in two cases:
///
/// - `new` decided every stage, and refuted the settings that it tried last (`tried`), if any.
/// - `new` tried the settings of `old` last, and refuted them.
///
/// Otherwise, a tuning run with too little time would discard a result that took more time.
pub fn may_replace(old: &Entry, new: &Entry, tried: &Chosen) -> bool {
    let refuted = new.confirmation.as_ref().is_some_and(|found| found.total.pairs as usize >= FEWEST_PAIRS);
    let settled = tried.is_default() || refuted;
    old.chosen.is_default()
        || !new.chosen.is_default()
        || (new.undecided().is_empty() && settled)
        || (*tried == old.chosen && refuted)
}

/// Measures the result again, in comparison with the untuned settings, and creates its entry.
pub(crate) fn confirm(
    task: &Task,
    pace: &Pace,
    runner: &mut dyn Runner,
    progress: &mut TuningProgress,
    before: f64,
) -> Result<Entry, Stop> {
    let mut entry = Entry {
        key: task.key.clone(),
        chosen: progress.chosen.clone(),
        date: crate::bench::utc(std::time::SystemTime::now()),
        anneal_version: env!("CARGO_PKG_VERSION").to_string(),
        budget_seconds: task.budget.as_secs_f64(),
        seconds: 0.0,
        lossy: task.lossy,
        tokens: (task.objective.prompt, task.objective.generate),
        confirmation: None,
        stages: progress.done.clone(),
        notes: Vec::new(),
    };
    if progress.chosen.is_default() {
        let undecided = match &entry.undecided()[..] {
            [] => String::new(),
            stages => format!("; undecided because time ran out: {}", stages.join(", ")),
        };
        entry.notes.push(format!(
            "no setting was measurably faster than the defaults, so the defaults stay{undecided}"
        ));
    } else {
        runner.tell(TuningEvent::Stage { name: "confirmation", candidates: 2, left: 0.0 });
        let work = pace.work(task, Phases::Both);
        let least = pace.confirmation(task);
        let terms = Terms {
            objective: &task.objective,
            work,
            deadline: task.budget.max(runner.elapsed() + least),
            run: pace.time_of(work),
            ceiling: None,
            cores: task.cores,
            repeats: REPEATS,
            rule: Rule { pairs: CONFIRMATION, precision: NARROW },
            second_look: false,
        };
        let both =
            vec![candidate("defaults", Chosen::default()), candidate("tuned", progress.chosen.clone())];
        let outcome = contest(runner, both, terms)?;
        unchanged(task, runner)?;
        let [defaults, tuned] = &outcome.candidates[..] else {
            return Err(Stop::Failed("the confirmation lost a candidate".to_string()));
        };
        entry.confirmation = confirmation(task, defaults, tuned);
        if outcome.winner == 0 {
            let why = tuned.dropped.clone().unwrap_or_else(|| match entry.confirmation.as_ref() {
                Some(found) if (found.total.pairs as usize) < FEWEST_PAIRS => {
                    format!(
                        "there was time for only {} pairs, and {FEWEST_PAIRS} are required",
                        found.total.pairs
                    )
                }
                Some(_) if tuned.output.is_none() => "there was no time to check its output".to_string(),
                Some(found) => format!("{} times as fast", found.total),
                None => "it could not be measured".to_string(),
            });
            entry.notes.push(format!(
                "the settings chosen by the stages were not measurably faster together ({why}), so the defaults stay"
            ));
            entry.chosen = Chosen::default();
        }
    }
    entry.seconds = before + runner.elapsed().as_secs_f64();
    Ok(entry)
}

pub(crate) fn confirmation(task: &Task, defaults: &Candidate, tuned: &Candidate) -> Option<Confirmation> {
    let pairs = || defaults.samples.iter().zip(&tuned.samples);
    let ratios = |time: &dyn Fn(&Sample) -> f64| -> Vec<f64> {
        pairs().map(|(base, tuned)| time(base) / time(tuned)).filter(|ratio| ratio.is_finite()).collect()
    };
    let of = |time: &dyn Fn(&Sample) -> f64| {
        let ratios = ratios(time);
        // A phase with weight 0 was not run.
        interval(if ratios.is_empty() { &[1.0] } else { &ratios })
    };
    pairs().next()?;
    Some(Confirmation {
        total: of(&|sample| super::objective::seconds(&task.objective, sample)),
        prefill: of(&|sample| sample.prefill_ns as f64),
        decode: of(&|sample| sample.decode_ns as f64),
        default_samples: defaults.samples.clone(),
        tuned_samples: tuned.samples.clone(),
    })
}

/// Speed of the machine with untuned settings. It determines the amount of work in a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Seconds per prompt token.
    prefill: f64,
    /// Seconds per generated token.
    decode: f64,
    /// Seconds that a run spends outside prefill and decode.
    overhead: f64,
    /// True if runs begin in a context that already contains tokens.
    depth: bool,
    /// Number of runs among which the budget is divided.
    runs: usize,
}

impl Pace {
    /// Measures three short runs and uses the fastest: the first run loads the model into memory, and other processes
    /// may briefly use the cores.
    pub fn probe(task: &Task, runner: &mut dyn Runner, runs: usize) -> Result<Self, Stop> {
        let (mut work, settings) = (Work::amid(64, 4, &task.objective), Chosen::default());
        let fits = |needed: Bytes, about: &str| match task.ceiling {
            Some(ceiling) if needed > ceiling => Err(Stop::Failed(format!(
                "the model needs {about}{needed} of memory, but the limit is {ceiling}\nhint: raise --memory, or use a \
                 smaller model or quantisation"
            ))),
            _ => Ok(()),
        };
        fits(memory(&task.key.model, &settings, work.at_the_start().n_ctx()), "about ")?;
        let mut pace = Self {
            prefill: f64::INFINITY,
            decode: f64::INFINITY,
            overhead: f64::INFINITY,
            depth: true,
            runs,
        };
        let (mut probes, mut failed) = (0, false);
        while probes < 3 {
            if runner.is_interrupted() {
                return Err(Stop::Interrupted);
            }
            let before = runner.elapsed();
            match runner.measure(&settings, work) {
                Ok(measured) => {
                    measured.peak.map_or(Ok(()), |peak| fits(peak, ""))?;
                    let wall = runner.elapsed().saturating_sub(before).as_secs_f64();
                    pace.take(&measured.sample, wall);
                    probes += 1;
                }
                Err(Failure::Interrupted) => return Err(Stop::Interrupted),
                Err(Failure::Failed(why)) if work.depth() > 0 => {
                    runner.tell(TuningEvent::Warning(&format!(
                        "runs begin in an empty context, where attention takes less time than after {} tokens: {why}",
                        work.depth()
                    )));
                    (work, pace.depth) = (work.at_the_start(), false);
                }
                Err(Failure::Failed(why)) if failed => return Err(Stop::Failed(why)),
                Err(Failure::Failed(why)) => {
                    failed = true;
                    runner.tell(TuningEvent::Warning(&format!("the defaults: {why}; trying again")));
                }
            }
        }
        Ok(pace)
    }

    /// Returns the work for tokens in the middle of the prompt and of the answer, where a token has average cost.
    fn amid(&self, task: &Task, prompt: u32, generate: u32) -> Work {
        let work = Work::amid(prompt, generate, &task.objective);
        if self.depth { work } else { work.at_the_start() }
    }

    fn take(&mut self, sample: &Sample, wall: f64) {
        let (prefill, decode) = (sample.prefill_ns as f64 / 1e9, sample.decode_ns as f64 / 1e9);
        self.prefill = self.prefill.min(prefill / f64::from(sample.prompt.max(1)));
        self.decode = self.decode.min(decode / f64::from(sample.generated.max(1)));
        self.overhead = self.overhead.min((wall - prefill - decode).max(0.0));
    }

    /// Returns the work of a run, half of it for each phase. A run takes about a hundredth of the budget, or less if
    /// the stages have more runs.
    fn work(&self, task: &Task, phases: Phases) -> Work {
        let share = (task.budget.as_secs_f64() / self.runs.max(100) as f64).clamp(0.1, 5.0) / 2.0;
        // The cast saturates.
        let tokens = |seconds: f64| (share / seconds.max(1e-9)) as u32;
        let prompt = (tokens(self.prefill) / 32 * 32).clamp(64, task.objective.usual_prompt().clamp(64, 512));
        let generate = tokens(self.decode).clamp(8, 128);
        let prefills = phases != Phases::Decode && task.objective.prompt > 0;
        let decodes = phases != Phases::Prefill && task.objective.generate > 0;
        self.amid(task, if prefills { prompt } else { 0 }, if decodes { generate } else { 0 })
    }

    /// Updates the speed from a stage's measurements of the baseline, because other processes may have started since
    /// the probe.
    fn learn(&mut self, stage: &build_info::tuning::Stage) {
        let Some(base) = stage.candidates.first() else { return };
        let seconds = |phase: fn(&Sample) -> (u64, u32)| -> Option<f64> {
            let phases = base.samples.iter().map(phase).filter(|(_, tokens)| *tokens > 0);
            let all: Vec<f64> = phases.map(|(ns, tokens)| ns as f64 / 1e9 / f64::from(tokens)).collect();
            (!all.is_empty()).then(|| median(&all))
        };
        self.prefill = seconds(|sample| (sample.prefill_ns, sample.prompt)).unwrap_or(self.prefill);
        self.decode = seconds(|sample| (sample.decode_ns, sample.generated)).unwrap_or(self.decode);
    }

    /// Returns the time of the confirmation, which compares two candidates at the end.
    fn confirmation(&self, task: &Task) -> Duration {
        self.time_of(self.work(task, Phases::Both)).saturating_mul(2 * KEPT as u32)
    }

    /// Returns the time of a run of `work`.
    fn time_of(&self, work: Work) -> Duration {
        let seconds =
            self.overhead + self.prefill * f64::from(work.prompt) + self.decode * f64::from(work.generate);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX / 1024)
    }

    /// Returns the minimum time of a contest of `candidates`.
    fn time_for(&self, work: Work, candidates: usize) -> Duration {
        self.time_of(work).saturating_mul(u32::try_from(runs(candidates, PAIRS)).unwrap_or(u32::MAX))
    }

    /// Returns the work of a run of `stage`, with prompts that are long enough for its changes.
    fn stage_work(&self, task: &Task, stage: &TuningStage) -> Work {
        let work = self.work(task, stage.phases);
        if stage.least_prompt > 0 { self.amid(task, stage.least_prompt, work.generate) } else { work }
    }

    /// Returns the minimum time of all `stages` together. A stage that is short of time can skip long prompts.
    fn plan<'a>(&self, task: &Task, stages: impl Iterator<Item = &'a TuningStage>) -> Duration {
        stages.map(|stage| self.time_for(self.work(task, stage.phases), stage.changes.len() + 1)).sum()
    }
}

/// Returns the number of runs among which the budget is divided: the runs of `stages` and of the confirmation, plus a
/// quarter, because other programs may slow the machine down.
fn total_runs<'a>(task: &Task, stages: impl Iterator<Item = &'a TuningStage>) -> usize {
    let stages = stages.map(|stage| runs(stage.changes.len() + 1, pairs(task)));
    (stages.sum::<usize>() + 2 * KEPT) * 5 / 4
}

/// Returns the number of runs of a contest of `candidates`: two rounds of all candidates, then pairs of the last two.
fn runs(candidates: usize, pairs: usize) -> usize {
    2 * candidates + 2 * (pairs - 2)
}
