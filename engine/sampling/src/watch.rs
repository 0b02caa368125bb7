//! Ends steps of a grammar that take too long. llguidance counts what it makes, which bounds memory, but what it makes takes
//! longer the more ambiguous a grammar is. What counts is what the step computes: on a machine out of breath, or held by a
//! quota, a good grammar must not fail.

use std::sync::{Condvar, Mutex, Once, PoisonError};
use std::time::Duration;

use llama::ThreadClock;
use llguidance::CancellationHandle;

/// What a step may compute. Usual ones take far less than a millisecond.
pub(super) const STEP: Duration = Duration::from_millis(500);

/// How often the watch looks, while there is something to look at.
const ROUND: Duration = Duration::from_millis(50);

/// Rounds without a step until the watch sleeps.
const QUIET: u32 = 20;

/// A step that somebody takes at this moment.
struct WatchedStep {
    id: u64,
    /// Of the thread that takes it.
    clock: ThreadClock,
    /// When that clock says so much, it took too long.
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

/// Does `work`, and cancels what belongs to `handle` if this thread computes longer than [`STEP`] for it.
pub(super) fn watched<T>(handle: Option<CancellationHandle>, work: impl FnOnce() -> T) -> T {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // Without it, steps have llguidance's own bounds.
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
