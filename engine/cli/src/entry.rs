//! Command line of `anneal`: parsing, dispatch, error messages and exit codes.

use std::io::Write;
use std::process::ExitCode;

use base::exit::{self, TRY_AGAIN, UNAVAILABLE, USAGE};
use base::help::{Group, grouped};
use base::{colour, usage};
use build_info::words;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use engine_core::trial;

use crate::{commands, interrupt, version};

/// Runs GGUF models with the llama.cpp that was built for this machine.
#[derive(Parser)]
#[command(name = "anneal", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant, reason = "only one value exists")]
enum Command {
    Run(commands::run::Args),
    Chat(commands::chat::Args),
    // Boxed, because it is by far the largest variant.
    Bench(Box<commands::bench::Args>),
    Serve(Box<commands::serve::Args>),
    Mcp(Box<commands::mcp::Args>),
    Top(commands::top::Args),
    Why(commands::why::Args),
    Worker(commands::worker::Args),
    Info(commands::info::Args),
    Quantize(commands::quantize::Args),
    Tokenize(commands::tokenize::Args),
    Tune(commands::tune::Args),
    Eval(commands::eval::Args),
    Imatrix(commands::imatrix::Args),
    #[command(name = "self")]
    Own(install::commands::Args),
    // For developers who compare builds.
    #[command(hide = true)]
    Logits(commands::logits::Args),
    // Used by `tune`.
    #[command(hide = true)]
    TuneWorker(commands::tune_worker::Args),
    // Used by `cargo xtask dist`.
    #[command(hide = true)]
    Completions(commands::pages::CompletionsArgs),
    #[command(hide = true)]
    Man(commands::pages::ManArgs),
}

/// Groups of commands in the help text.
const GROUPS: [Group; 5] = [
    ("Run", &["run", "chat"]),
    ("Serve", &["serve", "mcp", "top", "worker"]),
    ("Measure", &["bench", "tune", "eval", "info", "why"]),
    ("Models", &["quantize", "imatrix", "tokenize"]),
    ("Installation", &["self"]),
];

/// Runs the program. `required` returns the instruction sets that the CPU guard requires, by the names in
/// `build_info::host::Cpu::features`.
pub fn main(required: fn() -> Vec<&'static str>) -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        // `eprintln!` could panic, and a panic in the hook aborts the process.
        let _ = writeln!(
            std::io::stderr(),
            "error: internal error: {panic}\nhint: report it with the command that you ran"
        );
    }));
    // The exit code is 1 instead of 101, so that scripts see an ordinary failure.
    std::panic::catch_unwind(|| run(required)).unwrap_or(ExitCode::FAILURE)
}

fn run(required: fn() -> Vec<&'static str>) -> ExitCode {
    // This check comes before the command line is parsed, because trial child processes are started often and have no
    // options.
    if std::env::args_os().nth(1).is_some_and(|command| command == trial::COMMAND) {
        return trial::worker::serve();
    }
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => return say_usage(&error),
    };
    interrupt::survive_too_large_files();
    trial::use_this_program(match &cli.command {
        Command::Serve(_) | Command::Mcp(_) => trial::Fallback::Refuse,
        _ => trial::Fallback::Warn,
    });
    let result = match cli.command {
        Command::Run(args) => commands::run::run(&args),
        Command::Chat(args) => commands::chat::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Serve(args) => commands::serve::run(&args),
        Command::Mcp(args) => commands::mcp::run(&args),
        Command::Top(args) => commands::top::run(&args),
        Command::Why(args) => commands::why::run(&args),
        Command::Worker(args) => commands::worker::run(&args),
        Command::Info(args) => commands::info::run(&args, &required()),
        Command::Quantize(args) => commands::quantize::run(&args),
        Command::Tokenize(args) => commands::tokenize::run(&args),
        Command::Eval(args) => commands::eval::run(&args),
        Command::Imatrix(args) => commands::imatrix::run(&args),
        // Needs neither a model nor the kernels, so it also works for a program without the other files of its archive.
        Command::Own(args) => install::commands::run(args).map(|()| ExitCode::SUCCESS),
        Command::Logits(args) => commands::logits::run(&args),
        Command::Tune(args) => commands::tune::run(&args),
        Command::TuneWorker(args) => commands::tune_worker::run(&args),
        Command::Completions(args) => commands::pages::completions(&args, &Cli::command()),
        Command::Man(args) => commands::pages::man(&args, &Cli::command()),
    };
    match result {
        Ok(code) => code,
        // The output's reader has closed the pipe, which is not an error.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let own = error.downcast_ref::<llama::error::Error>();
            let hint = own.and_then(llama::error::Error::hint);
            let begin = colour::painted(colour::ERROR, "error:");
            let text = words::report(error.as_ref(), &begin, hint, words::printable);
            let _ = write!(std::io::stderr(), "{text}");
            match own {
                Some(llama::error::Error::Usage(_) | llama::error::Error::Grammar { .. }) => {
                    ExitCode::from(USAGE)
                }
                Some(llama::error::Error::Kernels { .. } | llama::error::Error::NoGpu { .. }) => {
                    ExitCode::from(UNAVAILABLE)
                }
                Some(llama::error::Error::Hub(error))
                    if error.downcast_ref::<hub::Error>().is_some_and(hub::Error::is_temporary) =>
                {
                    ExitCode::from(TRY_AGAIN)
                }
                _ => ExitCode::from(exit::code_of(&error)),
            }
        }
    }
}

fn parse() -> Result<Cli, clap::Error> {
    // With this setting, the error for a value such as -1 describes the valid range. Without the setting, clap reports
    // an unknown flag.
    let allow = |argument: clap::Arg| {
        let takes_values = argument.get_action().takes_values();
        argument.allow_negative_numbers(takes_values)
    };
    let mut command = grouped(Cli::command(), &GROUPS).mut_subcommands(|command| command.mut_args(allow));
    let matches = command.try_get_matches_from_mut(std::env::args_os().map(commands::long_form))?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

fn say_usage(error: &clap::Error) -> ExitCode {
    let written = match error.kind() {
        ErrorKind::DisplayVersion => writeln!(std::io::stdout(), "anneal {}", version::text()),
        ErrorKind::DisplayHelp => error.print(),
        _ => {
            usage::print(error, &Cli::command(), flag_hint(error), words::printable_lines);
            return ExitCode::from(USAGE);
        }
    };
    match written {
        // A reader that has closed the pipe is not an error.
        Err(why) if why.kind() != std::io::ErrorKind::BrokenPipe => {
            let _ = writeln!(std::io::stderr(), "error: cannot write to stdout\n  caused by: {why}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Returns a hint for a flag of llama.cpp that has a different form in Anneal.
fn flag_hint(error: &clap::Error) -> Option<&'static str> {
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(flag)))
            if ["-C", "--cpu-mask"].contains(&flag.as_str()) =>
        {
            Some("use a list of CPUs instead of a mask, as in --cpu-list 0-15")
        }
        _ => None,
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_commands_fits_a_terminal_of_80_columns() {
        // Width 0 turns wrapping off, so the test sees the lines as they are in the source.
        let help = grouped(Cli::command(), &GROUPS).term_width(0).render_help().to_string();
        let wide = help.lines().find(|line| line.chars().count() > 80);
        assert_eq!(wide, None);
    }
}
