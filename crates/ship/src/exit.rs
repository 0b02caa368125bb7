//! Exit codes, and errors that carry one: those of xtask, docs/src/reference/exit-codes.md.

use std::fmt;

/// Something failed.
const FAILED: u8 = 1;
/// Wrong usage.
const USAGE: u8 = 2;
/// This machine lacks what the build needs.
const LACKS: u8 = 69;
/// Another installer is at work.
const TRY_AGAIN: u8 = 75;
/// Ctrl-C, as shells count it.
pub const INTERRUPTED: u8 = 130;

/// An error that asks for an exit code of its own.
#[derive(Debug)]
struct Coded {
    code: u8,
    message: String,
}

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Coded {}

fn coded(code: u8, message: impl Into<String>) -> anyhow::Error {
    Coded { code, message: message.into() }.into()
}

/// The user asked for something that cannot be.
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    coded(USAGE, message)
}

/// The machine lacks what the build needs.
pub fn lacks(message: impl Into<String>) -> anyhow::Error {
    coded(LACKS, message)
}

/// It may work later.
pub fn try_again(message: impl Into<String>) -> anyhow::Error {
    coded(TRY_AGAIN, message)
}

/// The user stopped it.
pub fn interrupted(message: impl Into<String>) -> anyhow::Error {
    coded(INTERRUPTED, message)
}

/// The exit code that `error` asks for.
pub fn code_of(error: &anyhow::Error) -> u8 {
    error.chain().find_map(|cause| cause.downcast_ref::<Coded>()).map_or(FAILED, |coded| coded.code)
}
