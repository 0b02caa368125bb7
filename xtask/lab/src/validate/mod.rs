//! Validation: decides whether B may replace A.
//!
//! Output is checked first, because a fast engine with wrong output is useless. Then speed and CPU time of each phase
//! are measured with interleaved runs of A and B, followed by a long run of each if requested.
//! docs/src/tune/validating.md describes the criteria.

mod divergence;
mod engine;
mod gpu;
mod long;
mod output;
mod page;
mod race;
mod speed;
mod steady;
pub mod steps;
mod subject;
#[cfg(test)]
mod testing;
mod verdict;

use std::path::{Path, PathBuf};

use anyhow::Result;
use host::nvml::LibrarySource;
use measure::conditions::{self, Condition};
use serde::{Deserialize, Serialize};

use build::compare::{Phase, Provenance};
use build::process;
use build::ui::Ui;
pub use page::{Evidence, Page, Reasons};
pub use race::Sizes;
pub(crate) use speed::DISTURBED;
pub use speed::Rules;
pub use subject::{Side, Subject, flags};
pub use verdict::{Check, CheckState, Verdict};

use self::engine::Broken;
use self::long::{Long, Text};
use self::output::{Output, Talk};
use self::speed::Speed;
use self::subject::{About, wrong_flags};

/// Settings of a validation.
#[derive(Clone, Debug)]
pub struct ValidateOptions {
    /// Path of the model.
    pub model: PathBuf,
    /// Numbers of tokens and rounds of the race.
    pub sizes: Sizes,
    /// Phases to measure.
    pub phases: Vec<Phase>,
    /// Criteria for acceptance.
    pub rules: Rules,
    /// Number of tokens of the answers that are compared.
    pub answer: u32,
    /// Number of tokens of the long run; `None` for no long run.
    pub long: Option<u32>,
    /// True to continue after B has failed a check.
    pub keep_going: bool,
}

/// Record of a validation, with all samples.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Date, command and machine of the validation.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// Verdict on B; `None` until it is known.
    pub verdict: Option<Verdict>,
    /// Reasons for the verdict.
    pub reasons: Vec<String>,
    /// Reason why the record is incomplete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// Name of the model's file, without extension.
    pub model: String,
    /// Builds with their flags, if inspected.
    pub subjects: Vec<About>,
    /// Conditions that disturb the measurement.
    pub conditions: Vec<Condition>,
    /// Checks in the order of the page.
    pub checks: Vec<Check>,
    /// Comparison of the engines' output.
    pub output: Option<Output>,
    /// Speed of each phase.
    pub speed: Vec<Speed>,
    /// Monitored decode of each side, if a GPU computes and no long run was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steady: Option<Long>,
    /// Result of the long run.
    pub long: Option<Long>,
}

/// Inputs of a validation.
pub struct Validation<'a> {
    /// Baseline.
    pub a: &'a Subject,
    /// Candidate to replace A.
    pub b: &'a Subject,
    /// Settings of the validation.
    pub options: &'a ValidateOptions,
    /// Path of the record, which is updated during the run.
    pub out: Option<&'a Path>,
    /// Folder for files that the engines read and write.
    pub scratch: &'a Path,
    /// NVIDIA driver, if loaded.
    pub driver: Option<LibrarySource>,
    /// Provenance for the record.
    pub provenance: Provenance,
}

