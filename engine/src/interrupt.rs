//! Ctrl-C and SIGTERM.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a program that ctrl-C ended.
pub const CODE: u8 = 130;

/// The first signal sets the engine's flag, so that the work stops in order; the second ends the process.
pub fn stop_in_order() {
    static SEEN: AtomicBool = AtomicBool::new(false);
    install(|| {
        if SEEN.swap(true, Ordering::Relaxed) {
            engine::ffi::exit_now(i32::from(CODE));
        }
        engine::ffi::interrupt(true);
    });
}

/// The first signal ends the process; what was printed stays.
pub fn stop_at_once() {
    install(|| engine::ffi::exit_now(i32::from(CODE)));
}

fn install(handler: impl FnMut() + Send + 'static) {
    if let Err(error) = ctrlc::set_handler(handler) {
        let _ =
            writeln!(std::io::stderr(), "warning: ctrl-C will end the program without a summary: {error}");
    }
}

/// Signals that would end the process do nothing: whoever started it ends it.
pub fn leave_to_the_driver() {
    install(|| {});
}
