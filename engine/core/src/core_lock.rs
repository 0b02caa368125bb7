//! Lock on CPU cores: contexts that share cores take turns to compute.
//!
//! A seat is a context's right to take the lock, and specifies the cores that the context computes on. Contexts on
//! different cores do not wait for each other.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time after its last turn during which a seat is considered active. Polling threads stop polling before this time has
/// passed.
const RECENT: Duration = Duration::from_secs(1);

/// Cores that a context computes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cores {
    /// Any cores of the machine.
    All,
    /// The CPUs with these numbers.
    These(Vec<u32>),
}

impl Cores {
    fn meet(&self, other: &Cores) -> bool {
        match (self, other) {
            (Cores::These(one), Cores::These(other)) => one.iter().any(|cpu| other.contains(cpu)),
            _ => true,
        }
    }
}

/// Lock on all cores of a machine. The lock is granted in the order of requests, so a context that releases the lock
/// and requests it again waits behind the other contexts.
#[derive(Debug, Default)]
pub struct Turns {
    state: Mutex<LockState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LockState {
    /// Number of the next request.
    next: u64,
    /// Requests that hold the lock or wait for the lock, in order.
    line: VecDeque<(u64, Arc<Cores>)>,
    /// All seats, with the time of each seat's last turn.
    seats: Vec<(Arc<Cores>, Option<Instant>)>,
}

/// Right of a context to lock its cores.
#[derive(Debug)]
pub struct Seat {
    turns: Arc<Turns>,
    cores: Arc<Cores>,
}

/// A context's turn on the cores. Dropping the value ends the turn.
#[derive(Debug)]
pub struct Taken<'a> {
    turns: &'a Turns,
    number: u64,
    /// True if another seat used some of these cores within the last second.
    pub is_shared: bool,
}

impl Turns {
    /// Returns a seat for a context on `cores`.
    pub fn seat(self: &Arc<Self>, cores: Cores) -> Seat {
        let cores = Arc::new(cores);
        self.lock().seats.push((Arc::clone(&cores), None));
        Seat { turns: Arc::clone(self), cores }
    }

    fn lock(&self) -> MutexGuard<'_, LockState> {
        // The state is valid after every change, so a poisoned lock is still usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Waits until the cores are free, then locks them.
    pub fn take(&self) -> Taken<'_> {
        let mut state = self.turns.lock();
        let number = state.next;
        state.next += 1;
        state.line.push_back((number, Arc::clone(&self.cores)));
        let waits = |state: &LockState| {
            let mut before = state.line.iter().take_while(|(other, _)| *other != number);
            before.any(|(_, cores)| cores.meet(&self.cores))
        };
        while waits(&state) {
            state = self.turns.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let (now, mut is_shared) = (Instant::now(), false);
        for (cores, last) in &mut state.seats {
            match Arc::ptr_eq(cores, &self.cores) {
                true => *last = Some(now),
                false => {
                    let is_recent = last.is_some_and(|last| now.saturating_duration_since(last) < RECENT);
                    is_shared |= is_recent && cores.meet(&self.cores);
                }
            }
        }
        Taken { turns: &self.turns, number, is_shared }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.turns.lock().seats.retain(|(cores, _)| !Arc::ptr_eq(cores, &self.cores));
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        state.line.retain(|(number, _)| *number != self.number);
        let somebody_waits = !state.line.is_empty();
        drop(state);
        if somebody_waits {
            self.turns.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn one_at_a_time_and_whoever_waits_is_next() {
        let turns = Arc::new(Turns::default());
        let (seat, inside) = (Arc::new(turns.seat(Cores::All)), Arc::new(AtomicU32::new(0)));
        let first = seat.take();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (seat, inside) = (Arc::clone(&seat), Arc::clone(&inside));
                std::thread::spawn(move || {
                    for _ in 0..200 {
                        let taken = seat.take();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                        drop(taken);
                    }
                })
            })
            .collect();
        // All three threads are waiting, and a new request joins the end of the queue.
        while turns.lock().next < 4 {
            std::thread::yield_now();
        }
        drop(first);
        let again = seat.take();
        assert!(turns.lock().line.iter().all(|(number, _)| *number > 3), "others were first");
        drop(again);
        for thread in threads {
            thread.join().expect("no panic");
        }
    }

    #[test]
    fn only_those_on_the_same_cores_wait() {
        let turns = Arc::new(Turns::default());
        let (one, other) = (turns.seat(Cores::These(vec![0, 1])), turns.seat(Cores::These(vec![2, 3])));
        let held = one.take();
        // The lock is taken on this thread, so that an incorrect wait hangs the test instead of only delaying it.
        let beside = other.take();
        assert!(!held.is_shared && !beside.is_shared);
        let both = turns.seat(Cores::These(vec![1, 2]));
        drop((held, beside));
        assert!(!one.take().is_shared, "the third had no turn yet");
        assert!(both.take().is_shared && one.take().is_shared && other.take().is_shared);
        drop(both);
        assert!(!one.take().is_shared);
        let all = turns.seat(Cores::All);
        assert!(all.take().is_shared && one.take().is_shared);
    }
}