impl Validation<'_> {
    /// Runs the validation.
    ///
    /// # Errors
    /// If A does not work, or the user stopped the validation. If B does not work, B is not accepted, which is not
    /// an error.
    pub fn run(&self, ui: &Ui) -> Result<Record> {
        let mut record = Record {
            provenance: self.provenance.clone(),
            verdict: None,
            reasons: Vec::new(),
            stopped: Some("the run was not finished when this file was written".to_string()),
            model: self.options.model.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            subjects: Vec::new(),
            conditions: Vec::new(),
            checks: Vec::new(),
            output: None,
            speed: Vec::new(),
            steady: None,
            long: None,
        };
        let done = self.parts(&mut record, ui);
        record.checks = self.checks(&record);
        match done {
            Ok(()) => {}
            Err(error) => match error.downcast_ref::<Broken>() {
                Some(broken) if broken.side == Side::B && !broken.is_usage() => {
                    let check = Check::new("B runs", CheckState::Failed, "broken".to_string());
                    record.checks.push(check.because(format!("B broke: {}", strip(&broken.to_string()))));
                }
                _ => return Err(self.keep_part(wrong_flags(error), record, ui)),
            },
        }
        record.verdict = Some(Verdict::of(&record.checks));
        record.reasons = Verdict::reasons(&record.checks);
        record.stopped = None;
        self.keep_or_warn(&record, ui);
        Ok(record)
    }

    fn parts(&self, record: &mut Record, ui: &Ui) -> Result<()> {
        let ValidateOptions { model, sizes, phases, answer, long, keep_going, .. } = self.options;
        let subjects = [self.a, self.b];
        for subject in subjects {
            record.subjects.push(subject.look()?);
        }
        record.conditions = conditions::look();
        record.conditions.iter().for_each(|condition| ui.warn(condition));

        let talk = Talk { subjects, model, tokens: *answer, folder: self.scratch };
        let mut progress = ui.progress("output");
        let said = talk.run(|done, total| progress.step(done, total, "runs"));
        progress.finish();
        let prompt_tokens = record.output.insert(said?).prompt_tokens;
        for &phase in phases {
            if self.has_failed(record) && !keep_going {
                return Ok(());
            }
            self.keep_or_warn(record, ui);
            let mut progress = ui.progress(phase.name());
            let (mut speed, driver) = (None, self.driver.as_ref());
            let raced = race::race(phase, subjects, model, sizes, driver, &mut speed, |done, total| {
                progress.step(done, total, "rounds");
            });
            progress.finish();
            record.speed.extend(speed);
            raced?;
        }
        let computes = [0, 1].iter().any(|side| gpu::computes(&record.speed, &record.subjects, *side));
        let driver = self.driver.as_ref().filter(|_| computes);
        // After a failure, skip the long run, because the verdict is already known.
        if (long.is_none() && driver.is_none()) || (self.has_failed(record) && !keep_going) {
            return Ok(());
        }
        self.keep_or_warn(record, ui);
        let prompt = self.scratch.join("prompt.txt");
        let tokens = long.unwrap_or_else(|| steady::tokens(model, prompt_tokens));
        let text = Text { model, prompt: (&prompt, prompt_tokens), tokens, driver };
        let mut progress = ui.progress(if long.is_some() { "long run" } else { "steady decode" });
        let tell = |done, all| progress.step(done, all, "runs");
        let ran = match long {
            Some(_) => long::run(subjects, text, &mut record.long, tell),
            None => long::once(subjects, text, &mut record.steady, tell),
        };
        progress.finish();
        ran
    }

    fn has_failed(&self, record: &Record) -> bool {
        self.checks(record).iter().any(|check| check.state == CheckState::Failed)
    }

    fn checks(&self, record: &Record) -> Vec<Check> {
        let mut checks = devices(&record.subjects);
        checks.extend(record.output.iter().flat_map(Output::checks));
        // Until all phases are measured, a later phase may still be faster.
        let all = record.speed.len() == self.options.phases.len();
        let speed = speed::checks(&record.speed, &self.options.rules);
        checks.extend(speed.into_iter().filter(|check| all || check.name != "faster"));
        let (subjects, driver) = (&record.subjects, self.driver.is_some());
        checks.extend(gpu::checks(&record.speed, subjects, driver, &self.options.rules));
        checks.extend(record.steady.iter().chain(&record.long).flat_map(steady::checks));
        checks.extend(record.long.iter().flat_map(Long::checks));
        checks
    }

    fn keep(&self, record: &Record) -> Result<()> {
        match self.out {
            Some(path) => build::fs::write_atomically(path, &serde_json::to_vec_pretty(record)?),
            None => Ok(()),
        }
    }

    /// Writes the record. If writing fails, only warns: the measurements continue, and the page is still printed.
    fn keep_or_warn(&self, record: &Record, ui: &Ui) {
        if let Err(error) = self.keep(record) {
            ui.warn(format_args!("cannot write the record: {error:#}"));
        }
    }

    /// Adds the path of the file with the measurements so far to `error`. If the user specified no file, prints the
    /// measurements.
    fn keep_part(&self, error: anyhow::Error, mut record: Record, ui: &Ui) -> anyhow::Error {
        let why =
            if process::interrupted() { "stopped by the user".to_string() } else { format!("{error:#}") };
        record.stopped = Some(why.lines().next().unwrap_or_default().to_string());
        let Some(path) = self.out else {
            if record.output.is_some() {
                ui.say(Page(&record));
            }
            return error;
        };
        match self.keep(&record) {
            Ok(()) => {
                error.context(format!("not finished; the measurements so far are in {}", path.display()))
            }
            Err(second) => {
                error.context(format!("not finished, and the measurements could not be written: {second:#}"))
            }
        }
    }
}

