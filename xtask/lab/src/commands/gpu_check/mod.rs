//! The `gpu-check` command and its subcommands.

mod pack;
mod run;
mod show;

use anyhow::Result;
use build::ui::Ui;

/// Options of `gpu-check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Pack everything that a check needs into one archive of at most 64 MB; the other machine needs only a GPU
    /// driver
    Pack(pack::Args),
    /// Check the GPU of this machine and write one JSON file; the archive's run.sh calls this
    Run(Box<run::Args>),
    /// Show the result of a check
    Show(show::Args),
}

/// Packs, runs or shows a check of a build on a GPU.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    match args.command {
        Command::Pack(args) => pack::run(args, ui),
        Command::Run(args) => run::run(*args, ui),
        Command::Show(args) => show::run(&args, ui),
    }
}
