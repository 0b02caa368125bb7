//! `cargo xtask`: looks at the machine, plans a build of llama.cpp and the engine, runs it, and writes down
//! what it did.

mod commands;
mod exit;
mod fs;
mod measure;
mod plan;
mod process;
mod profile;
mod stages;
mod tools;
mod ui;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = commands::Cli::parse();
    let ui = ui::Ui::new(&cli.global);
    match commands::dispatch(cli, &ui) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            ui.error(&error);
            ExitCode::from(exit::code_of(&error))
        }
    }
}
