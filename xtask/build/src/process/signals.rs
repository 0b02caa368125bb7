//! Signals: ctrl-C, SIGTERM and SIGHUP are recorded, and commands end when they check for them.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use anyhow::{Context, Result};
use base::exit;
use nix::sys::signal::{SigSet, Signal};

/// Number of times the user asked to stop.
pub(super) static INTERRUPTED: AtomicU32 = AtomicU32::new(0);

/// True if the running command cannot resume.
static BEGINS_ANEW: AtomicBool = AtomicBool::new(false);

/// Records ctrl-C, SIGTERM and SIGHUP instead of letting them end this process at once. An interruption stops the
/// running external command, which then returns an error, so that unfinished work is cleaned up.
///
/// # Errors
/// If a handler cannot be installed.
pub fn catch_signals() -> Result<()> {
    // A file larger than `ulimit -f` must cause an error, as a full disk does, instead of ending the process and
    // leaving a partial file on the disk. The signal is blocked before threads start, because threads inherit the
    // mask. Started programs do not inherit the mask.
    let mut too_large = SigSet::empty();
    too_large.add(Signal::SIGXFSZ);
    too_large.thread_block().context("cannot block SIGXFSZ")?;
    ctrlc::set_handler(|| {
        INTERRUPTED.fetch_add(1, Ordering::SeqCst);
    })
    .context("cannot set a handler for ctrl-C")
}

/// True if the user asked to stop.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst) > 0
}

/// Marks the running command as one that cannot resume, so that the message after an interruption says so.
pub fn begins_anew() {
    BEGINS_ANEW.store(true, Ordering::SeqCst);
}

/// Returns an error if the user asked to stop.
///
/// # Errors
/// If the user asked to stop.
pub fn check_interrupted() -> Result<()> {
    match interrupted() {
        false => Ok(()),
        true if BEGINS_ANEW.load(Ordering::SeqCst) => {
            Err(exit::interrupted("stopped; the command cannot resume, so run it again from the beginning"))
        }
        true => Err(exit::interrupted(
            "stopped; finished work is kept\nhint: run the same command again to resume",
        )),
    }
}
