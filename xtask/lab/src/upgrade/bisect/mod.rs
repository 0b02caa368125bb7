//! Search for the version at which a speed fell or the output changed.
//!
//! Every version is built in its own folder and compared with the first version. The state is written after each
//! verdict, so a stopped search can be resumed.

mod judge;
mod search;
mod versions;

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base::exit;
use build::compare::{CandidateBuild, Contest, Phase, Provenance, RunShape};
use build::process;
use build::stages::ENGINE as ENGINE_STAGE;
use build::ui;
use build_info::{BuildInfo, Policy};
use llama_source::OtherSource;
use measure::Ratio;
use serde::{Deserialize, Serialize};

use self::judge::Ends;
use self::search::{SearchStep, VersionVerdict};
use super::candidate::Workshop;
use super::write_record;
pub use versions::between;

/// Exit code with which a command skips a version, as in `git bisect run`.
const SKIP: i32 = 125;

/// Text that the engines continue.
const PROMPT: &str = "The quick brown fox jumps over the lazy dog, and the five boxing wizards";

/// Number of tokens of the answers that are compared.
const ANSWER: &str = "64";

/// Maximum size of the state file in bytes.
const LARGEST: u64 = 16 << 20;

/// Criterion of a search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Criterion {
    /// Speed of a phase: prefill, decode or load.
    Speed(Phase),
    /// Greedy tokens of the model.
    Output,
    /// Exit code of a shell command: 0 is good, 125 skips the version, any other code is bad.
    Command(String),
}

impl Criterion {
    /// Returns the evidence for a good version, if the criterion is no speed.
    fn holds(&self) -> &'static str {
        if *self == Self::Output { "the same tokens as the good version" } else { "the command succeeds" }
    }

    /// Returns the evidence for a bad version, if the criterion is no speed.
    fn breaks(&self) -> &'static str {
        if *self == Self::Output { "other tokens than the good version" } else { "the command fails" }
    }
}

impl fmt::Display for Criterion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Criterion::Speed(phase) => f.pad(phase.name()),
            Criterion::Output => f.pad("output"),
            Criterion::Command(command) => f.pad(command),
        }
    }
}

impl FromStr for Criterion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "prefill" => Ok(Criterion::Speed(Phase::Prefill)),
            "decode" => Ok(Criterion::Speed(Phase::Decode)),
            "load" => Ok(Criterion::Speed(Phase::Load)),
            "output" => Ok(Criterion::Output),
            "" => {
                Err("the command is empty\nhint: use prefill, decode, load, output or a command".to_string())
            }
            command => Ok(Criterion::Command(command.to_string())),
        }
    }
}

impl TryFrom<String> for Criterion {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Criterion> for String {
    fn from(criterion: Criterion) -> Self {
        criterion.to_string()
    }
}

/// Search, with everything that determines its verdicts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchSettings {
    /// Name of the profile.
    pub profile: String,
    /// Versions in order, the good end first.
    pub versions: Vec<OtherSource>,
    /// Criterion of the verdicts.
    pub by: Criterion,
    /// Path of the model.
    pub model: PathBuf,
    /// Numbers of tokens.
    pub shape: RunShape,
    /// Maximum number of pairs of one measurement.
    pub pairs: usize,
}

/// State of a search, which is also its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BisectState {
    /// Settings. A state with different settings is not resumed.
    pub settings: SearchSettings,
    /// Ratio to the good end below which a version is bad.
    threshold: Option<f64>,
    /// Verdicts of the versions, in order.
    verdicts: Vec<Option<VersionVerdict>>,
    /// Evidence for each verdict: a ratio, or a reason for skipping.
    evidence: Vec<String>,
    /// Versions that contain the change, if the search is finished.
    found: Vec<OtherSource>,
}

impl BisectState {
    /// Returns the state in `path` if it has these settings, else a new state.
    pub fn resume(settings: SearchSettings, path: &Path) -> Self {
        let kept = base::read(path, LARGEST).ok().and_then(|text| serde_json::from_slice::<Self>(&text).ok());
        let count = settings.versions.len();
        let fits = |kept: &Self| {
            kept.settings == settings && kept.verdicts.len() == count && kept.evidence.len() == count
        };
        kept.filter(fits).unwrap_or_else(|| Self {
            threshold: None,
            verdicts: vec![None; count],
            evidence: vec![String::new(); count],
            found: Vec::new(),
            settings,
        })
    }

