//! Handlers for ctrl-C and SIGTERM, which clean up unfinished work.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use base::exit::INTERRUPTED;
use base::signals::hang_up_is_ignored;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use crate::interrupt;

/// Makes ctrl-C, SIGTERM and SIGHUP end the work with an error, so that unfinished work is cleaned up. A second ctrl-C
/// or SIGTERM ends the process immediately; the next installer then removes the leftovers. A repeated SIGHUP does not,
/// because both the shell and the kernel send it when a terminal closes, and because install.sh passes on each signal
/// as SIGHUP.
///
/// # Errors
/// If a handler cannot be installed.
pub fn catch() -> Result<()> {
    let cannot = "cannot set a handler for ctrl-C";
    for signal in [SIGINT, SIGTERM] {
        let seen = Arc::new(AtomicBool::new(false));
        flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), Arc::clone(&seen))
            .context(cannot)?;
        flag::register(signal, seen).context(cannot)?;
        flag::register(signal, interrupt::flag()).context(cannot)?;
    }
    // nohup makes its command ignore SIGHUP.
    if !hang_up_is_ignored() {
        flag::register(SIGHUP, interrupt::flag()).context(cannot)?;
    }
    // A file larger than `ulimit -f` must cause an error, as a full disk does.
    flag::register(SIGXFSZ, Arc::default()).context("cannot handle SIGXFSZ")?;
    Ok(())
}
