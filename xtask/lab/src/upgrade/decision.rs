//! Decision on an upgrade: output and speed by the rules of `validate`, and load, memory and speed at depth.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use build::compare::comparison::Figure;
use build::compare::{CandidateBuild, Comparison, Contest, Phase, Provenance, Quantity, RunShape};
use build::scratch::Scratch;
use build::ui::Ui;
use build::workspace::Workspace;
use build_info::{Host, Policy};
use measure::Objective;
use serde::{Deserialize, Serialize};

use super::engine_tests::EngineTests;
use super::source_check::{ShortCheck, SourceCheck};
use crate::validate::{
    Check, CheckState, DISTURBED, Evidence, Reasons, Record, Rules, Side, Sizes, Subject, ValidateOptions,
    Validation, Verdict,
};

/// Number of tokens of the answers that are compared.
const ANSWER: u32 = 64;

/// Additional CPU time, GPU idleness and memory of the new version that is accepted, as a fraction.
const TOLERANCE: f64 = 0.02;

/// Half-width of a ratio's interval at which measuring stops.
const PRECISION: f64 = 0.01;

/// Half-width of a load time's interval above which the result is unclear. Load times vary more than speeds, and a
/// program loads a model only once.
const LOAD_DISTURBED: f64 = 2.0 * DISTURBED;

/// Phases that are measured at depth. Load and memory are measured in the same runs.
const FURTHER: [Phase; 4] = [Phase::Prefill, Phase::Decode, Phase::Load, Phase::PeakMemory];

/// Sizes of the comparison between two versions.
#[derive(Clone, Debug)]
pub struct RaceSettings {
    /// Path of the model.
    pub model: PathBuf,
    /// Kind of work, which sets the token counts.
    pub objective: Objective,
    /// Number of tokens in the context when the second part of the comparison begins.
    pub depth: u32,
    /// Maximum number of pairs per phase.
    pub pairs: usize,
}

/// Outcome of an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// The new version replaced the present version.
    Kept,
    /// The present version stays.
    Left,
    /// The present version stays, because the measurements were inconclusive.
    CannotTell,
}

/// Record of an upgrade.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpgradeRecord {
    /// Date, command and machine.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// Decision.
    pub decision: Decision,
    /// Reasons for the decision.
    pub reasons: Vec<String>,
    /// Patches, C API and shim.
    pub source: SourceCheck,
    /// Tests of the engine with the other version; `None` if they did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_tests: Option<EngineTests>,
    /// Comparison of output and speed, with the checks of the second part; `None` if there was no build.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation: Option<Record>,
    /// Speed at depth, load and memory; `None` if the first part already decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub further: Option<Comparison>,
}

impl UpgradeRecord {
    /// Creates the record of an upgrade that failed before the race.
    pub fn left(
        provenance: Provenance,
        source: SourceCheck,
        engine_tests: Option<EngineTests>,
        reasons: Vec<String>,
    ) -> Self {
        let decision = Decision::Left;
        Self { provenance, decision, reasons, source, engine_tests, validation: None, further: None }
    }

    /// Races `builds`, the present and the other version, and decides.
    ///
    /// # Errors
    /// If the present build does not work, or the user stops the race.
    pub fn race(
        provenance: Provenance,
        source: SourceCheck,
        builds: &[CandidateBuild; 2],
        settings: &RaceSettings,
        host: &Host,
        workspace: &Workspace,
        ui: &Ui,
    ) -> Result<Self> {
        let mut record = validated(provenance.clone(), builds, settings, workspace, ui)?;
        let mut further = None;
        if record.verdict != Some(Verdict::NotAccepted) {
            let comparison = at_depth(provenance.clone(), builds, settings, host, ui)?;
            record.checks.extend(comparison.figures.iter().filter_map(check));
            record.verdict = Some(Verdict::of(&record.checks));
            record.reasons = Verdict::reasons(&record.checks);
            further = Some(comparison);
        }
        let (decision, reasons) = decide(&record);
        let validation = Some(record);
        Ok(Self { provenance, decision, reasons, source, engine_tests: None, validation, further })
    }
}

