//! `cargo xtask`: looks at the machine, plans a build of llama.cpp and the engine, runs it, and writes down
//! what it did.

mod audit;
mod commands;
mod compare;
mod fs;
mod gpu_check;
mod models;
mod openblas;
mod optimize;
mod ours;
mod pgo;
mod process;
mod profile;
mod program;
mod recommend;
mod report;
mod scratch;
mod serving;
mod shipping;
mod stages;
mod storing;
mod tools;
mod ui;
mod validate;
mod workload;
mod workspace;

use std::process::ExitCode;

use plan::exit;

fn main() -> ExitCode {
    let cli = match commands::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let ui = ui::Ui::new(&cli.global);
    let result = process::catch_signals().and_then(|()| commands::dispatch(cli, &ui));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            ui.error(&error);
            // Whatever failed did so because the user stopped it.
            let code = if process::interrupted() { exit::INTERRUPTED } else { exit::code_of(&error) };
            ExitCode::from(code)
        }
    }
}
