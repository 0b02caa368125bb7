//! Request of the user to stop. The program that uses this crate installs the signal handlers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use anyhow::Result;
use base::exit;

static STOPPED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Returns the flag of the request, for signal handlers.
pub fn flag() -> Arc<AtomicBool> {
    Arc::clone(&STOPPED)
}

/// Makes the work end with an error at its next check, so that unfinished work is cleaned up. Returns true if the user
/// had already asked to stop.
pub fn stop() -> bool {
    STOPPED.swap(true, Ordering::SeqCst)
}

/// True if the user asked to stop.
pub fn is_requested() -> bool {
    STOPPED.load(Ordering::SeqCst)
}

/// Returns an error if the user asked to stop.
///
/// # Errors
/// If the user asked to stop.
pub fn check() -> Result<()> {
    match is_requested() {
        true => Err(exit::interrupted("stopped; existing files are unchanged")),
        false => Ok(()),
    }
}