/// Compares output and speed at depth 0 by the rules of `validate`. A version that is equally fast is accepted.
fn validated(
    provenance: Provenance,
    builds: &[CandidateBuild; 2],
    settings: &RaceSettings,
    workspace: &Workspace,
    ui: &Ui,
) -> Result<Record> {
    let [a, b] = builds.clone();
    let (a, b) = (Subject::new(Side::A, a, Vec::new())?, Subject::new(Side::B, b, Vec::new())?);
    let RunShape { prompt, generate, .. } = settings.shape(0);
    let options = ValidateOptions {
        model: settings.model.clone(),
        sizes: Sizes {
            prompt,
            generate,
            pairs: settings.pairs,
            precision: PRECISION,
            settles: measure::gpu::SETTLES,
        },
        phases: vec![Phase::Prefill, Phase::Decode],
        rules: Rules {
            decisive: Vec::new(),
            accept_equal: true,
            cpu_tolerance: TOLERANCE,
            gpu_tolerance: TOLERANCE,
        },
        answer: ANSWER,
        long: None,
        keep_going: false,
    };
    let scratch = Scratch::make(workspace, "upgrade")?;
    let driver = host::nvml::driver_seems_loaded().then_some(host::nvml::LibrarySource::System);
    Validation { a: &a, b: &b, options: &options, out: None, scratch: scratch.path(), driver, provenance }
        .run(ui)
}

/// Compares speed at depth, load time and peak memory.
fn at_depth(
    provenance: Provenance,
    builds: &[CandidateBuild; 2],
    settings: &RaceSettings,
    host: &Host,
    ui: &Ui,
) -> Result<Comparison> {
    let contest = Contest {
        builds,
        models: std::slice::from_ref(&settings.model),
        shapes: &[settings.shape(settings.depth)],
        phases: &FURTHER,
        threads: build_info::threads::budget(host, Policy::Balanced).decode,
        pairs: settings.pairs,
        precision: PRECISION,
        text: None,
        raw: None,
        provenance,
        note: None,
    };
    contest.run(ui)
}

impl RaceSettings {
    /// Returns the token counts at `depth`. `validate` needs at least 50 generated tokens.
    pub fn shape(&self, depth: u32) -> RunShape {
        let (prompt, generate) = (self.objective.usual_prompt(), self.objective.usual_answer());
        RunShape { prompt: prompt.clamp(16, 1 << 16), generate: generate.clamp(50, 1 << 16), depth }
    }
}

/// Returns the check of a figure of the second part, by the rules of `validate`. `None` if the figure has no ratio.
fn check(figure: &Figure) -> Option<Check> {
    let [a, b] = figure.results.as_slice() else { return None };
    let ratio = b.ratio?;
    let half = (ratio.high - ratio.low) / 2.0;
    let disturbed = if figure.phase == Phase::Load { LOAD_DISTURBED } else { DISTURBED };
    let wide = half.is_nan() || half > disturbed || ratio.pairs < measure::FEWEST_PAIRS;
    let size = figure.quantity == Quantity::Size;
    let (state, word) = match ratio.verdict() {
        "lower" if !size => (CheckState::Failed, "slower"),
        "higher" if !size => (CheckState::Passed, "faster"),
        _ if size && ratio.pairs >= measure::FEWEST_PAIRS && ratio.low > 1.0 + TOLERANCE => {
            (CheckState::Failed, "larger")
        }
        _ if wide => (CheckState::Unclear, "disturbed"),
        _ => (CheckState::Told, "no worse"),
    };
    let title = figure.title();
    let check = Check::new(title.clone(), state, format!("{ratio} {word}"))
        .with(figure.phase.show(a.median), figure.phase.show(b.median));
    Some(match state {
        CheckState::Failed => check.because(format!("{title} is {word}: {ratio}")),
        CheckState::Unclear => {
            check.because(format!("{title} is known only to within {:.0} %: {ratio}", 100.0 * half))
        }
        _ => check,
    })
}

fn decide(record: &Record) -> (Decision, Vec<String>) {
    let reasons = record.reasons.clone();
    match record.verdict {
        Some(Verdict::Accepted) => {
            (Decision::Kept, vec!["the output is correct, and no measured figure is worse".to_string()])
        }
        Some(Verdict::NotAccepted) => (Decision::Left, reasons),
        Some(Verdict::CannotTell) | None => (Decision::CannotTell, reasons),
    }
}

