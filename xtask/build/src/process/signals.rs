//! Signals: ctrl-C, SIGTERM and SIGHUP are noted, and commands end when they look.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use anyhow::{Context, Result};
use base::exit;
use nix::sys::signal::{SigSet, Signal};

/// How often the user asked to stop.
pub(super) static INTERRUPTED: AtomicU32 = AtomicU32::new(0);

/// Whether the command that runs does not go on from what it had done before.
static BEGINS_ANEW: AtomicBool = AtomicBool::new(false);

/// From now on ctrl-C, SIGTERM and SIGHUP stop the running external command and end with an error rather
/// than at once, so that what was begun is left in order.
pub fn catch_signals() -> Result<()> {
    // A file that gets larger than `ulimit -f` allows is an error like a full disk, not the end with half a file beside
    // its place. Before there are threads, which inherit it; programs that are started do not.
    let mut too_large = SigSet::empty();
    too_large.add(Signal::SIGXFSZ);
    too_large.thread_block().context("cannot block SIGXFSZ")?;
    ctrlc::set_handler(|| {
        INTERRUPTED.fetch_add(1, Ordering::SeqCst);
    })
    .context("cannot set a handler for ctrl-C")
}

/// Whether the user asked to stop.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst) > 0
}

/// Says that this command, when it was stopped, begins anew: what the user is told when it is.
pub fn begins_anew() {
    BEGINS_ANEW.store(true, Ordering::SeqCst);
}

/// An error if the user asked to stop.
pub fn check_interrupted() -> Result<()> {
    match interrupted() {
        false => Ok(()),
        true if BEGINS_ANEW.load(Ordering::SeqCst) => {
            Err(exit::interrupted("stopped; run again, it begins anew"))
        }
        true => {
            Err(exit::interrupted("stopped; nothing that was finished is lost, run the same again to go on"))
        }
    }
}
