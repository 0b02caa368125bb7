//! `model`

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
    /// Write a model with random weights in a real model's shape
    Synth(synth::Args),
}

/// Makes model files.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    match args.command {
        Command::Synth(args) => synth::run(args, ui),
    }
}
