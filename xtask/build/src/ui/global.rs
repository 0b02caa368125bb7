//! Options of every command.

use clap::{ArgAction, Args};

/// Options of every command.
#[derive(Clone, Debug, Default, Args)]
pub struct Global {
    /// Print the result as JSON to standard output
    #[arg(long, global = true)]
    pub json: bool,
    /// Print only the result, warnings and errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print the external commands
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
}
