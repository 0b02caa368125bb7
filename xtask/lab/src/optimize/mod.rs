//! Search for the fastest build of a profile on this machine: candidates, builds, heats, and a winner that can be
//! reproduced.
//!
//! [`space`] lists the candidates, [`survey`] finds the candidates that exist or can be built, [`workshop`] builds,
//! [`runner`] measures, [`halving`] decides, [`record`] stores the results, and [`reproduce`] writes the winner's
//! profile. `commands/optimize.rs` contains the command line.

pub mod record;
pub mod reproduce;
pub mod runner;
pub mod space;
pub mod survey;
pub mod workshop;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use build_info::BuildInfo;
use measure::Objective;
use measure::halving::{self, Heat, Standing};

use base::exit;
use build::compare::CandidateBuild;
use build::process;
use build::stages::Outcome;
use build::ui::Ui;
use record::{BuildKey, Entry, Rank, Store};
use runner::{FAILED, Runner, Track};
use space::LeftOut;
use survey::{Choice, Estimates, Survey, UPSTREAM};
use workshop::{PlannedCandidate, Workshop};

/// Build that takes part.
pub struct Contender {
    /// Candidate with its plan.
    pub planned: PlannedCandidate,
    /// Record of the build.
    pub info: BuildInfo,
    runner: Runner,
}

impl Contender {
    /// Returns the path of the build's program.
    pub fn engine(&self) -> &Path {
        &self.runner.engine.path
    }
}

/// Result of a race.
pub struct Ending {
    /// Builds that took part.
    pub contenders: Vec<Contender>,
    /// Index of the winner in `contenders`.
    pub winner: usize,
    /// Reason why the winner won.
    pub verdict: String,
}

/// Builds, objective and time limit of an optimisation.
pub struct Contest<'a> {
    /// Workshop that makes the builds.
    pub workshop: &'a Workshop<'a>,
    /// User interface for progress messages.
    pub ui: &'a Ui,
    /// Purpose that the builds are optimised for.
    pub objective: &'a Objective,
    /// Candidates that are still to be built.
    pub survey: Survey,
    /// Candidates that the user chose.
    pub choice: &'a Choice,
    /// Deadline of the optimisation.
    pub until: Instant,
    /// Estimates from the times of earlier builds.
    pub estimates: Estimates,
    /// Builds that take part so far.
    contenders: Vec<Contender>,
}

/// Returns the heats for `objective`: short runs for all builds, and longer runs for the remaining builds. Heats only
/// measure speed, so they are short even if the objective has large numbers of tokens.
pub fn heats(objective: &Objective) -> [Heat; 2] {
    let tokens = |wanted: u32, length: u32| if wanted > 0 { length } else { 0 };
    let heat = |prompt, generate, pairs, precision| Heat {
        prompt: tokens(objective.prompt, prompt),
        generate: tokens(objective.generate, generate),
        pairs,
        precision,
    };
    // A difference below one per cent does not justify another round.
    [heat(128, 16, 10, 0.02), heat(256, 32, 24, 0.01)]
}

impl<'a> Contest<'a> {
    /// Creates a contest without contenders.
    pub fn new(
        workshop: &'a Workshop<'a>,
        objective: &'a Objective,
        survey: Survey,
        choice: &'a Choice,
        until: Instant,
    ) -> Self {
        let estimates = Estimates::of(workshop.workspace, workshop.host);
        Self {
            workshop,
            ui: workshop.ui,
            objective,
            survey,
            choice,
            until,
            estimates,
            contenders: Vec::new(),
        }
    }

    /// Adds the profile itself to the race, and builds it if necessary, because all comparisons need this build.
    ///
    /// # Errors
    /// If the profile cannot be built, or not within the budget.
    pub fn base(&mut self) -> Result<&Contender> {
        let base = self.survey.planned[0].clone();
        let outcome = match self.workshop.there(&base.plan) {
            Some(outcome) => outcome,
            None => {
                let left = self.until.saturating_duration_since(Instant::now()).as_secs_f64();
                if let Some(seconds) = self.estimates.seconds(&base, &base).filter(|seconds| *seconds > left)
                {
                    return Err(exit::usage(format!(
                        "--budget: building {} takes about {}, but only {} are left\nhint: increase the \
                         budget, or build the profile first",
                        base.candidate.name,
                        about(seconds),
                        about(left)
                    )));
                }
                self.workshop.make(&base.plan, None)?
            }
        };
        self.enter(base, &outcome)?;
        self.contenders.first().context("the profile itself is missing from the race")
    }

