//! Ctrl-C and SIGTERM: what was begun is taken away again rather than left.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use base::exit::INTERRUPTED;
use nix::sys::signal::{SigSet, Signal};

use base::exit;

static STOPPED: AtomicBool = AtomicBool::new(false);

/// From now on ctrl-C, SIGTERM and SIGHUP end the work with an error rather than at once. The second one ends it at
/// once: a server that sends nothing is waited for, and what is left lying is removed by the next installer.
pub fn catch_signals() -> Result<()> {
    // A file that gets larger than `ulimit -f` allows is an error like a full disk, as in xtask.
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

/// An error if the user asked to stop.
pub fn check() -> Result<()> {
    match STOPPED.load(Ordering::SeqCst) {
        true => Err(exit::interrupted("stopped; nothing that was there before has changed")),
        false => Ok(()),
    }
}
