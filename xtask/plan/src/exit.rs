//! Exit codes, and errors that carry one. Any other error exits with [`FAILED`].

use std::fmt;

/// Something failed.
pub const FAILED: u8 = 1;
/// Wrong usage; clap uses the same.
pub const USAGE: u8 = 2;
/// Another build holds the lock, or the machine was too disturbed to tell: try again.
pub const TRY_AGAIN: u8 = 75;
/// Ctrl-C, as shells count it: 128 + SIGINT.
pub const INTERRUPTED: u8 = 130;

/// An error that asks for an exit code of its own.
#[derive(Debug)]
pub struct Coded {
    /// The exit code.
    pub code: u8,
    message: String,
}

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Coded {}

/// The user asked for something that cannot be.
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    Coded { code: USAGE, message: message.into() }.into()
}

/// It may work later.
pub fn try_again(message: impl Into<String>) -> anyhow::Error {
    Coded { code: TRY_AGAIN, message: message.into() }.into()
}

/// What another program of ours ended with, and why.
pub fn like(code: u8, message: impl Into<String>) -> anyhow::Error {
    Coded { code, message: message.into() }.into()
}

/// The user stopped it.
pub fn interrupted(message: impl Into<String>) -> anyhow::Error {
    Coded { code: INTERRUPTED, message: message.into() }.into()
}

/// The exit code that `error` asks for.
pub fn code_of(error: &anyhow::Error) -> u8 {
    error.chain().find_map(|cause| cause.downcast_ref::<Coded>()).map_or(FAILED, |coded| coded.code)
}
