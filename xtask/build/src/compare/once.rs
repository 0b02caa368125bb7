//! One run of one program.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use base::exit;
use build_info::MeasuredRow;
use host::process::ProcFolder;
use measure::median;
use serde_json::Value;

use super::candidate::{CandidateBuild, MeasuredProgram};
use super::phase::{Phase, Quantity};
use super::shape::RunShape;
use crate::process::pipes::drain;
use crate::process::{self, Running};

/// Number of starts per sample of a start-up time; a single start is too short to measure.
const STARTS: usize = 5;

/// Maximum number of output lines in the error of a failed program.
const TAIL: usize = 15;

/// Run to perform.
#[derive(Clone, Copy, Debug)]
pub struct RunRequest<'a> {
    /// Path of the model.
    pub model: &'a Path,
    /// Shape of the run.
    pub shape: RunShape,
    /// Phases to measure.
    pub phases: &'a [Phase],
    /// Number of threads in prefill and decode.
    pub threads: u32,
    /// Text to tokenise; `None` for the engine's own text.
    pub text: Option<&'a Path>,
}

/// Runs `build` once, including its own warm-up, and returns the values of the requested phases.
///
/// # Errors
/// If the program fails, is interrupted, or does not report a requested phase.
pub fn measure(build: &CandidateBuild, request: &RunRequest<'_>) -> Result<Vec<(Phase, f64)>> {
    let mut command = command(build, request);
    let line = process::line(&command);
    let model = request.model.display();
    let (stdout, peak) = run(&mut command, &line)
        .with_context(|| format!("{} failed on {model}", build.name))
        .map_err(|error| explain(error, build))?;
    let rows: Vec<MeasuredRow> = serde_json::from_slice(&stdout)
        .with_context(|| format!("{}: {line} printed invalid JSON: {}", build.name, tail(&stdout)))?;
    request
        .phases
        .iter()
        .map(|&phase| {
            let value = if phase == Phase::PeakMemory { peak } else { value(&rows, phase) };
            let told = || format!("{}: {line} did not report {phase}", build.name);
            Ok((phase, value.filter(|value| value.is_finite() && *value > 0.0).with_context(told)?))
        })
        .collect()
}

/// Output row of llama-bench: values by field name.
pub type Fields = BTreeMap<String, Value>;

/// Runs `build` with llama-bench's `arguments` and returns its rows unchanged. Each call does one repetition; the
/// caller interleaves the builds.
///
/// # Errors
/// If the program fails, is interrupted, or prints no valid JSON.
pub fn rows(build: &CandidateBuild, arguments: &[String]) -> Result<Vec<Fields>> {
    let mut command = Command::new(&build.path);
    if build.program == MeasuredProgram::Anneal {
        command.arg("bench");
    }
    command.args(arguments).args(["-r", "1", "-o", "json"]);
    let line = process::line(&command);
    let (stdout, _) =
        run(&mut command, &line).map_err(|error| match error.downcast_ref::<FailedProgram>() {
            // The user gave the arguments, so a rejection is a usage error.
            Some(FailedProgram { code: Some(2), why }) if build.program == MeasuredProgram::Anneal => {
                exit::usage(format!("{} does not accept these arguments: {why}", build.name))
            }
            _ => error.context(format!("{} failed", build.name)),
        })?;
    serde_json::from_slice(&stdout)
        .with_context(|| format!("{}: {line} printed invalid JSON: {}", build.name, tail(&stdout)))
}

fn command(build: &CandidateBuild, request: &RunRequest<'_>) -> Command {
    let RunShape { prompt, generate, depth } = request.shape;
    let wants = |phase| request.phases.contains(&phase);
    let mut command = Command::new(&build.path);
    if build.program == MeasuredProgram::Anneal {
        command.arg("bench");
    }
    let prompt = if wants(Phase::Prefill) { prompt } else { 0 };
    // A run must evaluate at least one token.
    let generate = if wants(Phase::Decode) || prompt == 0 { generate.max(1) } else { 0 };
    command
        .arg("-m")
        .arg(request.model)
        .args(["-p", &prompt.to_string(), "-n", &generate.to_string()])
        .args(["-t", &request.threads.to_string(), "-r", "1", "-o", "json"]);
    if depth > 0 {
        command.args(["-d", &depth.to_string()]);
    }
    // `--parts` is passed only if needed, because llama-bench and older engines do not have this flag.
    if request.phases.iter().any(|phase| phase.is_of_model()) {
        let parts: Vec<&str> = request
            .phases
            .iter()
            .filter(|phase| phase.is_of_engine() && **phase != Phase::PeakMemory)
            .map(|phase| phase.name())
            .collect();
        command.args(["--parts", &parts.join(",")]);
        if let Some(text) = request.text {
            command.arg("--text").arg(text);
        }
    }
    command
}

