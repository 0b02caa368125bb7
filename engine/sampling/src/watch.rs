//! Watch that cancels grammar steps that take too long. llguidance limits the number of items, which limits its memory,
//! but a single item of an ambiguous grammar can take a long time. The watch measures CPU time, so that a good grammar
//! does not fail on an overloaded machine or under a CPU quota.

use std::sync::{Condvar, Mutex, Once, PoisonError};
use std::time::Duration;

use llama::ThreadClock;
use llguidance::CancellationHandle;

/// Maximum CPU time of a step. Ordinary steps take far less than a millisecond.
pub(super) const STEP: Duration = Duration::from_millis(500);

/// Interval between two checks while a step is running.
const ROUND: Duration = Duration::from_millis(50);

/// Number of checks without a step after which the watch sleeps.
const QUIET: u32 = 20;

/// A step in progress.
struct WatchedStep {
    id: u64,
    /// CPU clock of the thread that runs the step.
    clock: ThreadClock,
    /// Time on `clock` at which the step is cancelled.
    end: Duration,
    handle: CancellationHandle,
}

struct Watched {
    steps: Vec<WatchedStep>,
    next: u64,
    asleep: bool,
}

static WATCHED: Mutex<Watched> = Mutex::new(Watched { steps: Vec::new(), next: 0, asleep: true });
static WAKE: Condvar = Condvar::new();

/// Runs `work`, and cancels it with `handle` if this thread uses more CPU time than [`STEP`].
pub(super) fn watched<T>(handle: Option<CancellationHandle>, work: impl FnOnce() -> T) -> T {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // Without the watch, only llguidance's own limits apply.
        let _ = std::thread::Builder::new().name("grammar watch".to_string()).spawn(watch);
    });
    let Some((handle, clock)) = handle.zip(ThreadClock::own()) else { return work() };
    let end = clock.time().unwrap_or_default() + STEP;
    let id = {
        let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        watched.next += 1;
        let id = watched.next;
        watched.steps.push(WatchedStep { id, clock, end, handle });
        if std::mem::take(&mut watched.asleep) {
            WAKE.notify_one();
        }
        id
    };
    let done = work();
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner).steps.retain(|step| step.id != id);
    done
}

fn watch() {
    let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut seen, mut quiet) = (0, 0);
    loop {
        let late = |step: &&WatchedStep| step.clock.time().is_some_and(|time| time > step.end);
        watched.steps.iter().filter(late).for_each(|step| step.handle.cancel());
        quiet = if watched.next == seen && watched.steps.is_empty() { quiet + 1 } else { 0 };
        seen = watched.next;
        watched.asleep = quiet > QUIET;
        watched = match watched.asleep {
            true => WAKE.wait(watched).unwrap_or_else(PoisonError::into_inner),
            false => WAKE.wait_timeout(watched, ROUND).unwrap_or_else(PoisonError::into_inner).0,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use llama::thread_time;

    use super::*;

    #[test]
    fn what_a_step_computes_counts_and_not_how_long_it_waits() {
        let handle = CancellationHandle::default();
        watched(Some(handle.clone()), || std::thread::sleep(2 * STEP));
        assert!(!handle.is_cancelled(), "it waited, and did nothing");

        let (begun, until) = (thread_time(), Instant::now() + Duration::from_secs(120));
        watched(Some(handle.clone()), || while !handle.is_cancelled() && Instant::now() < until {});
        let took = thread_time() - begun;
        assert!(handle.is_cancelled(), "nobody ended it after {took:?}");
        assert!(took >= STEP, "it was ended after {took:?}");
    }
}