/// Removes the side from a message such as `B: why`, because the caller already shows the side.
fn strip(text: &str) -> &str {
    text.split_once(": ").map_or(text, |(_, why)| why)
}

/// Checks that B finds every device that A computes on. Without a device, the CPU would compute the model without a
/// warning.
fn devices(subjects: &[About]) -> Vec<Check> {
    let [a, b] = subjects else { return Vec::new() };
    let Some((of_a, of_b)) = a.gpus.as_ref().zip(b.gpus.as_ref()) else {
        let unclear = Check::new("devices", CheckState::Unclear, "unknown".to_string());
        return vec![unclear.because(
            "A or B supports GPUs but is too old to report its devices: build it again".to_string(),
        )];
    };
    let mut left = of_b.clone();
    let mut lost = of_a.clone();
    lost.retain(|device| match left.iter().position(|other| other == device) {
        Some(at) => {
            left.remove(at);
            false
        }
        None => true,
    });
    let show = |gpus: &[String]| match gpus.len() {
        0 => "CPU".to_string(),
        1 => "CPU, 1 GPU".to_string(),
        n => format!("CPU, {n} GPUs"),
    };
    let check =
        |state, said: &str| Check::new("devices", state, said.to_string()).with(show(of_a), show(of_b));
    if lost.is_empty() {
        return vec![check(CheckState::Passed, "none is missing")];
    }
    let reason = format!("B falls back to the CPU: it does not find {}, which A uses", lost.join(", "));
    vec![check(CheckState::Failed, "CPU fallback").because(reason)]
}