    /// Returns an upper bound of the remaining time: every build compiles llama.cpp in the time of the present build,
    /// and one build compiles all of the engine's crates. The others share these crates.
    pub fn estimate(&self, present: &BuildInfo) -> Duration {
        let seconds = |is_engine: bool| -> f64 {
            let stages = present.stages.iter().filter(|stage| (stage.name == ENGINE_STAGE) == is_engine);
            stages.map(|stage| stage.seconds.max(0.0)).sum()
        };
        let builds = self.builds();
        let all = seconds(false) * builds as f64 + if builds > 0 { seconds(true) } else { 0.0 };
        Duration::try_from_secs_f64(all).unwrap_or(Duration::MAX)
    }

    /// Returns the largest number of builds that are still needed if no version is skipped.
    pub fn builds(&self) -> usize {
        let known = self.verdicts.iter().flatten().count();
        search::expected_measurements(self.verdicts.len()).saturating_sub(known)
    }

    /// Runs the search, and writes the state to `path` at the start and after each verdict.
    ///
    /// # Errors
    /// If the ends do not differ in the expected direction, an end cannot be built, verdicts contradict each other, or
    /// the user stops the search.
    pub fn run(&mut self, workshop: &Workshop, path: &Path) -> Result<()> {
        self.keep(path)?;
        let last = self.verdicts.len() - 1;
        let cannot = |error: anyhow::Error, end: &str| match process::interrupted() {
            true => error,
            false => error.context(format!("cannot build the {end} version")),
        };
        let good = self.built(0, workshop).map_err(|error| cannot(error, "good"))?;
        if self.verdicts[0].is_none() || self.verdicts[last].is_none() {
            let bad = self.built(last, workshop).map_err(|error| cannot(error, "bad"))?;
            self.judge_ends(&good, &bad, workshop)?;
            self.keep(path)?;
        }
        loop {
            match search::next(&self.verdicts).context("the ends of the search have no verdict")? {
                SearchStep::Measure(number) => {
                    let (verdict, evidence) = self.measure(number, &good, workshop)?;
                    let version = &self.settings.versions[number];
                    workshop.ui.done(&verdict.to_string(), format_args!("{version}: {evidence}"));
                    (self.verdicts[number], self.evidence[number]) = (Some(verdict), evidence);
                    self.keep(path)?;
                }
                SearchStep::Found(numbers) => {
                    self.found =
                        numbers.iter().map(|number| self.settings.versions[*number].clone()).collect();
                    return self.keep(path);
                }
                SearchStep::Contradiction { bad, good } => {
                    let versions = &self.settings.versions;
                    bail!(
                        "{} is bad, but the later version {} is good: there was more than one change, or noise caused \
                         a wrong verdict\nhint: search a shorter range, or remove {} and try again on a quieter \
                         machine",
                        versions[bad],
                        versions[good],
                        path.display()
                    );
                }
            }
        }
    }

    fn keep(&self, path: &Path) -> Result<()> {
        write_record(path, self)
    }

    /// Builds version `number`.
    fn built(&self, number: usize, workshop: &Workshop) -> Result<CandidateBuild> {
        let version = &self.settings.versions[number];
        workshop.ui.say(format_args!(
            "version {} of {}: {version}",
            number + 1,
            self.settings.versions.len()
        ));
        let candidate = workshop.fetch(version)?;
        // Found within seconds, and named more clearly than by the compiler.
        if let Some(obstacle) = workshop.check(&candidate)?.obstacles().first() {
            bail!("{version}: {obstacle}");
        }
        CandidateBuild::at(&format!("{number}"), &workshop.engine(&candidate)?)
    }

