//! Ctrl-C and SIGTERM.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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

/// How long the last words may take: whoever reads stdout may have stopped reading.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The first signal ends the process, after `last_words`; what was printed stays.
pub fn stop_after(last_words: fn()) {
    install(move || {
        let begin = Instant::now();
        // Without a thread there are no last words.
        if let Ok(speaker) = std::thread::Builder::new().spawn(last_words) {
            while !speaker.is_finished() && begin.elapsed() < LAST_WORDS {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        engine::ffi::exit_now(i32::from(CODE));
    });
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
