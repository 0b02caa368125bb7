//! `gpu-check`

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
    /// Pack what a check needs into one archive of at most 64 MB, for a machine that has nothing but a driver
    Pack(pack::Args),
    /// Check the GPU of this machine, and write one JSON file; what the archive's run.sh calls
    Run(Box<run::Args>),
    /// Show what a check found
    Show(show::Args),
}

/// Checks what a GPU does with our build.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    match args.command {
        Command::Pack(args) => pack::run(args, ui),
        Command::Run(args) => run::run(*args, ui),
        Command::Show(args) => show::run(&args, ui),
    }
}
