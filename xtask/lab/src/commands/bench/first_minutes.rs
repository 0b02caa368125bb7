//! The `bench first-minutes` command.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use build::compare::{Provenance, Ratio, median};
use build::process::{self, Log, Run};
use build::scratch::Scratch;
use build::stages::CheckoutLock;
use build::tools;
use build::ui::Ui;
use build::workspace::Workspace;
use clap::ValueEnum;
use measure::CpuTime;
use measure::schedule::order;
use serde::{Deserialize, Serialize};

/// Options of `bench first-minutes`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Commit or branch of this repository to compare with
    #[arg(long, value_name = "REVISION", default_value = "a7f9393")]
    against: String,
    /// Steps to measure; they always run in the order of the values below. word and test also run the build step
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["help", "build", "word", "xtask-word"])]
    steps: Vec<Step>,
    /// Number of pairs of clean clones
    #[arg(long, default_value_t = 1)]
    pairs: usize,
}

/// Step that a newcomer or a contributor waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Step {
    /// `cargo xtask --help` in a cold clone
    Help,
    /// A clean `cargo xtask build-native`, including the compilation of xtask
    Build,
    /// `cargo xtask build-native` after one word changed in a command of anneal
    Word,
    /// `cargo xtask detect --help` after one word changed in that command
    XtaskWord,
    /// `cargo xtask test` after `build-native`
    Test,
    /// `.ci/run` in a cold clone
    Ci,
}

impl Step {
    fn title(self) -> &'static str {
        match self {
            Step::Help => "`cargo xtask --help`, cold clone, warm registry",
            Step::Build => "clean `build-native`, including xtask",
            Step::Word => "one word changed in a command of `anneal`, then `build-native`",
            Step::XtaskWord => "one word changed in a command of xtask, then its `--help`",
            Step::Test => "`cargo xtask test` after `build-native`",
            Step::Ci => "`.ci/run`, cold clone",
        }
    }
}

/// Result of `bench first-minutes`, with all samples.
#[derive(Debug, Serialize, Deserialize)]
pub struct FirstMinutes {
    /// Date, command and machine of the measurement.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// Commit that is measured.
    pub commit: String,
    /// Commit to compare with.
    pub against: String,
    /// Measurements of the steps.
    first_minutes: Vec<Measured>,
}

/// Measurement of one step.
#[derive(Debug, Serialize, Deserialize)]
struct Measured {
    step: Step,
    /// Seconds of each run of the measured commit.
    seconds: Vec<f64>,
    /// Seconds of each run of the other commit.
    against_seconds: Vec<f64>,
    /// CPU seconds of each run of the measured commit.
    cpu_seconds: Vec<f64>,
    /// CPU seconds of each run of the other commit.
    against_cpu_seconds: Vec<f64>,
    /// Time of the measured commit divided by the time of the other commit.
    ratio: Ratio,
}

/// Seconds and CPU seconds of each step.
type Times = BTreeMap<Step, (f64, f64)>;

/// Measures the steps that newcomers and contributors wait for, alternating with another commit of this repository.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    process::begins_anew();
    let workspace = Workspace::find()?;
    let _lock = CheckoutLock::take(&workspace)?;
    let scratch = Scratch::make(&workspace, "first-minutes")?;
    let log = Log::new(workspace.anneal().join("first-minutes.log"), ui.verbose());
    let commits = [commit(&workspace, &log, "HEAD")?, commit(&workspace, &log, &args.against)?];
    let mut steps = args.steps.clone();
    steps.sort_unstable();
    steps.dedup();
    let mut times: [Vec<Times>; 2] = [Vec::new(), Vec::new()];
    for pair in 0..args.pairs.max(1) {
        for side in order(pair, 2) {
            ui.say(format_args!("pair {} of {}: {}", pair + 1, args.pairs.max(1), commits[side]));
            let folder = scratch.path().join("clone");
            let measured = one(&workspace, &log, &folder, &commits[side], &steps, pair, ui);
            // Remove the clone now, because a clone with its builds takes gigabytes.
            let _ = fs::remove_dir_all(&folder);
            times[side].push(measured?);
        }
    }
    let names: Vec<String> =
        steps.iter().filter_map(|step| Some(step.to_possible_value()?.get_name().to_string())).collect();
    let command = format!(
        "cargo xtask bench first-minutes --against {} --steps {} --pairs {}",
        args.against,
        names.join(","),
        args.pairs
    );
    let [commit, against] = commits;
    let result = FirstMinutes {
        provenance: Provenance::now(&tools::host(ui), command),
        commit,
        against,
        first_minutes: steps.iter().map(|step| measured(*step, &times)).collect(),
    };
    let text = result.table();
    ui.result(&result, text)
}