    fn enter(&mut self, planned: PlannedCandidate, outcome: &Outcome) -> Result<()> {
        let engine = CandidateBuild::at(&planned.candidate.name, &outcome.folder)?;
        let digest = outcome.info.artifacts.first().map(|artifact| artifact.sha256.clone());
        let key = BuildKey {
            plan: outcome.info.plan_hash.clone(),
            engine: digest
                .with_context(|| format!("the build {} contains no program", planned.candidate.name))?,
        };
        let runner = Runner { engine, key };
        self.contenders.push(Contender { planned, info: outcome.info.clone(), runner });
        Ok(())
    }

    /// Adds the builds that already exist, including PGO and BOLT builds, to the race. Returns the candidates
    /// whose existing builds were made from other sources.
    pub fn take_what_is_there(&mut self) -> Result<Vec<LeftOut>> {
        let (mut missing, mut left_out) = (Vec::new(), Vec::new());
        for planned in std::mem::take(&mut self.survey.planned) {
            let known = self.contenders.iter().any(|other| other.planned.plan.hash() == planned.plan.hash());
            match self.workshop.there(&planned.plan) {
                _ if known => {}
                Some(outcome) => self.enter(planned, &outcome)?,
                // Upstream's build is only a reference and is not worth building.
                None if planned.candidate.name == UPSTREAM => left_out.push(survey::stale(UPSTREAM)),
                None if planned.candidate.why == survey::BUILT_BEFORE
                    && !self.choice.names(&planned.plan.profile) =>
                {
                    left_out.push(survey::stale(&planned.candidate.name));
                }
                None => missing.push(planned),
            }
        }
        self.survey.planned = missing;
        let base = &self.contenders[0].planned;
        let improved: Vec<PlannedCandidate> =
            self.workshop.improved(&base.plan)?.into_iter().map(|plan| variant_of(base, plan)).collect();
        for planned in improved {
            let kind = if planned.plan.folder_name().contains("bolt") { survey::BOLT } else { survey::PGO };
            if let (true, Some(outcome)) = (self.choice.takes(kind), self.workshop.there(&planned.plan)) {
                self.enter(planned, &outcome)?;
            }
        }
        // Upstream's build comes first, because all other builds are compared with the first.
        self.contenders.sort_by_key(|contender| contender.planned.candidate.name != UPSTREAM);
        Ok(left_out)
    }

    /// Builds the candidates in order while the budget lasts. A candidate that fails is dropped.
    pub fn build(&mut self, store: &mut Store, lap: Duration) -> Result<()> {
        let heats = heats(self.objective);
        for planned in std::mem::take(&mut self.survey.planned) {
            let name = planned.candidate.name.clone();
            let base = self.base_contender();
            let (relative, base_planned) = (base.info.clone(), base.planned.clone());
            let estimate = self.estimates.seconds(&planned, &base_planned).unwrap_or_default();
            let reserve = survey::reserve(&heats, self.contenders.len() + 1, lap).as_secs_f64();
            let left = self.until.saturating_duration_since(Instant::now()).as_secs_f64();
            let mut entry = entry(&planned, String::new());
            if estimate + reserve > left {
                entry.state = format!(
                    "not built: building takes about {} and measuring about {}, but only {} are left",
                    about(estimate),
                    about(reserve),
                    about(left)
                );
                self.ui.say(format_args!("{:>11} {name}: {}", "skipped", entry.state));
                store.record.builds.push(entry);
                continue;
            }
            self.ui.done("trying", format_args!("{name}: {}", planned.candidate.why));
            let started = Instant::now();
            match self.workshop.make(&planned.plan, Some((&base_planned.plan, &relative))) {
                Ok(outcome) => {
                    entry.built_in = Some(started.elapsed().as_secs_f64());
                    entry.state = "built".to_string();
                    self.estimates.add(&outcome.info);
                    self.enter(planned, &outcome)?;
                }
                Err(error) => {
                    process::check_interrupted()?;
                    let first = format!("{error:#}").lines().next().unwrap_or_default().to_string();
                    self.ui.warn(format_args!("dropping {name}: {error:#}"));
                    entry.state = format!("dropped: {first}");
                }
            }
            store.record.builds.push(entry);
            store.save()?;
        }
        Ok(())
    }

