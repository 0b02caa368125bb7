//! Errors that set the exit code of a program.

use std::error::Error;

use super::{Coded, INTERRUPTED, TRY_AGAIN, UNAVAILABLE, USAGE};

/// Returns an error with `code`, for example the exit code of another Anneal program.
pub fn coded(code: u8, error: impl Into<Box<dyn Error + Send + Sync>>) -> anyhow::Error {
    Coded { code, error: error.into() }.into()
}

/// Returns an error for an invalid command line.
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    coded(USAGE, message.into())
}

/// Returns an error for a machine that does not meet the requirements of the build.
pub fn lacks(message: impl Into<String>) -> anyhow::Error {
    coded(UNAVAILABLE, message.into())
}

/// Returns an error for a command that may succeed later.
pub fn try_again(message: impl Into<String>) -> anyhow::Error {
    coded(TRY_AGAIN, message.into())
}

/// Returns an error for a command that the user stopped.
pub fn interrupted(message: impl Into<String>) -> anyhow::Error {
    coded(INTERRUPTED, message.into())
}