impl fmt::Display for UpgradeRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (&self.source.from, &self.source.to);
        match self.decision {
            Decision::Kept => writeln!(f, "kept: {} {} replaces {}", to.origin, to.version, from.version)?,
            Decision::Left => writeln!(f, "not kept: {} {} stays", from.origin, from.version)?,
            Decision::CannotTell => {
                writeln!(
                    f,
                    "cannot tell: {} {} stays until the machine is quieter",
                    from.origin, from.version
                )?;
            }
        }
        write!(f, "{}", Body(self))
    }
}

/// Record without its decision: reasons, sources and evidence.
pub struct Body<'a>(pub &'a UpgradeRecord);

impl fmt::Display for Body<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UpgradeRecord { reasons, source, engine_tests, validation, .. } = self.0;
        write!(f, "{}\n{}", Reasons(reasons), ShortCheck(source))?;
        if let Some(tests) = engine_tests {
            writeln!(f, "{tests}")?;
        }
        match validation {
            Some(record) => write!(f, "\n{}", Evidence(record)),
            None => Ok(()),
        }
    }
}

/// Returns the path of the record of the upgrade to `version`.
pub fn record_path(workspace: &Workspace, version: &str) -> PathBuf {
    let plain: String = version
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() || letter == '.' { letter } else { '-' })
        .collect();
    workspace.anneal().join("upgrade").join(format!("to-{}.json", Path::new(&plain).display()))
}

#[cfg(test)]
mod tests {
    use build::compare::comparison::BuildOutcome;
    use measure::Ratio;

    use super::*;

    fn figure(phase: Phase, ratio: (f64, f64, f64), pairs: usize) -> Figure {
        let (low, median, high) = ratio;
        let outcome = |ratio| BuildOutcome {
            build: "x".to_string(),
            median: 100.0,
            ratio,
            verdict: None,
            samples: vec![100.0],
        };
        let quantity = phase.quantity();
        let results = vec![outcome(None), outcome(Some(Ratio { median, low, high, pairs }))];
        Figure { phase, model: None, shape: None, unit: String::new(), quantity, results }
    }

    #[test]
    fn a_figure_fails_only_if_its_whole_interval_is_worse() {
        use CheckState::{Failed, Passed, Told, Unclear};
        let cases = [
            (Phase::Prefill, (0.93, 0.95, 0.97), 10, Failed),
            (Phase::Decode, (1.02, 1.05, 1.08), 10, Passed),
            (Phase::Decode, (0.98, 0.99, 1.01), 10, Told),
            (Phase::Decode, (0.85, 0.97, 1.02), 10, Unclear),
            (Phase::Decode, (0.93, 0.95, 0.97), 5, Unclear),
            (Phase::Load, (0.80, 0.85, 0.90), 10, Failed),
            (Phase::Load, (0.935, 0.983, 1.037), 20, Told),
            (Phase::Load, (0.85, 0.97, 1.06), 20, Unclear),
            (Phase::PeakMemory, (1.03, 1.04, 1.05), 10, Failed),
            (Phase::PeakMemory, (1.00, 1.01, 1.015), 10, Told),
            (Phase::PeakMemory, (0.90, 0.91, 0.92), 10, Told),
            (Phase::PeakMemory, (f64::NAN, f64::NAN, f64::NAN), 0, Unclear),
        ];
        for (phase, ratio, pairs, expected) in cases {
            let check = check(&figure(phase, ratio, pairs)).unwrap();
            assert_eq!(check.state, expected, "{phase} {ratio:?} {pairs}");
            assert_eq!(check.reason.is_some(), matches!(expected, Failed | Unclear), "{phase} {ratio:?}");
        }
    }

    #[test]
    fn the_record_of_a_version_is_below_the_folder_of_upgrades() {
        let workspace = Workspace::at(Path::new("/w"));
        for (version, expected) in [("0.1.160", "to-0.1.160.json"), ("../../x", "to-..-..-x.json")] {
            let path = record_path(&workspace, version);
            assert_eq!(path, workspace.anneal().join("upgrade").join(expected));
        }
    }

    #[test]
    fn a_race_of_short_answers_generates_enough_tokens() {
        for (objective, prompt, generate) in [("chat", 128, 512), ("latency", 512, 50), ("rag", 2048, 256)] {
            let settings = RaceSettings {
                model: PathBuf::new(),
                objective: objective.parse().unwrap(),
                depth: 9,
                pairs: 6,
            };
            assert_eq!(settings.shape(9), RunShape { prompt, generate, depth: 9 }, "{objective}");
        }
    }
}