    /// Returns the index of the build of the profile itself.
    fn base_place(&self) -> Option<usize> {
        self.contenders.iter().position(|contender| contender.planned.candidate.steps == 0)
    }

    /// Returns the build of the profile itself.
    fn base_contender(&self) -> &Contender {
        &self.contenders[self.base_place().unwrap_or(0)]
    }

    /// Runs the build of the profile itself once, to check that it works. Returns the time of a short run.
    pub fn lap(&self, model: &Path, store: &mut Store) -> Result<Duration> {
        let [short, _] = heats(self.objective);
        Track::new(self.ui, model, self.objective, self.runners(), store, self.until)
            .lap(self.base_place().unwrap_or(0), &short)
    }

    fn runners(&self) -> Vec<&Runner> {
        self.contenders.iter().map(|contender| &contender.runner).collect()
    }

    /// Runs the heats and chooses the winner. Measuring ends at `until`.
    pub fn race(self, model: &Path, store: &mut Store, until: Instant) -> Result<Ending> {
        let keys: Vec<BuildKey> = self.runners().iter().map(|runner| runner.key.clone()).collect();
        let names: Vec<String> =
            self.contenders.iter().map(|contender| contender.planned.candidate.name.clone()).collect();
        let mut outs = BTreeMap::new();
        let base = self.base_place();
        // If all builds have run together before, the result is known, so no build has to be dropped.
        let all_ran = store.knows(&heats(self.objective)[0], &keys);
        for (who, key) in keys.iter().enumerate().filter(|_| !all_ran) {
            // The first build is the baseline, and the profile itself wins a tie, so neither may be dropped.
            if let Some(known) = store.slower(key, &keys).filter(|_| who > 0 && Some(who) != base) {
                outs.insert(
                    who,
                    format!("slower than the best build in an earlier optimisation: {}", known.ratio),
                );
            }
        }
        let field: Vec<usize> = (0..keys.len()).filter(|who| !outs.contains_key(who)).collect();
        let mut track = Track::new(self.ui, model, self.objective, self.runners(), store, until);
        track.outs = outs;
        let standings = match field.as_slice() {
            [_] => Vec::new(),
            field => halving::run(&mut track, &heats(self.objective), field)?,
        };
        let (stood, outs, speeds) = (track.stood, track.outs, track.speeds);
        // A build that failed cannot be the baseline. The other builds ran again and are compared with the next
        // build.
        let has_failed = |who: &usize| outs.get(who).is_some_and(|why| why.starts_with(FAILED));
        let baseline = field.iter().copied().find(|who| !has_failed(who)).unwrap_or(field[0]);
        store.record.baseline = names[baseline].clone();
        if let Some(why) = nothing_measured(&standings, &outs) {
            store.save()?;
            bail!(
                "cannot compare builds, because fewer than two ran to the end: {why}\nhint: leave a failing \
                 build out with --skip"
            );
        }
        let steps = |who: usize| self.contenders[who].planned.candidate.steps;
        let (winner, verdict) =
            halving::choose(&standings, steps, |who| names[who].clone()).unwrap_or_else(|| {
                let only = if outs.is_empty() { "in the race" } else { "that is not known to be slower" };
                (field[0], format!("{} is the only build {only}", names[field[0]]))
            });

        for standing in standings.iter().chain(&stood).filter(|standing| standing.against_best.high < 1.0) {
            if let (Some(best), true) = (standings.first(), outs.contains_key(&standing.who)) {
                store.is_slower(keys[standing.who].clone(), keys[best.who].clone(), standing.against_best);
            }
        }
        // A build that was dropped after the last heat still appears in the standings.
        let stands = |who: usize| standings.iter().any(|standing| standing.who == who);
        let others = stood.iter().rev().filter(|out| outs.contains_key(&out.who) && !stands(out.who));
        let all = standings.iter().chain(others);
        store.record.ranking = all
            // Without a pair there is no ratio, and JSON cannot represent NaN.
            .filter(|standing| standing.against_base.pairs > 0)
            .map(|standing| {
                let (prefill, decode) = speeds.get(&standing.who).copied().unwrap_or_default();
                let plan = &self.contenders[standing.who].planned.plan;
                Rank {
                    name: names[standing.who].clone(),
                    profile: plan.profile.clone(),
                    prefill,
                    decode,
                    against_base: standing.against_base,
                    verdict: verdict_of(standing, winner, baseline, outs.get(&standing.who)),
                }
            })
            .collect();
        for (who, contender) in self.contenders.iter().enumerate() {
            let state = outs.get(&who).cloned().unwrap_or_else(|| "measured".to_string());
            let known = store.record.builds.iter_mut().find(|known| known.name == names[who]);
            match known {
                Some(known) => known.state = state,
                None => store.record.builds.push(entry(&contender.planned, state)),
            }
        }
        store.save()?;
        Ok(Ending { contenders: self.contenders, winner, verdict })
    }

