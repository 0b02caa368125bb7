//! `bench`

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
    /// Several builds side by side: speed of each phase, memory, start-up, size
    Compare(compare::Args),
    /// A profile against itself with one key changed, for each switch of a build
    Switches(switches::Args),
    /// How long detect, plan and a build with nothing to do take
    Overhead(overhead::Args),
    /// Servers in turns, asked by many clients at a time: ours against llama-server, or by itself
    Serve(serve::Args),
    /// What newcomers and contributors wait for, against another commit
    FirstMinutes(first_minutes::Args),
    /// Building llama.cpp by a stage against plain cmake and ninja
    Build(builds::Args),
}

/// Measures.
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
