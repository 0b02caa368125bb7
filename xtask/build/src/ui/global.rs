//! Options of every command.

use clap::{ArgAction, Args};

/// Options of every command.
#[derive(Clone, Debug, Default, Args)]
pub struct Global {
    /// Print the result as JSON on standard output
    #[arg(long, global = true)]
    pub json: bool,
    /// Print nothing but the result, warnings and errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Echo the external commands
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
}
