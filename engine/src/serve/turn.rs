//! Turns to evaluate: two contexts share the threads, and the cores are one's at a time.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A lock that is given in the order in which it is asked for: who lets go and asks again at once waits behind the other.
#[derive(Debug, Default)]
pub struct Turn {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The number that the next one gets.
    next: u64,
    /// Whose turn it is.
    now: u64,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub struct Taken<'a>(&'a Turn);

impl Turn {
    /// Waits for a turn.
    pub fn take(&self) -> Taken<'_> {
        let mut state = self.lock();
        let mine = state.next;
        state.next += 1;
        while state.now != mine {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Taken(self)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Two numbers are whole between two calls.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.now += 1;
        let somebody_waits = state.now != state.next;
        drop(state);
        if somebody_waits {
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn one_at_a_time_and_whoever_waits_is_next() {
        let (turn, inside) = (Arc::new(Turn::default()), Arc::new(AtomicU32::new(0)));
        let first = turn.take();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (turn, inside) = (Arc::clone(&turn), Arc::clone(&inside));
                std::thread::spawn(move || {
                    for _ in 0..200 {
                        let taken = turn.take();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                        drop(taken);
                    }
                })
            })
            .collect();
        // All three wait; who lets go and asks again comes after them.
        while turn.lock().next < 4 {
            std::thread::yield_now();
        }
        drop(first);
        let again = turn.take();
        assert!(turn.lock().now >= 4, "others were first");
        drop(again);
        for thread in threads {
            thread.join().expect("no panic");
        }
    }
}
