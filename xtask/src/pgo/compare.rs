//! Whether an optimised build is faster than the one it was made from.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use build_info::Sha256;
use build_info::optimized::{Gain, Interval, PhaseGain};

use crate::measure::{self, Candidate, Phase, Provenance, Ratio, Shape};
use crate::ui::Ui;

/// Lengths that no workload trains on.
const SHAPE: Shape = Shape { prompt: 300, generate: 40, depth: 0 };

/// What is compared: wherever there are branches that a profile may straighten.
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

/// Two builds, and what they are compared on.
pub struct Contest<'a> {
    /// The command that asked, for the record.
    pub command: &'a str,
    /// The optimised engine, and what it is called.
    pub ours: (&'a str, &'a Path),
    /// The engine it was made from.
    pub theirs: &'a Path,
    /// Name of the latter, and its plan.
    pub against: (String, Sha256),
    /// Models, with their names.
    pub models: Vec<(String, PathBuf)>,
    /// Threads of both phases.
    pub threads: u32,
    /// Pairs of runs for each model.
    pub pairs: usize,
}

impl Contest<'_> {
    /// Runs both in turn on each model, the order changing from pair to pair, after one round that is not counted.
    pub fn run(&self, ui: &Ui) -> Result<Gain> {
        let (against, against_plan) = &self.against;
        let builds = [Candidate::at(against, self.theirs)?, Candidate::at(self.ours.0, self.ours.1)?];
        let models: Vec<PathBuf> = self.models.iter().map(|(_, path)| path.clone()).collect();
        let contest = measure::Contest {
            builds: &builds,
            models: &models,
            shapes: &[SHAPE],
            phases: &PHASES,
            threads: self.threads,
            pairs: self.pairs,
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

/// A phase that is slower by more than this, surely, is a price that nobody asked for.
const PRICE: f64 = 0.98;

/// With fewer pairs the bootstrap's interval is no interval.
const FEWEST: u32 = 6;

/// The faster build is kept, and at equality the simpler one.
fn decide(overall: &Interval, phases: &[PhaseGain], against: &str) -> (bool, String) {
    if overall.pairs < FEWEST {
        return (false, format!("{} pairs are too few to tell: {against} stays", overall.pairs));
    }
    let said = format!("{:.3} [{:.3}, {:.3}]", overall.median, overall.low, overall.high);
    // The other phases are short and many: one of them lies surely below 1 by chance alone.
    let generation = |phase: &&PhaseGain| ["prefill", "decode"].contains(&phase.phase.as_str());
    if let Some(worse) = phases.iter().filter(generation).find(|phase| phase.ratio.high < PRICE) {
        let ratio = worse.ratio.median;
        return (
            false,
            format!(
                "{} of {} got slower ({ratio:.3} times {against}): {against} stays",
                worse.phase, worse.model
            ),
        );
    }
    if overall.low > 1.0 {
        return (true, format!("{said} times as fast as {against}"));
    }
    if overall.high < 1.0 {
        return (false, format!("{said} times as fast as {against}, which stays"));
    }
    (false, format!("no difference shown ({said}): {against} is simpler and stays"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(low: f64, high: f64) -> Interval {
        Interval { median: (low + high) / 2.0, low, high, pairs: 20 }
    }

    #[test]
    fn only_what_is_surely_faster_and_nowhere_dearer_is_kept() {
        let phase = |low, high| PhaseGain {
            model: "m".to_string(),
            phase: "decode".to_string(),
            ratio: interval(low, high),
        };
        let cases = [
            (interval(1.01, 1.05), phase(0.99, 1.1), true, "times as fast"),
            (interval(0.99, 1.05), phase(0.99, 1.1), false, "no difference shown"),
            (interval(0.90, 0.99), phase(0.97, 1.1), false, "which stays"),
            (interval(1.01, 1.05), phase(0.90, 0.97), false, "decode of m got slower"),
        ];
        for (overall, phase, kept, words) in cases {
            let found = decide(&overall, &[phase], "native");
            assert_eq!(found.0, kept, "{overall:?}");
            assert!(found.1.contains(words), "{}", found.1);
        }
    }
}