fn measured(step: Step, times: &[Vec<Times>; 2]) -> Measured {
    let all = |side: usize, pick: fn(&(f64, f64)) -> f64| -> Vec<f64> {
        times[side].iter().filter_map(|times| times.get(&step)).map(pick).collect()
    };
    let (seconds, against_seconds) = (all(0, |time| time.0), all(1, |time| time.0));
    Measured {
        step,
        ratio: measure::ratio(&seconds, &against_seconds),
        seconds,
        against_seconds,
        cpu_seconds: all(0, |time| time.1),
        against_cpu_seconds: all(1, |time| time.1),
    }
}

/// Returns the full hash of `revision`.
fn commit(workspace: &Workspace, log: &Log, revision: &str) -> Result<String> {
    let wanted = format!("{revision}^{{commit}}");
    let found = Run::new("git", log)
        .dir(workspace.root())
        .args(["rev-parse", "--verify", "--quiet", wanted.as_str()])
        .output()
        .with_context(|| {
            format!("this repository has no commit {revision:?}\nhint: fetch it with git first")
        })?;
    Ok(found.trim().to_string())
}

/// Clones `commit` into `folder` and measures `steps` in the clone.
fn one(
    workspace: &Workspace,
    log: &Log,
    folder: &Path,
    commit: &str,
    steps: &[Step],
    pair: usize,
    ui: &Ui,
) -> Result<Times> {
    clone(workspace, log, folder, commit)?;
    let mut times = Times::new();
    let xtask = |arguments: &[&str]| timed(log, folder, &[&["cargo", "xtask"], arguments].concat());
    let wants = |step: Step| steps.contains(&step);
    let mut note = |step: Step, time: (f64, f64)| {
        ui.say(format_args!("  {}: {:.1} s", step.title(), time.0));
        times.insert(step, time);
    };
    if steps.iter().any(|step| *step < Step::Ci) {
        let help = xtask(&["--help"])?;
        note(Step::Help, help);
        if [Step::Build, Step::Word, Step::Test].into_iter().any(wants) {
            let build = xtask(&["build-native", "--yes"])?;
            note(Step::Build, (help.0 + build.0, help.1 + build.1));
        }
        if wants(Step::Word) {
            change_word(folder, "engine", "info", pair)?;
            note(Step::Word, xtask(&["build-native", "--yes"])?);
        }
        if wants(Step::XtaskWord) {
            change_word(folder, "xtask", "detect", pair)?;
            note(Step::XtaskWord, xtask(&["detect", "--help"])?);
        }
        if wants(Step::Test) {
            note(Step::Test, xtask(&["test", "--yes"])?);
        }
    }
    if wants(Step::Ci) {
        let _ = fs::remove_dir_all(folder);
        clone(workspace, log, folder, commit)?;
        note(Step::Ci, timed(log, folder, &[".ci/run"])?);
    }
    Ok(times)
}

fn clone(workspace: &Workspace, log: &Log, folder: &Path, commit: &str) -> Result<()> {
    let git =
        |dir: &Path, arguments: &[&str]| Run::new("git", log).dir(dir).args(arguments).output().map(drop);
    let (from, to) = (workspace.root().to_string_lossy(), folder.to_string_lossy());
    git(workspace.root(), &["clone", "--quiet", "--no-checkout", &from, &to])
        .and_then(|()| git(folder, &["checkout", "--quiet", "--detach", commit]))
        .with_context(|| format!("cannot clone {commit} (output in {})", log.path().display()))
}

