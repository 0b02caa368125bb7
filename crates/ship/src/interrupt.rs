//! Handlers for ctrl-C and SIGTERM, which clean up unfinished work.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use base::exit::INTERRUPTED;
use nix::sys::signal::{SigSet, Signal};

use base::exit;

static STOPPED: AtomicBool = AtomicBool::new(false);

/// Makes ctrl-C, SIGTERM and SIGHUP end the work with an error, so that unfinished work is cleaned up. A second signal
/// ends the process immediately, even if a server sends nothing; the next installer then removes the leftovers.
///
/// # Errors
/// If a handler cannot be installed.
pub fn catch_signals() -> Result<()> {
    // A file larger than `ulimit -f` must cause an error, as a full disk does.
    let mut too_large = SigSet::empty();
    too_large.add(Signal::SIGXFSZ);
    too_large.thread_block().context("cannot block SIGXFSZ")?;
    ctrlc::set_handler(|| {
        if STOPPED.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(INTERRUPTED));
        }
    })
    .context("cannot set a handler for ctrl-C")
}

/// Returns an error if the user asked to stop.
///
/// # Errors
/// If the user asked to stop.
pub fn check() -> Result<()> {
    match STOPPED.load(Ordering::SeqCst) {
        true => Err(exit::interrupted("stopped; existing files are unchanged")),
        false => Ok(()),
    }
}
