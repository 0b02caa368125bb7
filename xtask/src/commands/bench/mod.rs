//! `bench`

mod builds;
mod compare;
mod overhead;
#[cfg(test)]
mod page;

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
    /// Several builds side by side: speed of each phase, memory, start-up, size
    Compare(compare::Args),
    /// How long detect, plan and a build with nothing to do take
    Overhead(overhead::Args),
    /// Building llama.cpp by a stage against plain cmake and ninja
    Build(builds::Args),
}

/// Measures.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    match args.command {
        Command::Compare(args) => compare::run(args, ui),
        Command::Overhead(args) => overhead::run(args, ui),
        Command::Build(args) => builds::run(args, ui),
    }
}
