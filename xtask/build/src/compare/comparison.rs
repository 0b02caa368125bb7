//! Result of a comparison, as written to raw files, printed, and published in docs/results.

use build_info::words::count;
use build_info::{BuildInfo, Bytes, Defaults, Sha256};
use serde::{Deserialize, Serialize};

use super::ledger::Ledger;
use super::phase::{Phase, Quantity};
use super::provenance::Provenance;
use super::shape::RunShape;
use crate::ui;
use measure::{Ratio, median};
use measure::{Round, Stop};

/// Interleaved measurements of several builds. docs/src/tune/raw-files.md describes the fields.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Comparison {
    /// Date, command and machine of the comparison.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// Additional remark for the reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Reason why the comparison ended early; `None` if it is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// Number of threads in prefill and decode.
    pub threads: u32,
    /// Requested number of pairs, one per round. In each round, every build runs once on each model in each shape.
    pub pairs: usize,
    /// Number of warm-up rounds, which are not counted.
    pub warm_up_rounds: usize,
    /// Builds that were compared; the first is the baseline.
    pub builds: Vec<Contender>,
    /// Measured values of each phase, model and shape.
    pub figures: Vec<Figure>,
    /// Prefill and decode over all models and shapes, for each build except the baseline.
    pub overall: Vec<Overall>,
    /// Reason why no further round was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// Smallest difference that this number of rounds can show on this machine, as a fraction, for prefill and decode
    /// together. The difference is estimated from the scatter of the baseline and of the other builds' ratios to the
    /// baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<f64>,
    /// Load from other processes in each round.
    #[serde(default)]
    pub rounds: Vec<Round>,
    /// Rounds that were repeated because the baseline deviated too much from its own median.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<Dropped>,
}

/// Round that was repeated and does not count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropped {
    /// Number of counted rounds before the repeated round.
    pub after: usize,
    /// Geometric mean of the baseline's speeds in this round, in tokens per second.
    pub anchor: f64,
    /// Load from other processes during this round.
    pub machine: Round,
}

/// Build in a comparison.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Contender {
    /// Name of the build in the figures.
    pub name: String,
    /// Name of the profile in the build's record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Origin and version of the sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Version of llama.cpp.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llama_version: Option<String>,
    /// SHA-256 of the llama.cpp sources before the patches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_digest: Option<Sha256>,
    /// Commit of Anneal that made the build, followed by `-dirty` if tracked files differed from the commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anneal_commit: Option<String>,
    /// Hash of the build's plan, from its record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_hash: Option<Sha256>,
    /// Default settings that the profile gives its program; they are not part of the plan's hash.
    #[serde(default, skip_serializing_if = "Defaults::is_empty")]
    pub defaults: Defaults,
    /// Name and version of the C++ compiler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiler: Option<String>,
}

/// Results of one phase on one model in one shape.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// Phase that was measured.
    pub phase: Phase,
    /// File name of the model without its extension; `None` if the phase has no model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Shape of the run; `None` if the phase does not depend on the shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<RunShape>,
    /// Unit of medians and samples.
    pub unit: String,
    /// Kind of quantity, which determines whether more or less is better.
    pub quantity: Quantity,
    /// Results of the builds, in the order of [`Comparison::builds`].
    pub results: Vec<BuildOutcome>,
}

/// Result of one build.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BuildOutcome {
    /// Name of the build.
    pub build: String,
    /// Median of the samples.
    pub median: f64,
    /// Ratio to the baseline; `None` for the baseline itself. A ratio of times is inverted, so that a ratio above 1
    /// means faster for both speeds and times. A ratio of sizes is not inverted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Ratio>,
    /// Verdict on the ratio: faster, slower, smaller, larger, equal, no difference shown, or too few pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// One value per round. A file size does not vary and has a single value.
    pub samples: Vec<f64>,
}

/// Result of prefill and decode together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Overall {
    /// Name of the build.
    pub build: String,
    /// Median over the rounds, with its interval. The value of a round is the geometric mean of all ratios of the
    /// round.
    pub ratio: Ratio,
    /// Verdict on the ratio.
    pub verdict: String,
}

