//! Parses a command line, runs a command and turns its result into an exit code.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use anyhow::Result;
use base::{exit, usage};
use build_info::words;
use clap::{Command, FromArgMatches};

use crate::process;
use crate::ui::Ui;

/// Parses the arguments of this process with `command`, which describes `Cli`.
///
/// # Errors
/// The exit code, after help, the version or a usage error was printed.
pub fn parse<Cli: FromArgMatches>(mut command: Command) -> Result<Cli, ExitCode> {
    let parsed = command.try_get_matches_from_mut(std::env::args_os());
    let parsed = parsed.and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches));
    parsed.map_err(|error| error.format(&mut command)).map_err(|error| {
        if error.use_stderr() {
            usage::print(&error, &command, None, words::printable_lines);
            return ExitCode::from(exit::USAGE);
        }
        match error.print() {
            // clap would exit with 0 even if the help could not be written. A reader that closed the pipe is not an
            // error.
            Err(why) if why.kind() != ErrorKind::BrokenPipe => {
                let _ = writeln!(
                    std::io::stderr(),
                    "error: cannot write the result to stdout\n  caused by: {why}"
                );
                ExitCode::from(exit::FAILED)
            }
            _ => ExitCode::from(exit::DONE),
        }
    })
}

/// Runs `command`, prints its error, and returns the exit code.
pub fn run(ui: &Ui, command: impl FnOnce() -> Result<()>) -> ExitCode {
    match process::catch_signals().and_then(|()| command()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            ui.error(&error);
            // After an interruption, any failure is attributed to the interruption.
            let code = if process::interrupted() { exit::INTERRUPTED } else { exit::code_of(&error) };
            ExitCode::from(code)
        }
    }
}
