//! A stack for templates.
//!
//! minijinja goes down into expressions and values by recursion: it compiles `a.b.b.b…` and drops `[[[…]]]` one native
//! call a level. Both are as deep as a template's source is long or its steps allow, which is deeper than the stack of a
//! server's thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use llama::error::{Error, Result};

/// Bytes of address space; what is not touched takes no memory. Enough for the longest source and the most steps in a
/// build without optimisation, whose frames are the largest: the tests try it.
const SIZE: usize = 512 << 20;

/// Does `work` in a thread with a stack for the deepest template, and with an end after `time`. What it returns must not be
/// nested itself. A thread cannot be stopped: work that takes longer goes on behind the caller's back until its steps are
/// used up, and nobody gets what it returns. While [`MOST_LATE`] such threads are at it, no more work is taken on.
///
/// # Errors
/// When there is no memory for the stack, `work` panics, or `time` is over; `origin` is the template's.
pub(super) fn with_time<T: Send + 'static>(
    origin: &str,
    time: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    if LATE.load(Ordering::Relaxed) >= MOST_LATE {
        return Err(failed(origin, format!("{MOST_LATE} others that came to no end are still at work")));
    }
    let (sender, receiver) = mpsc::sync_channel(1);
    // Whether the caller has left, and so whether the work is late: the first to ask sets it.
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
            Err(failed(origin, format!("it came to no end within {} s", time.as_secs())))
        }
    }
}

/// Threads that go on after their time, and how many of them there may be.
static LATE: AtomicUsize = AtomicUsize::new(0);
const MOST_LATE: usize = 4;

/// Ends a thread's work, panic or not: one that was late is so no more.
struct End(Arc<AtomicBool>);

impl Drop for End {
    fn drop(&mut self) {
        if self.0.swap(true, Ordering::AcqRel) {
            LATE.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

const GAVE_UP: &str = "rendering it ended with a mistake of the renderer";

fn builder() -> thread::Builder {
    thread::Builder::new().name("template".to_string()).stack_size(SIZE)
}

fn no_room(origin: &str, error: &std::io::Error) -> Error {
    Error::Template {
        origin: origin.to_string(),
        why: format!("there is no room for its stack of {SIZE} bytes: {error}"),
        mend: "raise the limit of address space (`ulimit -v`), or take another with --chat-template NAME|FILE",
    }
}

fn failed(origin: &str, why: String) -> Error {
    let mend = "take another with --chat-template NAME|FILE, or mend it in a copy";
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
        assert!(why.contains("no end within"), "{why}");
        assert_eq!(LATE.load(Ordering::Relaxed), 1);
        drop(stop);
        let whole = Duration::from_secs(60);
        assert_eq!(with_time("a test", whole, || 7).expect("in time"), 7);
        let why = with_time::<()>("a test", whole, || panic!("on purpose")).expect_err("a panic").to_string();
        assert!(why.contains("mistake of the renderer"), "{why}");
        while LATE.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
    }
}
