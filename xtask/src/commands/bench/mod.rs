//! `bench`

mod builds;
mod overhead;
mod speed;

pub use speed::{Sample, measure_once};

use anyhow::Result;

use crate::ui::Ui;

/// Options of `bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Tokens per second of two builds, or of a build and llama-bench, in interleaved runs
    Speed(speed::Args),
    /// How long detect, plan and a build with nothing to do take
    Overhead(overhead::Args),
    /// Building llama.cpp by a stage against plain cmake and ninja
    Build(builds::Args),
}

/// Measures.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    match args.command {
        Command::Speed(args) => speed::run(args, ui),
        Command::Overhead(args) => overhead::run(args, ui),
        Command::Build(args) => builds::run(args, ui),
    }
}
