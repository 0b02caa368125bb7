//! The `bench` command and its subcommands.

mod builds;
mod compare;
mod first_minutes;
mod overhead;
mod serve;
mod side_by_side;
mod sources;
mod switches;
#[cfg(test)]
mod tests;

use anyhow::Result;
use build::ui::Ui;

pub(super) use self::sources::warn_of_sources;

/// Options of `bench`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    side_by_side: side_by_side::Args,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Compare several builds: speed of each phase, memory, start-up, size
    Compare(compare::Args),
    /// Compare a profile with variants that each change one key
    Switches(switches::Args),
    /// Measure the run time of detect, plan and an up-to-date build
    Overhead(overhead::Args),
    /// Measure anneal's server under many clients, alone or against llama-server
    Serve(serve::Args),
    /// Measure how long newcomers and contributors wait, compared with another commit
    FirstMinutes(first_minutes::Args),
    /// Compare the time to build llama.cpp with xtask and with plain cmake and ninja
    Build(builds::Args),
}

/// Runs the chosen measurement.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    match args.command {
        None => side_by_side::run(args.side_by_side, ui),
        Some(Command::Compare(args)) => compare::run(args, ui),
        Some(Command::Switches(args)) => switches::run(args, ui),
        Some(Command::Overhead(args)) => overhead::run(args, ui),
        Some(Command::Serve(args)) => serve::run(args, ui),
        Some(Command::FirstMinutes(args)) => first_minutes::run(args, ui),
        Some(Command::Build(args)) => builds::run(args, ui),
    }
}
