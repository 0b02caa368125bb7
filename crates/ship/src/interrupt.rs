//! Handlers for ctrl-C and SIGTERM, which clean up unfinished work.

use anyhow::{Context, Result};
use base::exit::INTERRUPTED;
use install::interrupt;
use nix::sys::signal::{SigSet, Signal};

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
        if interrupt::stop() {
            std::process::exit(i32::from(INTERRUPTED));
        }
    })
    .context("cannot set a handler for ctrl-C")
}
