//! Comparison of an optimised build with the original build.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use build_info::Sha256;
use build_info::optimized::{Gain, Interval, PhaseGain};
use build_info::words::count;

use crate::compare::{self, CandidateBuild, Phase, Provenance, Ratio, RunShape};
use crate::ui::Ui;

/// Shape of the compared runs, which differs from the shapes in all training workloads.
const SHAPE: RunShape = RunShape { prompt: 300, generate: 40, depth: 0 };

/// Phases to compare. Their branches may benefit from a profile.
const PHASES: [Phase; 8] = [
    Phase::Prefill,
    Phase::Decode,
    Phase::Tokenize,
    Phase::Detokenize,
    Phase::Sample,
    Phase::Greedy,
    Phase::Load,
    Phase::Vocab,
];

/// Two builds to compare, and the models to compare them on.
pub struct PgoContest<'a> {
    /// Command that requested the comparison, for the record.
    pub command: &'a str,
    /// Name and path of the optimised engine.
    pub ours: (&'a str, &'a Path),
    /// Path of the original engine.
    pub theirs: &'a Path,
    /// Name and plan hash of the original build.
    pub against: (String, Sha256),
    /// Names and paths of the models.
    pub models: Vec<(String, PathBuf)>,
    /// Number of threads in prefill and decode.
    pub threads: u32,
    /// Number of pairs of runs per model.
    pub pairs: usize,
}

impl PgoContest<'_> {
    /// Runs both engines interleaved on each model, alternating their order from pair to pair, after one warm-up
    /// round.
    ///
    /// # Errors
    /// If a build cannot be measured or the user stops the comparison.
    pub fn run(&self, ui: &Ui) -> Result<Gain> {
        let (against, against_plan) = &self.against;
        let builds =
            [CandidateBuild::at(against, self.theirs)?, CandidateBuild::at(self.ours.0, self.ours.1)?];
        let models: Vec<PathBuf> = self.models.iter().map(|(_, path)| path.clone()).collect();
        let contest = compare::Contest {
            builds: &builds,
            models: &models,
            shapes: &[SHAPE],
            phases: &PHASES,
            threads: self.threads,
            pairs: self.pairs,
            precision: 0.0,
            text: None,
            raw: None,
            provenance: Provenance::now(&crate::tools::host(ui), self.command.to_string()),
            note: None,
        };
        let comparison = contest.run(ui)?;
        let gains = comparison.figures.iter().filter_map(|figure| {
            let ratio = figure.results.iter().find_map(|result| result.ratio)?;
            let model = figure.model.clone().unwrap_or_default();
            Some(PhaseGain { model, phase: figure.phase.to_string(), ratio: interval(&ratio) })
        });
        let phases: Vec<PhaseGain> = gains.collect();
        let overall = comparison.overall.first().context("the builds were not compared")?;
        let overall = interval(&overall.ratio);
        let (kept, verdict) = decide(&overall, &phases, against);
        Ok(Gain {
            against: against.clone(),
            against_plan: against_plan.clone(),
            phases,
            overall,
            kept,
            verdict,
        })
    }
}

fn interval(ratio: &Ratio) -> Interval {
    Interval {
        median: ratio.median,
        low: ratio.low,
        high: ratio.high,
        pairs: u32::try_from(ratio.pairs).unwrap_or(u32::MAX),
    }
}

/// Ratio of a generation phase below which the build is rejected as a regression.
const PRICE: f64 = 0.98;

/// Minimum number of pairs. With fewer pairs the bootstrap yields no meaningful interval.
pub const FEWEST: u32 = 6;