    /// Confirms that the ends differ in the expected direction.
    fn judge_ends(&mut self, good: &CandidateBuild, bad: &CandidateBuild, workshop: &Workshop) -> Result<()> {
        let last = self.verdicts.len() - 1;
        let (evidence, is_worse) = match &self.settings.by {
            Criterion::Speed(phase) => {
                let (mut ratio, samples) = self.ratio(*phase, good, bad, None, workshop)?;
                if matches!(judge::ends(&ratio), Ends::Same | Ends::Unclear) {
                    ratio = self.ratio(*phase, good, bad, Some(samples), workshop)?.0;
                }
                let phase = phase.name();
                match judge::ends(&ratio) {
                    Ends::Worse { threshold } => self.threshold = Some(threshold),
                    Ends::Better => {
                        bail!(
                            "{phase} is faster in the bad version: {ratio}\nhint: swap the ends of the range"
                        )
                    }
                    Ends::Unclear => {
                        return Err(exit::try_again(format!(
                            "the difference in {phase} between the ends is too uncertain: {ratio}\nhint: raise --pairs, \
                             or try again on a quieter machine"
                        )));
                    }
                    Ends::Same => {
                        return Err(exit::try_again(format!(
                            "{phase} shows no difference between the ends: {ratio}\nhint: raise --pairs, or try again \
                             on a quieter machine"
                        )));
                    }
                }
                (ratio.to_string(), true)
            }
            _ => {
                let (first, second) = (self.passes(good, good)?, self.passes(good, bad)?);
                let Some(true) = first else {
                    bail!("the good version fails the criterion {}", self.settings.by)
                };
                (self.settings.by.breaks().to_string(), second == Some(false))
            }
        };
        if !is_worse {
            bail!(
                "both ends give the same result for the criterion {}\nhint: choose other ends",
                self.settings.by
            );
        }
        (self.verdicts[0], self.evidence[0]) = (Some(VersionVerdict::Good), "the good end".to_string());
        (self.verdicts[last], self.evidence[last]) = (Some(VersionVerdict::Bad), evidence);
        Ok(())
    }

    /// Builds and judges one version. A version without a clear verdict is measured again, and skipped if the verdict
    /// is still unclear.
    fn measure(
        &self,
        number: usize,
        good: &CandidateBuild,
        workshop: &Workshop,
    ) -> Result<(VersionVerdict, String)> {
        let build = match self.built(number, workshop) {
            Ok(build) => build,
            Err(error) if process::interrupted() => return Err(error),
            Err(error) => {
                let why = format!("{error:#}");
                let why = why.lines().next().unwrap_or_default().to_string();
                return Ok((VersionVerdict::Skipped, format!("cannot be built: {why}")));
            }
        };
        let Criterion::Speed(phase) = &self.settings.by else {
            return Ok(match self.passes(good, &build)? {
                Some(true) => (VersionVerdict::Good, self.settings.by.holds().to_string()),
                Some(false) => (VersionVerdict::Bad, self.settings.by.breaks().to_string()),
                None => (VersionVerdict::Skipped, "the command skips this version".to_string()),
            });
        };
        let threshold = self.threshold.context("the state has no threshold")?;
        let (mut ratio, samples) = self.ratio(*phase, good, &build, None, workshop)?;
        if judge::version(&ratio, threshold).is_none() {
            ratio = self.ratio(*phase, good, &build, Some(samples), workshop)?.0;
        }
        let verdict = judge::version(&ratio, threshold).unwrap_or(VersionVerdict::Skipped);
        Ok((verdict, format!("{ratio}, threshold {threshold:.3}")))
    }

    /// Races `build` against `good` in `phase`. Samples of an earlier race are added.
    fn ratio(
        &self,
        phase: Phase,
        good: &CandidateBuild,
        build: &CandidateBuild,
        earlier: Option<[Vec<f64>; 2]>,
        workshop: &Workshop,
    ) -> Result<(Ratio, [Vec<f64>; 2])> {
        let settings = &self.settings;
        let contest = Contest {
            builds: &[good.clone(), build.clone()],
            models: std::slice::from_ref(&settings.model),
            shapes: &[settings.shape],
            phases: &[phase],
            threads: build_info::threads::budget(&workshop.host, Policy::Balanced).decode,
            pairs: settings.pairs,
            precision: 0.0,
            text: None,
            raw: None,
            provenance: Provenance::now(&workshop.host, "cargo xtask upgrade --bisect".to_string()),
            note: None,
        };
        let comparison = contest.run(workshop.ui)?;
        let figure = comparison.figures.first().context("the race has no measurements")?;
        let mut samples = earlier.unwrap_or_default();
        for (all, result) in samples.iter_mut().zip(&figure.results) {
            all.extend(&result.samples);
        }
        Ok((phase.quantity().ratio(&samples[1], &samples[0]), samples))
    }

