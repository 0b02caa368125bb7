//! Large stack for rendering templates.
//!
//! minijinja recurses into expressions and values: it compiles `a.b.b.b…` and drops `[[[…]]]` with one native call
//! per level. The length of the source and the step limit bound the depth, but the stack of a server thread is too
//! small for this depth.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use llama::error::{Error, Result};

/// Size of the stack, in bytes of address space. Pages that are never touched use no memory. The tests check the size
/// with the longest source and the maximum number of steps in an unoptimised build, which has the largest stack
/// frames.
const SIZE: usize = 512 << 20;

/// Runs `work` in a thread with a large stack, for at most `time`. The result must not be deeply nested. Threads
/// cannot be stopped. Work that exceeds its time therefore continues in the background until it reaches the step
/// limit, and its result is dropped. While [`MOST_LATE`] late threads run, further work is refused.
///
/// # Errors
/// If the stack cannot be allocated, `work` panics, `time` runs out, or too many late threads run. `origin` identifies
/// the template in the message.
pub(super) fn with_time<T: Send + 'static>(
    origin: &str,
    time: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    if LATE.load(Ordering::Relaxed) >= MOST_LATE {
        return Err(failed(
            origin,
            format!("{MOST_LATE} earlier renderings that timed out are still running"),
        ));
    }
    let (sender, receiver) = mpsc::sync_channel(1);
    // Set when the caller stops waiting or the work ends, whichever happens first. If the work ends second, the work
    // was late.
    let ended = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&ended);
    let thread = builder().spawn(move || {
        let end = End(ends);
        let _ = sender.send(work());
        drop(end);
    });
    thread.map_err(|error| no_room(origin, &error))?;
    match receiver.recv_timeout(time) {
        Ok(result) => Ok(result),
        Err(RecvTimeoutError::Disconnected) => Err(failed(origin, GAVE_UP.to_string())),
        Err(RecvTimeoutError::Timeout) => {
            if !ended.swap(true, Ordering::AcqRel) {
                LATE.fetch_add(1, Ordering::Relaxed);
            }
            Err(failed(origin, format!("the template did not finish within {} s", time.as_secs())))
        }
    }
}

/// Number of threads that are still running after their time limit. [`MOST_LATE`] is the maximum.
static LATE: AtomicUsize = AtomicUsize::new(0);
const MOST_LATE: usize = 4;

/// Guard that marks the end of a thread's work, even after a panic. A late thread is then no longer counted.
struct End(Arc<AtomicBool>);

impl Drop for End {
    fn drop(&mut self) {
        if self.0.swap(true, Ordering::AcqRel) {
            LATE.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

const GAVE_UP: &str = "the template renderer panicked";

fn builder() -> thread::Builder {
    thread::Builder::new().name("template".to_string()).stack_size(SIZE)
}

fn no_room(origin: &str, error: &std::io::Error) -> Error {
    Error::Template {
        origin: origin.to_string(),
        why: format!("cannot allocate a stack of {SIZE} bytes for the template: {error}"),
        mend: "raise the address space limit (`ulimit -v`), or choose another template with --chat-template NAME|FILE",
    }
}

fn failed(origin: &str, why: String) -> Error {
    let mend = "choose another template with --chat-template NAME|FILE, or fix a copy of this one";
    Error::Template { origin: origin.to_string(), why, mend }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_left_to_itself() {
        let (stop, wait) = mpsc::channel::<()>();
        let late = with_time("a test", Duration::from_millis(20), move || wait.recv().is_ok());
        let why = late.expect_err("too late").to_string();
        assert!(why.contains("did not finish within"), "{why}");
        assert_eq!(LATE.load(Ordering::Relaxed), 1);
        drop(stop);
        let whole = Duration::from_secs(60);
        assert_eq!(with_time("a test", whole, || 7).expect("in time"), 7);
        let why = with_time::<()>("a test", whole, || panic!("on purpose")).expect_err("a panic").to_string();
        assert!(why.contains("the template renderer panicked"), "{why}");
        while LATE.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
    }
}
