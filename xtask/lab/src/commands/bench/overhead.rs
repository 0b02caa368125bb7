//! The `bench overhead` command.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use build::compare::{Provenance, median};
use build::process;
use build::program::xtask;
use build::ui::{self, Ui};
use serde::{Deserialize, Serialize};

/// Options of `bench overhead`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of runs of each command
    #[arg(short, long, default_value_t = 20)]
    runs: usize,
}

/// Result of `bench overhead`, with all samples.
#[derive(Debug, Serialize, Deserialize)]
pub struct Overhead {
    /// Date, command and machine of the measurement.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// The commands that were timed.
    pub commands: Vec<CommandTimes>,
}

/// Times of one command, in milliseconds.
#[derive(Debug, Serialize, Deserialize)]
pub struct CommandTimes {
    /// Command line that was timed.
    pub command: String,
    /// Median of the samples, in milliseconds.
    pub median_ms: f64,
    /// Largest sample, in milliseconds.
    pub slowest_ms: f64,
    /// Milliseconds of each run.
    pub samples_ms: Vec<f64>,
}

/// Times commands of xtask, each in its own process.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    process::begins_anew();
    let program = xtask()?;
    let mut rows = Vec::new();
    for words in [&["detect"][..], &["plan"], &["build-native", "--quiet"]] {
        let mut samples_ms = Vec::new();
        // The first run is a warm-up: it may do work that later runs do not repeat.
        for run in 0..=args.runs.max(1) {
            process::check_interrupted()?;
            let started = Instant::now();
            let output = Command::new(&program)
                .args(words)
                .stdin(Stdio::null())
                .output()
                .with_context(|| format!("cannot run {}", program.display()))?;
            if run > 0 {
                samples_ms.push(started.elapsed().as_secs_f64() * 1e3);
            }
            if !output.status.success() {
                bail!("{} failed: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
            }
        }
        rows.push(CommandTimes {
            command: words[0].to_string(),
            median_ms: median(&samples_ms),
            slowest_ms: samples_ms.iter().copied().fold(0.0, f64::max),
            samples_ms,
        });
    }
    let table = ui::columns(
        &["command", "median", "slowest"],
        rows.iter().map(|row| {
            vec![row.command.clone(), format!("{:.0} ms", row.median_ms), format!("{:.0} ms", row.slowest_ms)]
        }),
    );
    let command = format!("cargo xtask bench overhead --runs {}", args.runs);
    let provenance = Provenance::now(&build::tools::host(ui), command);
    ui.result(&Overhead { provenance, commands: rows }, table)
}
