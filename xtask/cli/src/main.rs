//! Program behind `cargo xtask`: examines the machine, plans and runs builds of llama.cpp and the engine, and records
//! each build.

mod commands;
mod lab;

use std::process::ExitCode;

use build::entry;
use build::ui::Ui;
use commands::Cli;

fn main() -> ExitCode {
    if let Some(global) = lab::is_asked(std::env::args_os().skip(1)) {
        let ui = Ui::new(&global);
        return entry::run(&ui, || lab::run(&ui));
    }
    let cli: Cli = match entry::parse(Cli::grouped()) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let ui = Ui::new(&cli.global);
    entry::run(&ui, || commands::dispatch(cli, &ui))
}
