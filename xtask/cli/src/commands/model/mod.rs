//! Command `model`.

pub mod fetch;
pub mod synth;

use anyhow::Result;
use build::ui::Ui;

/// Options of `model`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Download a small model with real weights
    Fetch(fetch::Args),
    /// Write a model with a real model's shape and random weights
    Synth(synth::Args),
}

/// Downloads or synthesises a model.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    match args.command {
        Command::Fetch(args) => fetch::run(args, ui),
        Command::Synth(args) => synth::run(args, ui),
    }
}
