//! Whether an optimised build is faster than the one it was made from.

use std::path::{Path, PathBuf};

use anyhow::Result;
use build_info::Sha256;
use build_info::optimized::{Gain, Interval, PhaseGain};

use crate::commands::bench::measure_once;
use crate::measure::{self, Ratio};
use crate::process;
use crate::ui::Ui;

/// Lengths that no workload trains on.
const PROMPT: u32 = 300;
/// Likewise.
const GENERATE: u32 = 40;

/// Two builds, and what they are compared on.
pub struct Contest<'a> {
    /// The optimised engine.
    pub ours: &'a Path,
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
        let mut progress = ui.progress("compare");
        let total = (self.models.len() * (self.pairs + 1)) as u64;
        let mut phases = Vec::new();
        let (mut all_ours, mut all_theirs) = (Vec::new(), Vec::new());
        for (number, (name, model)) in self.models.iter().enumerate() {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for pair in 0..=self.pairs {
                let mut order = [(self.ours, &mut ours), (self.theirs, &mut theirs)];
                if pair % 2 == 1 {
                    order.reverse();
                }
                for (program, samples) in order {
                    process::check_interrupted()?;
                    let sample = measure_once(program, model, PROMPT, GENERATE, self.threads)?;
                    if pair > 0 {
                        samples.push(sample);
                    }
                }
                progress.step((number * (self.pairs + 1) + pair) as u64 + 1, total, "pairs");
            }
            type Phase = (&'static str, fn(&crate::commands::bench::Sample) -> f64);
            let both: [Phase; 2] = [("prefill", |sample| sample.prefill), ("decode", |sample| sample.decode)];
            for (phase, of) in both {
                let a: Vec<f64> = ours.iter().map(of).collect();
                let b: Vec<f64> = theirs.iter().map(of).collect();
                phases.push(PhaseGain {
                    model: name.clone(),
                    phase: phase.to_string(),
                    ratio: interval(&measure::ratio(&a, &b)),
                });
                all_ours.extend(a);
                all_theirs.extend(b);
            }
        }
        progress.finish();
        let overall = interval(&measure::ratio(&all_ours, &all_theirs));
        let (kept, verdict) = decide(&overall, &phases, &self.against.0);
        Ok(Gain {
            against: self.against.0.clone(),
            against_plan: self.against.1.clone(),
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

/// The faster build is kept, and at equality the simpler one.
fn decide(overall: &Interval, phases: &[PhaseGain], against: &str) -> (bool, String) {
    let said = format!("{:.3} [{:.3}, {:.3}]", overall.median, overall.low, overall.high);
    if let Some(worse) = phases.iter().find(|phase| phase.ratio.high < PRICE) {
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
