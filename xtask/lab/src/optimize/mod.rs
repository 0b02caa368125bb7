//! The fastest build of a profile on this machine: candidates, builds, heats, a winner that can be made again.
//!
//! [`space`] says what is worth a try, [`survey`] what of it is there, [`workshop`] builds, [`runner`] measures,
//! [`halving`] decides, [`record`] remembers, [`reproduce`] writes the winner down. `commands/optimize.rs` is what the
//! user sees of it.

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

/// A build that takes part.
pub struct Contender {
    /// What it is.
    pub planned: PlannedCandidate,
    /// Its record.
    pub info: BuildInfo,
    runner: Runner,
}

impl Contender {
    /// Its program.
    pub fn engine(&self) -> &Path {
        &self.runner.engine.path
    }
}

/// How it ended.
pub struct Ending {
    /// All who took part.
    pub contenders: Vec<Contender>,
    /// The winner's place among them.
    pub winner: usize,
    /// Why.
    pub verdict: String,
}

/// What builds are tried on, and for how long.
pub struct Contest<'a> {
    /// Who builds.
    pub workshop: &'a Workshop<'a>,
    /// Who is told.
    pub ui: &'a Ui,
    /// What counts.
    pub objective: &'a Objective,
    /// The candidates.
    pub survey: Survey,
    /// What the user named.
    pub choice: &'a Choice,
    /// When it has to end.
    pub until: Instant,
    /// How long builds took before.
    pub estimates: Estimates,
    /// The builds that take part so far.
    contenders: Vec<Contender>,
}

/// The heats for `objective`: short runs for all, longer ones for who is left. Only speeds are taken from them, so they
/// are short whatever the objective's numbers are.
pub fn heats(objective: &Objective) -> [Heat; 2] {
    let tokens = |wanted: u32, length: u32| if wanted > 0 { length } else { 0 };
    let heat = |prompt, generate, pairs, precision| Heat {
        prompt: tokens(objective.prompt, prompt),
        generate: tokens(objective.generate, generate),
        pairs,
        precision,
    };
    // A difference of one per cent is worth no further round.
    [heat(128, 16, 10, 0.02), heat(256, 32, 24, 0.01)]
}

impl<'a> Contest<'a> {
    /// One that has not begun.
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

    /// The profile itself, built where it is not: nothing can be tried without it.
    ///
    /// # Errors
    /// When it cannot be built, or not in the budget.
    pub fn base(&mut self) -> Result<&Contender> {
        let base = self.survey.planned[0].clone();
        let outcome = match self.workshop.there(&base.plan) {
            Some(outcome) => outcome,
            None => {
                let left = self.until.saturating_duration_since(Instant::now()).as_secs_f64();
                if let Some(seconds) = self.estimates.seconds(&base, &base).filter(|seconds| *seconds > left)
                {
                    return Err(exit::usage(format!(
                        "--budget: building {} takes about {}, and {} are left: give more, or build it before",
                        base.candidate.name,
                        about(seconds),
                        about(left)
                    )));
                }
                self.workshop.make(&base.plan, None)?
            }
        };
        self.enter(base, &outcome)?;
        self.contenders.first().context("the profile itself takes no part")
    }

    fn enter(&mut self, planned: PlannedCandidate, outcome: &Outcome) -> Result<()> {
        let engine = CandidateBuild::at(&planned.candidate.name, &outcome.folder)?;
        let digest = outcome.info.artifacts.first().map(|artifact| artifact.sha256.clone());
        let key = BuildKey {
            plan: outcome.info.plan_hash.clone(),
            engine: digest.with_context(|| format!("{} has no program", planned.candidate.name))?,
        };
        let runner = Runner { engine, key };
        self.contenders.push(Contender { planned, info: outcome.info.clone(), runner });
        Ok(())
    }