    /// Returns the estimated seconds for building the profile itself.
    pub fn base_seconds(&self) -> Option<f64> {
        let base = &self.base_contender().planned;
        self.estimates.seconds(base, base)
    }

    /// True if a PGO or BOLT build takes part.
    pub fn has_variant(&self) -> bool {
        self.contenders.iter().any(|contender| contender.planned.plan.variant.is_some())
    }

    /// Returns the number of builds that take part so far.
    pub fn builds(&self) -> usize {
        self.contenders.len()
    }
}

/// Returns the candidate for `plan`, a PGO or BOLT variant of `base`.
fn variant_of(base: &PlannedCandidate, plan: plan::Plan) -> PlannedCandidate {
    let bolted = plan.folder_name().contains("bolt");
    let name = plan.variant.as_ref().map_or_else(String::new, |variant| variant.name.clone());
    let candidate = space::BuildToTry {
        name: format!("{} {name}", base.candidate.name),
        why: "made earlier from the profile's build".to_string(),
        // The number is larger than for any switch, because reproducing the build needs a training run.
        steps: base.candidate.steps + if bolted { 20 } else { 10 },
        ..base.candidate.clone()
    };
    PlannedCandidate { candidate, profile: base.profile.clone(), plan }
}

fn entry(planned: &PlannedCandidate, state: String) -> Entry {
    Entry {
        name: planned.candidate.name.clone(),
        profile: planned.plan.profile.clone(),
        why: planned.candidate.why.clone(),
        state,
        plan_hash: planned.plan.hash(),
        built_in: None,
    }
}

/// Returns the reason why no build may win: one build failed, and no pair of any other build was measured. The
/// remaining builds may never have run, for example because the model file disappeared.
fn nothing_measured<'a>(standings: &[Standing], outs: &'a BTreeMap<usize, String>) -> Option<&'a str> {
    let failed = outs.values().find(|why| why.starts_with(FAILED))?;
    let measured = standings.iter().any(|standing| standing.against_base.pairs > 0);
    (!standings.is_empty() && !measured).then_some(failed)
}

/// Returns the verdict on `standing`; `base` is the baseline.
fn verdict_of(standing: &Standing, winner: usize, base: usize, out: Option<&String>) -> String {
    let against = match standing.against_base.verdict() {
        _ if standing.who == base => "the baseline",
        "higher" => "faster",
        "lower" => "slower",
        other => other,
    };
    match out {
        Some(why) => why.clone(),
        None if standing.who == winner => format!("wins; {against}"),
        None => against.to_string(),
    }
}

/// Formats a duration for users.
pub fn about(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 100.0 => format!("{seconds:.0} s"),
        seconds => format!("{:.1} min", seconds / 60.0),
    }
}