/// Runs `words` in `folder` without the environment that cargo set for this program. Returns seconds and CPU seconds.
fn timed(log: &Log, folder: &Path, words: &[&str]) -> Result<(f64, f64)> {
    let (program, arguments) = words.split_first().context("the command is empty")?;
    let program = match program.contains('/') {
        true => folder.join(program),
        false => PathBuf::from(program),
    };
    let (clock, cpu) = (Instant::now(), CpuTime::now());
    Run::new(program, log)
        .dir(folder)
        .args(arguments)
        .without(|name| {
            // Remove variables that cargo set for the lab, and variables that would change the clone's builds. Keep
            // `CARGO_HOME`, so that cargo finds the registry.
            let is_cargos = name.starts_with("CARGO_") && name != "CARGO_HOME";
            is_cargos || name.starts_with("ANNEAL_") || name == "RUSTUP_TOOLCHAIN"
        })
        .watch(|_, _| {})
        .with_context(|| format!("{} failed (output in {})", words.join(" "), log.path().display()))?;
    Ok((clock.elapsed().as_secs_f64(), cpu.seconds_since().unwrap_or(f64::NAN)))
}

/// Adds a word to the help text of the command `name` below `part`.
fn change_word(folder: &Path, part: &str, name: &str, pair: usize) -> Result<()> {
    let path = find(&folder.join(part), &format!("commands/{name}.rs"))?;
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let changed = with_word(&text, &format!("again{pair}"))
        .with_context(|| format!("{} has no help text to change", path.display()))?;
    fs::write(&path, changed).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns `text` with `word` at the end of the first doc comment that documents an item.
fn with_word(text: &str, word: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("/// "))?;
    Some(text.replacen(line, &format!("{line} {word}"), 1))
}

/// Returns the file in `folder` whose path ends with `end`.
fn find(folder: &Path, end: &str) -> Result<PathBuf> {
    let mut waiting = vec![folder.to_path_buf()];
    while let Some(folder) = waiting.pop() {
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.ends_with(end) {
                return Ok(path);
            }
            if path.is_dir() {
                waiting.push(path);
            }
        }
    }
    bail!("cannot find a file whose path ends with {end} in {}", folder.display())
}

impl FirstMinutes {
    /// Returns the steps as a Markdown table.
    pub fn table(&self) -> String {
        let short = |commit: &str| commit.get(..7).unwrap_or(commit).to_string();
        let mut text = format!(
            "| | {} | {} | ratio | ratio of CPU time |\n| --- | --- | --- | --- | --- |\n",
            short(&self.against),
            short(&self.commit)
        );
        for measured in &self.first_minutes {
            let cpu = median(&measured.cpu_seconds) / median(&measured.against_cpu_seconds);
            let ratio = measured.ratio.with_pairs();
            let _ = writeln!(
                text,
                "| {} | {:.1} s | {:.1} s | {ratio} | {cpu:.2} |",
                measured.step.title(),
                median(&measured.against_seconds),
                median(&measured.seconds),
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_changes_the_help_and_nothing_else() {
        let text = "//! `x`\n\nuse a;\n\n/// Shows a thing.\nstruct Args;\n";
        assert_eq!(
            with_word(text, "again0").as_deref(),
            Some("//! `x`\n\nuse a;\n\n/// Shows a thing. again0\nstruct Args;\n")
        );
        assert_eq!(with_word("//! `x`\n", "again0"), None);
    }

    #[test]
    fn commands_to_change_are_found() {
        let root = build::workspace::Workspace::find().unwrap().root().to_path_buf();
        for (part, name) in [("engine", "info"), ("xtask", "detect")] {
            let path = find(&root.join(part), &format!("commands/{name}.rs")).unwrap();
            assert!(with_word(&fs::read_to_string(path).unwrap(), "x").is_some());
        }
    }

    #[test]
    fn the_table_compares_medians() {
        let times = |help: f64| Times::from([(Step::Help, (help, 2.0 * help))]);
        let result = FirstMinutes {
            provenance: Provenance { date: String::new(), command: String::new(), machine: String::new() },
            commit: "0123456789".to_string(),
            against: "a7f9393000".to_string(),
            first_minutes: vec![measured(Step::Help, &[vec![times(30.0)], vec![times(60.0)]])],
        };
        let table = result.table();
        assert!(table.starts_with("| | a7f9393 | 0123456 | ratio"), "{table}");
        assert!(table.contains("warm registry | 60.0 s | 30.0 s | 0.50, 1 pair | 0.50 |"), "{table}");
    }
}