    /// Takes in what is built already, the builds with a profile among it. What was to cost nothing and is of other
    /// sources is left out.
    pub fn take_what_is_there(&mut self) -> Result<Vec<LeftOut>> {
        let (mut missing, mut left_out) = (Vec::new(), Vec::new());
        for planned in std::mem::take(&mut self.survey.planned) {
            let known = self.contenders.iter().any(|other| other.planned.plan.hash() == planned.plan.hash());
            match self.workshop.there(&planned.plan) {
                _ if known => {}
                Some(outcome) => self.enter(planned, &outcome)?,
                // Not worth a build: it is there to be compared with.
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
        // Upstream's first: the others are compared with it.
        self.contenders.sort_by_key(|contender| contender.planned.candidate.name != UPSTREAM);
        Ok(left_out)
    }

    /// Builds the candidates in their order as long as the budget lasts; what fails is dropped.
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
                    "not built: it takes about {}, measuring about {}, and {} are left",
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
                    self.ui.warn(format_args!("{name} is out: {error:#}"));
                    entry.state = format!("dropped: {first}");
                }
            }
            store.record.builds.push(entry);
            store.save()?;
        }
        Ok(())
    }

    /// The place of the profile itself.
    fn base_place(&self) -> Option<usize> {
        self.contenders.iter().position(|contender| contender.planned.candidate.steps == 0)
    }

    /// The profile itself.
    fn base_contender(&self) -> &Contender {
        &self.contenders[self.base_place().unwrap_or(0)]
    }

    /// How long one short run of the profile itself takes, and that it runs at all.
    pub fn lap(&self, model: &Path, store: &mut Store) -> Result<Duration> {
        let [short, _] = heats(self.objective);
        Track::new(self.ui, model, self.objective, self.runners(), store, self.until)
            .lap(self.base_place().unwrap_or(0), &short)
    }

    fn runners(&self) -> Vec<&Runner> {
        self.contenders.iter().map(|contender| &contender.runner).collect()
    }

    /// Runs the heats, and says who won. `until` is when measuring ends.
    pub fn race(self, model: &Path, store: &mut Store, until: Instant) -> Result<Ending> {
        let keys: Vec<BuildKey> = self.runners().iter().map(|runner| runner.key.clone()).collect();
        let names: Vec<String> =
            self.contenders.iter().map(|contender| contender.planned.candidate.name.clone()).collect();
        let mut outs = BTreeMap::new();
        let base = self.base_place();
        // Where all of them have run together before, that is still known, and nobody needs to be left out.
        let all_ran = store.knows(&heats(self.objective)[0], &keys);
        for (who, key) in keys.iter().enumerate().filter(|_| !all_ran) {
            // The first is who the others are compared with, and the profile itself is who wins at equality.
            if let Some(known) = store.slower(key, &keys).filter(|_| who > 0 && Some(who) != base) {
                outs.insert(
                    who,
                    format!("slower than the best, as an earlier optimisation showed: {}", known.ratio),
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
        // Who failed is no baseline: the others ran again, and are compared with the next.
        let has_failed = |who: &usize| outs.get(who).is_some_and(|why| why.starts_with(FAILED));
        let baseline = field.iter().copied().find(|who| !has_failed(who)).unwrap_or(field[0]);
        store.record.baseline = names[baseline].clone();
        if let Some(why) = nothing_measured(&standings, &outs) {
            store.save()?;
            bail!("no two builds ran to the end, so nothing can be said: {why}; --skip leaves a build out");
        }
        let steps = |who: usize| self.contenders[who].planned.candidate.steps;
        let (winner, verdict) =
            halving::choose(&standings, steps, |who| names[who].clone()).unwrap_or_else(|| {
                let only = if outs.is_empty() { "there is" } else { "that is not known to be slower" };
                (field[0], format!("{} is the only build {only}", names[field[0]]))
            });

        for standing in standings.iter().chain(&stood).filter(|standing| standing.against_best.high < 1.0) {
            if let (Some(best), true) = (standings.first(), outs.contains_key(&standing.who)) {
                store.is_slower(keys[standing.who].clone(), keys[best.who].clone(), standing.against_best);
            }
        }
        // Who is out after the last heat that was run stands in it, too.
        let stands = |who: usize| standings.iter().any(|standing| standing.who == who);
        let others = stood.iter().rev().filter(|out| outs.contains_key(&out.who) && !stands(out.who));
        let all = standings.iter().chain(others);
        store.record.ranking = all
            // Without a pair there is no number, and JSON has none for that.
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

    /// Seconds that building the profile itself takes.
    pub fn base_seconds(&self) -> Option<f64> {
        let base = &self.base_contender().planned;
        self.estimates.seconds(base, base)
    }

    /// Whether a build with a profile, or by BOLT, takes part.
    pub fn has_variant(&self) -> bool {
        self.contenders.iter().any(|contender| contender.planned.plan.variant.is_some())
    }

    /// How many builds take part so far.
    pub fn builds(&self) -> usize {
        self.contenders.len()
    }
}

/// The build of `plan`, which was made of that of `base`.
fn variant_of(base: &PlannedCandidate, plan: plan::Plan) -> PlannedCandidate {
    let bolted = plan.folder_name().contains("bolt");
    let name = plan.variant.as_ref().map_or_else(String::new, |variant| variant.name.clone());
    let candidate = space::BuildToTry {
        name: format!("{} {name}", base.candidate.name),
        why: "was made of the profile's build before".to_string(),
        // More than any switch: it takes a training to be made again.
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

/// Why nobody may win: somebody failed, and of nobody else a pair was measured. A build that is merely left was not seen
/// to run, as where the model disappeared.
fn nothing_measured<'a>(standings: &[Standing], outs: &'a BTreeMap<usize, String>) -> Option<&'a str> {
    let failed = outs.values().find(|why| why.starts_with(FAILED))?;
    let measured = standings.iter().any(|standing| standing.against_base.pairs > 0);
    (!standings.is_empty() && !measured).then_some(failed)
}

/// What may be said of `standing`; `base` is who it is compared with.
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

/// Seconds for people.
pub fn about(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 100.0 => format!("{seconds:.0} s"),
        seconds => format!("{:.1} min", seconds / 60.0),
    }
}
