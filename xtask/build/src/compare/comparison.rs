//! A finished comparison: what is written to raw files, printed, and published in docs/results.

use build_info::{BuildInfo, Bytes, Defaults, Sha256};
use serde::{Deserialize, Serialize};

use super::ledger::Ledger;
use super::phase::{Phase, Quantity};
use super::provenance::Provenance;
use super::shape::RunShape;
use crate::ui;
use measure::{Ratio, median};
use measure::{Round, Stop};

/// Several builds measured side by side. docs/src/tune/measuring.md describes the fields.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Comparison {
    /// Date, command, machine.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// Anything else that a reader should know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Why it ended before all pairs were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// Threads of both phases.
    pub threads: u32,
    /// Rounds that were asked for: in each every build runs once on each model in each shape.
    pub pairs: usize,
    /// Rounds before them that are not counted.
    pub warm_up_rounds: usize,
    /// The builds; the first is the baseline.
    pub builds: Vec<Contender>,
    /// What was measured.
    pub figures: Vec<Figure>,
    /// For each build but the baseline: prefill and decode of all models and shapes together.
    pub overall: Vec<Overall>,
    /// Why no further round was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// The smallest difference of prefill and decode together that so many rounds could be expected to show on this
    /// machine, as a part of 1: from how much the baseline differed from itself, and the others from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<f64>,
    /// What else ran on the machine, round by round.
    #[serde(default)]
    pub rounds: Vec<Round>,
    /// Rounds that were measured again, because the baseline was far from itself in them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<Dropped>,
}

/// A round that does not count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropped {
    /// Rounds that counted before it.
    pub after: usize,
    /// Geometric mean of the baseline's speeds in it, in tokens per second.
    pub anchor: f64,
    /// What else ran on the machine.
    pub machine: Round,
}

/// One of the builds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Contender {
    /// As the figures name it.
    pub name: String,
    /// Of its record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Origin and version of the sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Of its record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_hash: Option<Sha256>,
    /// What its profile wants of its program, of which nothing is in the plan's hash.
    #[serde(default, skip_serializing_if = "Defaults::is_empty")]
    pub defaults: Defaults,
    /// C++ compiler and its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiler: Option<String>,
}

/// One phase on one model in one shape.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// What was measured.
    pub phase: Phase,
    /// Name of the model's file, without its ending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Sizes of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<RunShape>,
    /// Unit of medians and samples.
    pub unit: String,
    /// How they read.
    pub quantity: Quantity,
    /// The builds, in their order.
    pub results: Vec<BuildOutcome>,
}

/// What one build reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BuildOutcome {
    /// Name of the build.
    pub build: String,
    /// Median of the samples.
    pub median: f64,
    /// Against the baseline: of speeds, and of times turned round, so that above 1 is faster; of sizes as they are.
    /// The baseline has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Ratio>,
    /// What may be said of the ratio: faster, slower, smaller, larger, equal, no difference shown, too
    /// few pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// One value a round; sizes of files, which do not vary, are there once.
    pub samples: Vec<f64>,
}

/// Prefill and decode together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Overall {
    /// Name of the build.
    pub build: String,
    /// Of each round the geometric mean of all its ratios; of those the median with its interval.
    pub ratio: Ratio,
    /// What may be said of it.
    pub verdict: String,
}

impl Contender {
    /// As the record of a build tells it, where there is one.
    pub fn new(name: &str, record: Option<&BuildInfo>) -> Self {
        Self {
            name: name.to_string(),
            profile: record.map(|record| record.profile.clone()),
            source: record.map(|record| format!("{} {}", record.source.origin, record.source.version)),
            plan_hash: record.map(|record| record.plan_hash.clone()),
            defaults: record.map(|record| record.defaults.clone()).unwrap_or_default(),
            compiler: record.map(|record| record.compiler.clone()),
        }
    }
}

/// The figures of all samples in `ledger`.
pub(super) fn figures(ledger: &Ledger, builds: &[Contender]) -> Vec<Figure> {
    let figure = |(key, samples): &(super::ledger::ValueKey, Vec<Vec<f64>>)| Figure {
        phase: key.phase,
        model: key.model.clone(),
        shape: key.shape,
        unit: key.phase.unit().to_string(),
        quantity: key.phase.quantity(),
        results: builds
            .iter()
            .zip(samples)
            .enumerate()
            .filter(|(_, (_, own))| !own.is_empty())
            .map(|(number, (build, own))| outcome(key.phase, build, own, (number > 0).then_some(&samples[0])))
            .collect(),
    };
    ledger.sorted().into_iter().map(figure).collect()
}

fn outcome(phase: Phase, build: &Contender, samples: &[f64], baseline: Option<&Vec<f64>>) -> BuildOutcome {
    let baseline = baseline.filter(|baseline| !baseline.is_empty());
    let ratio = baseline.map(|baseline| phase.quantity().ratio(samples, baseline));
    BuildOutcome {
        build: build.name.clone(),
        median: median(samples),
        verdict: ratio.map(|ratio| phase.verdict(&ratio).to_string()),
        ratio,
        samples: samples.to_vec(),
    }
}

