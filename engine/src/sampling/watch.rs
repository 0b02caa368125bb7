//! Ends steps of a grammar that take too long. llguidance counts what it makes, which bounds memory, but what it makes takes
//! longer the more ambiguous a grammar is.

use std::sync::{Condvar, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use llguidance::CancellationHandle;

/// What a step may take. Usual ones take far less than a millisecond.
pub(super) const STEP: Duration = Duration::from_millis(500);

/// How often the watch looks, while there is something to look at.
const ROUND: Duration = Duration::from_millis(50);

/// Rounds without a step until the watch sleeps.
const QUIET: u32 = 20;

struct Watched {
    steps: Vec<(u64, Instant, CancellationHandle)>,
    next: u64,
    asleep: bool,
}

static WATCHED: Mutex<Watched> = Mutex::new(Watched { steps: Vec::new(), next: 0, asleep: true });
static WAKE: Condvar = Condvar::new();

/// Does `work`, and cancels what belongs to `handle` if that takes longer than [`STEP`].
pub(super) fn watched<T>(handle: Option<CancellationHandle>, work: impl FnOnce() -> T) -> T {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // Without it, steps have llguidance's own bounds.
        let _ = std::thread::Builder::new().name("grammar watch".to_string()).spawn(watch);
    });
    let Some(handle) = handle else { return work() };
    let id = {
        let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        watched.next += 1;
        let id = watched.next;
        watched.steps.push((id, Instant::now() + STEP, handle));
        if std::mem::take(&mut watched.asleep) {
            WAKE.notify_one();
        }
        id
    };
    let done = work();
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner).steps.retain(|(other, ..)| *other != id);
    done
}

fn watch() {
    let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut seen, mut quiet) = (0, 0);
    loop {
        let now = Instant::now();
        watched.steps.iter().filter(|(_, end, _)| *end < now).for_each(|(.., handle)| handle.cancel());
        quiet = if watched.next == seen && watched.steps.is_empty() { quiet + 1 } else { 0 };
        seen = watched.next;
        watched.asleep = quiet > QUIET;
        watched = match watched.asleep {
            true => WAKE.wait(watched).unwrap_or_else(PoisonError::into_inner),
            false => WAKE.wait_timeout(watched, ROUND).unwrap_or_else(PoisonError::into_inner).0,
        };
    }
}
