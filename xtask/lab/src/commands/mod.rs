//! The commands of the lab: one file per command, each with `Args` and `run`.

mod bench;
mod gpu_check;
mod optimize;
mod recommend;
mod report;
mod threads;
mod upgrade;
mod validate;

use anyhow::Result;
use build::ui::{Global, Ui};
use clap::{Parser, Subcommand};

/// Builds llama.cpp for this machine, measures it, and packs it for other machines.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, max_term_width = 100)]
pub struct Cli {
    /// Global options.
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Find the fastest build for a model on this machine
    Optimize(optimize::Args),
    /// Recommend a build, settings and a quantisation for a model
    Recommend(recommend::Args),
    /// Measure builds: speed, latency, memory, servers
    Bench(bench::Args),
    /// Decide whether a build or setting may replace another
    Validate(validate::Args),
    /// Replace llama.cpp with another version if nothing gets worse
    Upgrade(upgrade::Args),
    /// Write one HTML page with all measurements
    Report(report::Args),
    /// Test a build on another machine's NVIDIA GPU
    GpuCheck(gpu_check::Args),
}

/// Runs the command that the user chose.
pub fn dispatch(cli: Cli, ui: &Ui) -> Result<()> {
    match cli.command {
        Command::Optimize(args) => optimize::run(args, ui),
        Command::Recommend(args) => recommend::run(args, ui),
        Command::Bench(args) => bench::run(args, ui),
        Command::Validate(args) => validate::run(args, ui),
        Command::Upgrade(args) => upgrade::run(args, ui),
        Command::Report(args) => report::run(args, ui),
        Command::GpuCheck(args) => gpu_check::run(args, ui),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_as_many_as_the_engine_takes() {
        for command in [&["optimize"][..], &["bench", "compare"], &["bench", "serve", "-m", "m"]] {
            for (threads, taken) in [("0", false), ("1", true), ("512", true), ("513", false)] {
                let words = [&["cargo xtask"][..], command, &["-t", threads]].concat();
                let parsed = Cli::try_parse_from(words);
                let refused = parsed.err().map(|error| error.kind());
                let expected = (!taken).then_some(clap::error::ErrorKind::ValueValidation);
                assert_eq!(refused, expected, "{command:?} -t {threads}");
            }
        }
    }
}