/// Decides whether the optimised build is kept, and returns the verdict as text. The faster build wins; if no
/// difference is shown, the simpler build wins.
///
/// The results of prefill and decode over all models are considered first. If they show no difference, the other phases
/// decide. A phase counts if there are at least two models and the phase is faster, or slower, on all of them. One
/// model is not enough: when a build is compared with itself, at least one of six short phases appears faster in about
/// one comparison in seven.
fn decide(overall: &Interval, phases: &[PhaseGain], against: &str) -> (bool, String) {
    if overall.pairs < FEWEST {
        return (
            false,
            format!(
                "{} of runs cannot give a verdict; {against} stays current",
                count(overall.pairs, "pair")
            ),
        );
    }
    let said = format!("{:.3} [{:.3}, {:.3}]", overall.median, overall.low, overall.high);
    let generation = |phase: &&PhaseGain| ["prefill", "decode"].contains(&phase.phase.as_str());
    if let Some(worse) = phases.iter().filter(generation).find(|phase| phase.ratio.high < PRICE) {
        let ratio = worse.ratio.median;
        let words = format!("{} of {} is slower ({ratio:.3} times {against})", worse.phase, worse.model);
        return (false, format!("{words}; {against} stays current"));
    }
    if overall.low > 1.0 {
        return (true, format!("generates {said} times as fast as {against}"));
    }
    if overall.high < 1.0 {
        return (false, format!("generates {said} times as fast as {against}, which stays current"));
    }
    let on_every_model = |surely: fn(&Interval) -> bool| -> Vec<&str> {
        let mut names: Vec<&str> = phases.iter().map(|phase| phase.phase.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names.retain(|name| {
            let of_it = || phases.iter().filter(|p| p.phase == *name);
            of_it().count() > 1 && of_it().all(|p| surely(&p.ratio))
        });
        names
    };
    let faster = on_every_model(|ratio| ratio.low > 1.0).join(", ");
    let slower = on_every_model(|ratio| ratio.high < 1.0).join(", ");
    let generates = format!("generates as fast as {against} ({said}, no difference shown)");
    match (faster.is_empty(), slower.is_empty()) {
        (true, true) => (false, format!("{generates}; {against} is simpler and stays current")),
        (false, true) => (true, format!("{generates}; faster on every model: {faster}")),
        (true, false) => {
            (false, format!("{generates}; slower on every model: {slower}; {against} stays current"))
        }
        (false, false) => (
            false,
            format!(
                "{generates}; faster on every model: {faster}; slower on every model: {slower}; {against} \
                 stays current"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(low: f64, high: f64) -> Interval {
        Interval { median: (low + high) / 2.0, low, high, pairs: 20 }
    }

    #[test]
    fn only_what_is_surely_faster_and_nowhere_dearer_is_kept() {
        /// Model, phase, and bounds of the interval.
        type Phases = &'static [(&'static str, &'static str, f64, f64)];
        let even = (0.99, 1.01);
        let cases: [((f64, f64), Phases, bool, &str); 10] = [
            (
                (1.01, 1.05),
                &[("a", "decode", 0.99, 1.1)],
                true,
                "generates 1.030 [1.010, 1.050] times as fast",
            ),
            (even, &[("a", "decode", 0.99, 1.1)], false, "native is simpler and stays current"),
            ((0.90, 0.99), &[("a", "decode", 0.97, 1.1)], false, "which stays"),
            ((1.01, 1.05), &[("a", "decode", 0.90, 0.97)], false, "decode of a is slower"),
            // A significant slowdown of a short phase does not outweigh generation.
            ((1.01, 1.05), &[("a", "sample", 0.90, 0.97)], true, "times as fast"),
            (even, &[("a", "load", 1.1, 1.2), ("b", "load", 1.02, 1.1)], true, "faster on every model: load"),
            (even, &[("a", "load", 1.1, 1.2), ("b", "load", 0.99, 1.1)], false, "is simpler"),
            (
                even,
                &[("a", "sample", 0.7, 0.8), ("b", "sample", 0.7, 0.8)],
                false,
                "slower on every model: sample",
            ),
            (even, &[("a", "load", 1.1, 1.2)], false, "is simpler"),
            (
                even,
                &[
                    ("a", "sample", 0.7, 0.8),
                    ("b", "sample", 0.7, 0.8),
                    ("a", "load", 1.1, 1.2),
                    ("b", "load", 1.1, 1.2),
                ],
                false,
                "faster on every model: load; slower on every model: sample",
            ),
        ];
        for (overall, phases, kept, words) in cases {
            let phases: Vec<PhaseGain> = phases
                .iter()
                .map(|(model, phase, low, high)| PhaseGain {
                    model: model.to_string(),
                    phase: phase.to_string(),
                    ratio: interval(*low, *high),
                })
                .collect();
            let found = decide(&interval(overall.0, overall.1), &phases, "native");
            assert_eq!(found.0, kept, "{overall:?} {phases:?}: {}", found.1);
            assert!(found.1.contains(words), "{}", found.1);
        }
        let few = Interval { pairs: 5, ..interval(1.1, 1.2) };
        assert!(decide(&few, &[], "native").1.contains("5 pairs of runs cannot give a verdict"));
    }
}
