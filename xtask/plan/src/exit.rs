//! Exit codes, and errors that carry one. Any other error exits with [`FAILED`].

use base::exit::Coded;
pub use base::exit::{DONE, FAILED, INTERRUPTED, TRY_AGAIN, UNAVAILABLE, USAGE};

/// The user asked for something that cannot be.
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    like(USAGE, message)
}

/// It may work later.
pub fn try_again(message: impl Into<String>) -> anyhow::Error {
    like(TRY_AGAIN, message)
}

/// What another program of ours ended with, and why.
pub fn like(code: u8, message: impl Into<String>) -> anyhow::Error {
    Coded { code, message: message.into() }.into()
}

/// The user stopped it.
pub fn interrupted(message: impl Into<String>) -> anyhow::Error {
    like(INTERRUPTED, message)
}

/// The exit code that `error` asks for.
pub fn code_of(error: &anyhow::Error) -> u8 {
    base::exit::code_of(error.as_ref())
}
