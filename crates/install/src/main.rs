//! Program with the commands of `anneal self` alone, for tests: it starts and compiles faster than the engine.

use std::io::Write;
use std::process::ExitCode;

use base::exit;
use build_info::words;
use clap::Parser;

/// Manages versions of Anneal.
#[derive(Parser)]
#[command(name = "anneal")]
struct SelfCli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    #[command(name = "self")]
    Own(install::commands::Args),
}

fn main() -> ExitCode {
    let Command::Own(args) = SelfCli::parse().command;
    let Err(error) = install::commands::run(args) else { return ExitCode::SUCCESS };
    let is_broken_pipe = |cause: &(dyn std::error::Error + 'static)| {
        let cause = cause.downcast_ref::<std::io::Error>();
        cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
    };
    if error.chain().any(is_broken_pipe) {
        return ExitCode::SUCCESS;
    }
    let _ = write!(std::io::stderr(), "{}", words::report(error.as_ref(), "error:", None, words::printable));
    ExitCode::from(exit::code_of(&error))
}
