//! Errors that carry one of the exit codes of `base::exit`.

use base::exit::{Coded, INTERRUPTED, TRY_AGAIN, UNAVAILABLE, USAGE};

fn coded(code: u8, message: impl Into<String>) -> anyhow::Error {
    Coded { code, message: message.into() }.into()
}

/// The user asked for something that cannot be.
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    coded(USAGE, message)
}

/// The machine lacks what the build needs.
pub fn lacks(message: impl Into<String>) -> anyhow::Error {
    coded(UNAVAILABLE, message)
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
    base::exit::code_of(error.as_ref())
}