#[cfg(test)]
fn tests_record() -> Record {
    let text = String::from;
    Record {
        provenance: Provenance { date: text("2026-01-01"), command: text("x"), machine: text("m") },
        verdict: None,
        reasons: Vec::new(),
        stopped: None,
        model: text("tiny"),
        subjects: Vec::new(),
        conditions: Vec::new(),
        checks: Vec::new(),
        output: None,
        speed: Vec::new(),
        steady: None,
        long: None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use build::ui::Global;

    use super::*;

    fn about(gpus: Option<&[&str]>) -> About {
        let build = build::compare::comparison::Contender::new("x", None);
        let gpus = gpus.map(|gpus| gpus.iter().map(|gpu| gpu.to_string()).collect());
        About { build, flags: Vec::new(), gpus }
    }

    #[test]
    fn a_device_that_b_lacks_is_a_fallback() {
        type Gpus<'a> = Option<&'a [&'a str]>;
        let cases: [(Gpus<'_>, Gpus<'_>, CheckState); 6] = [
            (Some(&[]), Some(&[]), CheckState::Passed),
            (Some(&["H100"]), Some(&["H100"]), CheckState::Passed),
            (Some(&[]), Some(&["H100"]), CheckState::Passed),
            (Some(&["H100"]), Some(&[]), CheckState::Failed),
            (Some(&["H100", "H100"]), Some(&["H100"]), CheckState::Failed),
            (None, Some(&[]), CheckState::Unclear),
        ];
        for (a, b, expected) in cases {
            assert_eq!(devices(&[about(a), about(b)])[0].state, expected, "{a:?} {b:?}");
        }
    }

    /// Runs a whole validation, with a script as the driver. B's engine writes the driver's readings for B's runs.
    #[test]
    fn gpus_are_judged_with_everything_else() {
        const CARD: &str =
            "device\n name NVIDIA H100\n total 81559\n used 900\n mhz 1980\n milliwatts 400000";
        let told = |rest: &str| format!("{CARD}\n pcie-received 800\n pcie-sent 12\n throttling 4\n{rest}\n");
        let busy = |percent: u32| told(&format!(" utilisation {percent}"));
        let lost = "device\n name NVIDIA H100\n total 81559\n used 900 -15\n utilisation 90 -15\n";
        let cases = [
            // Reading of the driver while B runs, verdict, and a word of the reasons.
            (busy(90), Verdict::Accepted, ""),
            (busy(70), Verdict::NotAccepted, "B keeps the GPU less busy in decode: 0.7"),
            (lost.to_string(), Verdict::CannotTell, "GPU is lost"),
        ];
        for (of_b, verdict, words) in cases {
            let (stage, driver) = (testing::Stage::new(), host::nvml::testing::Fake::new(""));
            let script = format!("{}.script", driver.path().display());
            // Write the whole file at once, because a driver that starts while its script is being written reports no
            // GPU.
            let plan = |speed: u32, told: &str| {
                format!(
                    "speed={speed} gpu=H100 pause=0.02 work=200000\ncat > '{script}.new' <<'END'\n{told}END\n\
                     mv '{script}.new' '{script}'"
                )
            };
            let a = stage.fake(Side::A, &plan(1000, &busy(90)));
            let b = stage.fake(Side::B, &plan(1200, &of_b));
            let options = ValidateOptions {
                model: PathBuf::from("m.gguf"),
                sizes: Sizes {
                    prompt: 64,
                    generate: 64,
                    pairs: 6,
                    precision: 0.0,
                    // The script's readings are not averages over time.
                    settles: Duration::ZERO,
                },
                phases: vec![Phase::Decode],
                rules: Rules {
                    decisive: Vec::new(),
                    accept_equal: false,
                    cpu_tolerance: 9.0,
                    gpu_tolerance: 0.02,
                },
                answer: 8,
                long: None,
                keep_going: true,
            };
            let scratch = PathBuf::from(stage.folder()).join("scratch");
            std::fs::create_dir_all(&scratch).unwrap();
            let driver = Some(driver.place());
            let provenance = tests_record().provenance;
            let validation = Validation {
                a: &a,
                b: &b,
                options: &options,
                out: None,
                scratch: &scratch,
                driver,
                provenance,
            };
            let record = validation.run(&Ui::new(&Global { quiet: true, ..Global::default() })).unwrap();
            assert_eq!(record.verdict, Some(verdict), "{of_b}: {:#?}", record.checks);
            assert!(record.reasons.join(" ").contains(words), "{of_b}: {:?}", record.reasons);
            let runs = &record.steady.as_ref().expect("a watched run").runs;
            let trace = runs[0].trace.as_ref().unwrap();
            assert_eq!(trace.moments[0].gpus[0].pcie_received, Some(8e5));
            assert!(record.check("PCIe to GPU").or(record.check("steady GPU")).is_some());
            assert!(record.check("token, decode").is_some(), "{:#?}", record.checks);
            let page = Page(&record).to_string();
            assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
        }
    }
}