/// How each build but the first generates text: prefill and decode together.
pub(super) fn overall(ledger: &Ledger, builds: &[Contender]) -> Vec<Overall> {
    let of_build = |number: usize| {
        let ratios = ratios(ledger, number);
        let ratio = (!ratios.is_empty()).then(|| Ratio::of(&ratios))?;
        let verdict = Quantity::Rate.verdict(&ratio).to_string();
        Some(Overall { build: builds[number].name.clone(), ratio, verdict })
    };
    (1..builds.len()).filter_map(of_build).collect()
}

/// Of each round the geometric mean of all speeds of build `number` against the baseline's.
pub(super) fn ratios(ledger: &Ledger, number: usize) -> Vec<f64> {
    speeds(ledger, number).iter().zip(speeds(ledger, 0)).map(|(own, baseline)| own / baseline).collect()
}

/// What [`Comparison::floor`] is, by the baseline's `speeds`: the half-width of an interval that its own scatter makes
/// expect, or that of the middle one of `overall` where it is wider. What disturbs a build between two runs of the
/// baseline, the baseline does not see.
pub fn floor(speeds: &[f64], overall: &[Overall]) -> Option<f64> {
    let half = |overall: &Overall| (overall.ratio.high - overall.ratio.low) / (2.0 * overall.ratio.median);
    let halves: Vec<f64> = overall.iter().map(half).filter(|half| half.is_finite()).collect();
    let seen = (!halves.is_empty()).then(|| measure::median(&halves));
    let expected = measure::floor(speeds, speeds.len())?;
    Some(seen.map_or(expected, |seen| seen.max(expected)))
}

/// Of each round the geometric mean of prefill and decode of build `number` on all models in all shapes.
pub(super) fn speeds(ledger: &Ledger, number: usize) -> Vec<f64> {
    let entries = ledger.sorted();
    let speeds: Vec<&Vec<f64>> = entries
        .iter()
        .filter(|(key, _)| matches!(key.phase, Phase::Prefill | Phase::Decode))
        .map(|(_, samples)| &samples[number])
        .collect();
    let rounds = speeds.iter().map(|samples| samples.len()).min().unwrap_or(0);
    let mean = |round: usize| {
        let logs: f64 = speeds.iter().map(|samples| samples[round].ln()).sum();
        (logs / speeds.len() as f64).exp()
    };
    (0..rounds).map(mean).collect()
}

impl Comparison {
    /// For a terminal.
    pub fn table(&self) -> impl std::fmt::Display {
        let baseline = self.builds.first().map_or("", |build| build.name.as_str());
        let against = format!("against {baseline} [95 % interval]");
        let mut rows = Vec::new();
        for figure in &self.figures {
            for result in &figure.results {
                rows.push(vec![
                    figure.title(),
                    figure.model.clone().unwrap_or_default(),
                    result.build.clone(),
                    figure.phase.show(result.median),
                    result.ratio.map_or(String::new(), |ratio| ratio.to_string()),
                    result.verdict.clone().unwrap_or_default(),
                ]);
            }
        }
        for overall in &self.overall {
            let (title, ratio) = ("prefill and decode".to_string(), overall.ratio.to_string());
            let build = overall.build.clone();
            rows.push(vec![title, "all".to_string(), build, String::new(), ratio, overall.verdict.clone()]);
        }
        ui::columns(&["", "model", "build", "median", &against, "verdict"], rows)
    }

    /// What a reader should know of how it was measured; nothing where all went as planned.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Some(floor) = self.floor.filter(|floor| floor.is_finite()) {
            remarks.push(format!(
                "differences of {:.1} % and more can be told by {} rounds on this machine",
                100.0 * floor,
                self.rounds.len()
            ));
        }
        let rounds = match self.dropped.len() {
            0 => return remarks,
            1 => "1 round was".to_string(),
            many => format!("{many} rounds were"),
        };
        remarks.push(format!("{rounds} disturbed and measured again: the baseline was far from itself"));
        remarks
    }

    /// Cores that others kept busy: median and most of the rounds.
    pub fn disturbance(&self) -> Option<(f64, f64)> {
        let busy: Vec<f64> = self.rounds.iter().filter_map(|round| round.cores_busy_elsewhere).collect();
        (!busy.is_empty()).then(|| (median(&busy), busy.iter().copied().fold(0.0, f64::max)))
    }
}

impl Figure {
    /// Phase and size: `prefill 512`, `decode 64 @ 4096`, `tokenize`.
    pub fn title(&self) -> String {
        let Some(RunShape { prompt, generate, depth }) = self.shape else { return self.phase.to_string() };
        let size = match self.phase {
            Phase::Prefill => prompt.to_string(),
            Phase::Decode => generate.to_string(),
            _ => format!("{prompt} + {generate}"),
        };
        let depth = if depth > 0 { format!(" @ {depth}") } else { String::new() };
        format!("{} {size}{depth}", self.phase)
    }
}

/// Size of a file, as the value of a figure.
pub(super) fn as_value(size: Bytes) -> f64 {
    size.0 as f64
}