fn value(rows: &[MeasuredRow], phase: Phase) -> Option<f64> {
    let row = rows.iter().find(|row| match (row, phase) {
        (MeasuredRow::Part(row), phase) => row.part == phase.name(),
        (MeasuredRow::Test(row), Phase::Prefill) => row.n_prompt > Some(0) && row.n_gen == Some(0),
        (MeasuredRow::Test(row), Phase::Decode) => row.n_prompt == Some(0) && row.n_gen > Some(0),
        (MeasuredRow::Test(_) | MeasuredRow::Operation(_), _) => false,
    })?;
    let (avg_ns, avg_ts, avg_per_second) = match row {
        MeasuredRow::Part(row) => (row.avg_ns, None, row.avg_per_second),
        MeasuredRow::Test(row) => (row.avg_ns, row.avg_ts, None),
        MeasuredRow::Operation(_) => return None,
    };
    match phase.quantity() {
        // `load` may run several times; the value is the time of one run.
        Quantity::Time => avg_per_second.map(|speed| 1e3 / speed).or(avg_ns.map(|ns| ns as f64 / 1e6)),
        _ if phase == Phase::Tokenize => avg_per_second.map(|speed| speed / 1e6),
        _ => avg_per_second.or(avg_ts),
    }
}

/// Runs the program from start to exit [`STARTS`] times and returns the median time in milliseconds.
///
/// # Errors
/// If the program cannot be started or fails, or the user stops the program.
pub fn start(build: &CandidateBuild, arguments: &[&str]) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..STARTS {
        process::check_interrupted()?;
        let mut command = Command::new(&build.path);
        command.args(arguments).stdin(Stdio::null());
        let line = process::line(&command);
        let started = Instant::now();
        let output = command.output().with_context(|| format!("{}: cannot start {line}", build.name))?;
        times.push(started.elapsed().as_secs_f64() * 1e3);
        process::check_interrupted()?;
        if !output.status.success() {
            bail!("{}: {line} failed ({}){}", build.name, output.status, tail(&output.stderr));
        }
    }
    Ok(median(&times))
}

/// Error of a program that started but failed.
#[derive(Debug)]
struct FailedProgram {
    /// Exit code; `None` if a signal ended the program.
    code: Option<i32>,
    why: String,
}

impl std::fmt::Display for FailedProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for FailedProgram {}

/// Runs a program to its end. Returns its standard output and its peak resident memory in bytes. Ctrl-C stops the
/// program.
fn run(command: &mut Command, line: &str) -> Result<(Vec<u8>, Option<f64>)> {
    process::check_interrupted()?;
    let mut running = Running::start(command)?;
    // Both pipes are read continuously, because a full pipe would block the program.
    let (out, err) = (drain(running.child.stdout.take()), drain(running.child.stderr.take()));
    // The kernel's high-water mark never falls, so the last reading before the end is the peak.
    let process = ProcFolder::of(running.child.id());
    let mut peak = None;
    let status = loop {
        if let Some(status) = running.child.try_wait().with_context(|| format!("cannot wait for {line}"))? {
            break status;
        }
        running.pass_on_interrupts();
        peak = process.peak_resident().or(peak);
        std::thread::sleep(Duration::from_millis(20));
    };
    let (stdout, stderr) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
    process::check_interrupted()?;
    if !status.success() {
        let why = format!("{line} ended with {status}{}", tail(&stderr));
        return Err(FailedProgram { code: status.code(), why }.into());
    }
    Ok((stdout, peak.map(|bytes| bytes as f64)))
}

/// Adds a hint to the error of an older engine that does not know `--parts`.
fn explain(error: anyhow::Error, build: &CandidateBuild) -> anyhow::Error {
    if format!("{error:#}").contains("unexpected argument '--parts'") {
        let name = &build.name;
        return error.context(format!(
            "{name} is an older engine that measures only prefill and decode\nhint: build it again, or use \
             --phases prefill,decode,peak-memory"
        ));
    }
    error
}

/// Returns the last lines of a program's output.
fn tail(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let lines: Vec<&str> = text.trim().lines().collect();
    process::last_lines(&lines, TAIL)
}
