//! The commands of `cargo xtask` that measure. `cargo xtask` compiles this program when one of these commands is
//! first used, and passes its command line to this program.

use std::process::ExitCode;

use build::entry;
use build::ui::Ui;
use clap::CommandFactory;
use lab::commands::{self, Cli};

fn main() -> ExitCode {
    let cli: Cli = match entry::parse(Cli::command()) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let ui = Ui::new(&cli.global);
    entry::run(&ui, || commands::dispatch(cli, &ui))
}