    /// Returns true if `build` passes the criterion, `None` to skip it.
    fn passes(&self, good: &CandidateBuild, build: &CandidateBuild) -> Result<Option<bool>> {
        match &self.settings.by {
            Criterion::Command(command) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", command]).env("ANNEAL", &build.path).env("MODEL", &self.settings.model);
                let Output { status, stderr, .. } = process::output(&mut shell)?;
                // A closed standard error must not stop the search.
                let _ = std::io::stderr().write_all(&stderr);
                let code = status.code().with_context(|| format!("a signal ended the command: {status}"))?;
                Ok((code != SKIP).then_some(code == 0))
            }
            _ => Ok(Some(self.tokens(good)? == self.tokens(build)?)),
        }
    }

    /// Returns the greedy tokens of `build`.
    fn tokens(&self, build: &CandidateBuild) -> Result<Vec<i64>> {
        #[derive(Deserialize)]
        struct Answer {
            tokens: Vec<i64>,
        }
        let mut command = Command::new(&build.path);
        command
            .args(["run", "--json", "--greedy", "--ignore-eos", "-n", ANSWER, "-p", PROMPT, "-m"])
            .arg(&self.settings.model);
        let output = process::output(&mut command)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
            bail!("{} failed: {said}", build.path.display());
        }
        let answer: Answer =
            serde_json::from_slice(&output.stdout).context("cannot parse the output of anneal run --json")?;
        Ok(answer.tokens)
    }
}

impl fmt::Display for BisectState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.found.iter().map(OtherSource::to_string).collect();
        match names.as_slice() {
            [] => writeln!(f, "not finished")?,
            [one] => writeln!(f, "{} changed in {one}", self.settings.by)?,
            many => {
                let by = &self.settings.by;
                writeln!(f, "{by} changed in one of {}; skipped versions hide which", many.join(", "))?;
            }
        }
        let rows = self.settings.versions.iter().zip(&self.verdicts).zip(&self.evidence);
        let rows = rows.filter_map(|((version, verdict), evidence)| {
            Some(vec![version.to_string(), (*verdict)?.to_string(), evidence.clone()])
        });
        let evidence = match self.settings.by {
            Criterion::Speed(_) => "ratio to the good version [95 % interval]",
            _ => "evidence",
        };
        let table = ui::columns(&["version", "verdict", evidence], rows).to_string();
        // Remove the spaces that pad the last column.
        writeln!(f)?;
        table.lines().try_for_each(|line| writeln!(f, "{}", line.trim_end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(by: &str) -> SearchSettings {
        SearchSettings {
            profile: "native".to_string(),
            versions: ["0.1.1", "0.1.2", "0.1.3"].map(|text| text.parse().unwrap()).to_vec(),
            by: by.parse().unwrap(),
            model: PathBuf::from("m.gguf"),
            shape: RunShape { prompt: 16, generate: 50, depth: 0 },
            pairs: 6,
        }
    }

    #[test]
    fn a_stopped_search_resumes_only_with_its_own_settings() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("upgrade/bisect.json");
        let mut state = BisectState::resume(settings("decode"), &path);
        assert_eq!(state.verdicts, [None; 3]);
        state.verdicts[0] = Some(VersionVerdict::Good);
        state.verdicts[2] = Some(VersionVerdict::Bad);
        state.threshold = Some(0.95);
        state.keep(&path).unwrap();
        let again = BisectState::resume(settings("decode"), &path);
        assert_eq!(
            (again.verdicts, again.threshold, again.found.len()),
            (state.verdicts.clone(), Some(0.95), 0)
        );
        assert_eq!(BisectState::resume(settings("test -x $ANNEAL"), &path).verdicts, [None; 3]);
        // Damaged or foreign files are not a valid state.
        for text in ["", "{", "{\"verdicts\": []}"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(BisectState::resume(settings("decode"), &path).verdicts, [None; 3], "{text}");
        }
    }

    #[test]
    fn a_criterion_is_a_figure_or_a_command() {
        for text in ["prefill", "decode", "load", "output", "test -x $ANNEAL"] {
            assert_eq!(text.parse::<Criterion>().map(|by| by.to_string()).as_deref(), Ok(text));
        }
        assert_eq!("decode".parse(), Ok(Criterion::Speed(Phase::Decode)));
        assert_eq!("tokenize".parse(), Ok(Criterion::Command("tokenize".to_string())));
        assert!("".parse::<Criterion>().is_err());
    }
}