impl Contender {
    /// Creates the entry of the build `name`, with data from the build's record, if any.
    pub fn new(name: &str, record: Option<&BuildInfo>) -> Self {
        Self {
            name: name.to_string(),
            profile: record.map(|record| record.profile.clone()),
            source: record.map(|record| format!("{} {}", record.source.origin, record.source.version)),
            llama_version: record.map(|record| record.llama_version.clone()),
            source_digest: record.map(|record| record.source.digest.clone()),
            anneal_commit: record.and_then(|record| record.anneal_commit.clone()),
            plan_hash: record.map(|record| record.plan_hash.clone()),
            defaults: record.map(|record| record.defaults.clone()).unwrap_or_default(),
            compiler: record.map(|record| record.compiler.clone()),
        }
    }
}

/// Returns the figures of all samples in `ledger`.
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

/// Returns, for each build except the first, its combined ratio for prefill and decode.
pub(super) fn overall(ledger: &Ledger, builds: &[Contender]) -> Vec<Overall> {
    let of_build = |number: usize| {
        let ratios = ratios(ledger, number);
        let ratio = (!ratios.is_empty()).then(|| Ratio::of(&ratios))?;
        let verdict = Quantity::Rate.verdict(&ratio).to_string();
        Some(Overall { build: builds[number].name.clone(), ratio, verdict })
    };
    (1..builds.len()).filter_map(of_build).collect()
}

/// Returns, for each round, the speed of build `number` divided by the baseline's, each as a geometric mean over all
/// models and shapes.
pub(super) fn ratios(ledger: &Ledger, number: usize) -> Vec<f64> {
    speeds(ledger, number).iter().zip(speeds(ledger, 0)).map(|(own, baseline)| own / baseline).collect()
}

/// Returns [`Comparison::floor`]: the half-width of the interval that the scatter of the baseline's `speeds`
/// predicts, or the median half-width in `overall` if that is larger. The median is needed because the baseline's
/// scatter does not show disturbances between two of its runs.
pub fn floor(speeds: &[f64], overall: &[Overall]) -> Option<f64> {
    let half = |overall: &Overall| (overall.ratio.high - overall.ratio.low) / (2.0 * overall.ratio.median);
    let halves: Vec<f64> = overall.iter().map(half).filter(|half| half.is_finite()).collect();
    let seen = (!halves.is_empty()).then(|| measure::median(&halves));
    let expected = measure::floor(speeds, speeds.len())?;
    Some(seen.map_or(expected, |seen| seen.max(expected)))
}

/// Returns, for each round, the geometric mean of the prefill and decode speeds of build `number` over all models and
/// shapes.
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
    /// Returns the comparison as a table for the terminal.
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

    /// Returns remarks on the measurement: the smallest difference it can show, and the rounds that were repeated.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Some(floor) = self.floor.filter(|floor| floor.is_finite()) {
            remarks.push(format!(
                "on this machine, differences of {:.1} % or more can be shown with {}",
                100.0 * floor,
                count(self.rounds.len(), "round")
            ));
        }
        let rounds = match self.dropped.len() {
            0 => return remarks,
            1 => "1 round was".to_string(),
            many => format!("{many} rounds were"),
        };
        remarks
            .push(format!("{rounds} disturbed and repeated: the baseline deviated too much from its median"));
        remarks
    }

    /// Returns the number of cores that other processes kept busy: the median and the maximum over the rounds.
    pub fn disturbance(&self) -> Option<(f64, f64)> {
        let busy: Vec<f64> = self.rounds.iter().filter_map(|round| round.cores_busy_elsewhere).collect();
        (!busy.is_empty()).then(|| (median(&busy), busy.iter().copied().fold(0.0, f64::max)))
    }
}

impl Figure {
    /// Returns the phase and the size, such as `prefill 512`, `decode 64 @ 4096` or `tokenize`.
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

/// Returns the size of a file as the value of a figure.
pub(super) fn as_value(size: Bytes) -> f64 {
    size.0 as f64
}
