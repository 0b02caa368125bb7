//! Bounded queue of requests that wait for a slot. The queue is fair between clients.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine_core::core_lock::Seat;

use super::client::Client;
use super::job::Job;
use super::pools::{Notice, PoolNotices};
use super::scheduler::rules::Rules;
use super::scope::Owners;
use crate::closing::Closing;

/// Queue with one line per client. Items are taken from the lines in turn.
#[derive(Debug)]
pub struct FairQueue<K, T> {
    lines: HashMap<K, VecDeque<T>>,
    /// Clients with waiting items, in the order in which they are served.
    turns: VecDeque<K>,
    len: usize,
}

impl<K: Clone + Eq + Hash, T> Default for FairQueue<K, T> {
    fn default() -> Self {
        FairQueue { lines: HashMap::new(), turns: VecDeque::new(), len: 0 }
    }
}

impl<K: Clone + Eq + Hash, T> FairQueue<K, T> {
    /// Returns the number of waiting items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if no item waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends `item` to the line of `client`.
    pub fn push(&mut self, client: K, item: T) {
        let line = self.lines.entry(client.clone()).or_default();
        if line.is_empty() {
            self.turns.push_back(client);
        }
        line.push_back(item);
        self.len += 1;
    }

    /// Puts `item` before all others.
    pub fn push_front(&mut self, client: K, item: T) {
        self.turns.retain(|other| *other != client);
        self.turns.push_front(client.clone());
        self.lines.entry(client).or_default().push_front(item);
        self.len += 1;
    }

    /// Takes the next item.
    pub fn pop(&mut self) -> Option<T> {
        let client = self.turns.pop_front()?;
        let line = self.lines.get_mut(&client)?;
        let item = line.pop_front()?;
        match line.is_empty() {
            true => drop(self.lines.remove(&client)),
            false => self.turns.push_back(client),
        }
        self.len -= 1;
        Some(item)
    }

    /// True if a client other than `client` waits.
    pub fn has_others(&self, client: &K) -> bool {
        self.turns.iter().any(|other| other != client)
    }

    /// Returns the next item without taking it.
    pub fn first(&mut self) -> Option<&mut T> {
        self.lines.get_mut(self.turns.front()?)?.front_mut()
    }

    /// Takes the first item that matches `wanted`, searching one client's line after another. The item's client then
    /// moves to the end of the order. The next client keeps its position if the item was not the first in its line.
    pub fn pop_where(&mut self, wanted: impl Fn(&T) -> bool) -> Option<T> {
        let found = self.turns.iter().enumerate().find_map(|(turn, client)| {
            let at = self.lines.get(client)?.iter().position(&wanted)?;
            Some((turn, at))
        });
        let (turn, at) = found?;
        if (turn, at) == (0, 0) {
            return self.pop();
        }
        let client = self.turns.get(turn)?.clone();
        let line = self.lines.get_mut(&client)?;
        let item = line.remove(at)?;
        let is_over = line.is_empty();
        if is_over {
            self.lines.remove(&client);
        }
        if turn > 0 {
            self.turns.remove(turn);
            if !is_over {
                self.turns.push_back(client);
            }
        }
        self.len -= 1;
        Some(item)
    }

    /// True if an item matches `wanted`.
    pub fn any(&self, wanted: impl Fn(&T) -> bool) -> bool {
        self.lines.values().flatten().any(wanted)
    }

    /// Takes all items that match `wanted`.
    pub fn take(&mut self, wanted: impl Fn(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        for line in self.lines.values_mut() {
            let (out, stay) = line.drain(..).partition(|item| wanted(item));
            *line = stay;
            taken.extend::<VecDeque<T>>(out);
        }
        self.lines.retain(|_, line| !line.is_empty());
        self.turns.retain(|client| self.lines.contains_key(client));
        self.len -= taken.len();
        taken
    }
}

/// Reason for refusing a job.
#[derive(Debug, PartialEq, Eq)]
pub enum QueueRefusal {
    /// The queue is full.
    Busy {
        /// Number of waiting jobs.
        waiting: usize,
    },
    /// The server is shutting down.
    Stopping,
}

/// Queue between the connections and the schedulers.
pub struct Inbox {
    /// Seats of the core lock, one for each pool. The embedding thread also uses the first seat.
    pub seats: Vec<Seat>,
    state: Mutex<InboxState>,
    arrived: Condvar,
}

/// Maximum number of jobs that may overtake a job that does not fit. At this number, or after the time `PASSING`,
/// other jobs wait until the job fits.
const PASSES: u32 = 16;
const PASSING: Duration = Duration::from_secs(5);

#[derive(Default)]
struct InboxState {
    queue: FairQueue<Client, Job>,
    closing: Closing,
    bound: usize,
    step: Option<Duration>,
    /// Changed rules and owners, with the number of changes so far.
    rules: Option<(u64, Rules, Arc<Owners>)>,
    /// Notices of the pools. Not used with a single pool.
    notices: PoolNotices,
}

impl Inbox {
    /// Creates an inbox for `bound` waiting jobs, with one scheduler per seat.
    pub fn new(bound: usize, seats: Vec<Seat>) -> Self {
        let state = InboxState { bound, notices: PoolNotices::new(seats.len()), ..InboxState::default() };
        Inbox { seats, state: Mutex::new(state), arrived: Condvar::new() }
    }

    /// Returns the maximum number of waiting jobs.
    pub fn bound(&self) -> usize {
        self.lock().bound
    }

    /// Changes the maximum number of waiting jobs, the scheduler's rules, and the owners whose prompts are kept.
    pub fn change(&self, bound: usize, rules: Rules, owners: Owners) {
        let mut state = self.lock();
        let version = state.rules.as_ref().map_or(0, |(version, ..)| *version) + 1;
        let changed = (version, rules, Arc::new(owners));
        (state.bound, state.step, state.rules) = (bound, Some(rules.step), Some(changed));
        drop(state);
        self.arrived.notify_all();
    }

    /// Returns the new time limit for batches that contain generating slots; `None` if the limit was not changed.
    pub fn step(&self) -> Option<Duration> {
        self.lock().step
    }

    /// Returns changed rules and owners that the scheduler has not yet seen. `seen` is the number of changes that the
    /// scheduler has seen.
    pub fn new_rules(&self, seen: &mut u64) -> Option<(Rules, Arc<Owners>)> {
        let state = self.lock();
        let (version, rules, owners) = state.rules.as_ref().filter(|(version, ..)| version > seen)?;
        *seen = *version;
        Some((*rules, Arc::clone(owners)))
    }

    /// True if the model has several pools.
    pub fn has_pools(&self) -> bool {
        self.seats.len() > 1
    }

    /// Posts the notice of `pool`.
    pub fn post(&self, pool: usize, notice: Notice) {
        if self.lock().notices.post(pool, notice) {
            self.arrived.notify_all();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, InboxState> {
        // The queue is valid even after a panic, because no call leaves it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues `job`.
    ///
    /// # Errors
    /// If the queue is full, or if the server is shutting down.
    pub fn push(&self, job: Job) -> Result<(), QueueRefusal> {
        self.push_all(vec![job])
    }

    /// Queues all `jobs` or none.
    ///
    /// # Errors
    /// If the queue has too little room, or if the server is shutting down.
    pub fn push_all(&self, jobs: Vec<Job>) -> Result<(), QueueRefusal> {
        let mut state = self.lock();
        if state.closing != Closing::Open {
            return Err(QueueRefusal::Stopping);
        }
        let room = |state: &InboxState| state.queue.len() + jobs.len() <= state.bound;
        if !room(&state) {
            // Drops jobs whose client has disconnected.
            drop(state.queue.take(Job::is_abandoned));
        }
        if !room(&state) {
            return Err(QueueRefusal::Busy { waiting: state.queue.len() });
        }
        for job in jobs {
            state.queue.push(job.client.clone(), job);
        }
        drop(state);
        self.arrived.notify_all();
        Ok(())
    }

    /// Puts a job back at the front of the queue.
    pub fn put_back(&self, job: Job) {
        self.lock().queue.push_front(job.client.clone(), job);
    }

    /// Takes the next job that `fits` in `pool`. Other jobs may overtake a job that does not fit, up to a limit.
    pub fn pop(&self, pool: usize, fits: impl Fn(&Job) -> bool) -> Option<Job> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if self.has_pools() {
            // A job that suits another pool better waits for that pool.
            let notices = &state.notices;
            let job =
                state.queue.pop_where(|job| fits(job) && notices.is_best(pool, job.scope, &job.prompt))?;
            state.notices.took(pool);
            return Some(job);
        }
        let first = state.queue.first()?;
        if fits(first) {
            return state.queue.pop();
        }
        // A job may always be overtaken while it waits for another answer to its own request.
        if first.waits() {
            return state.queue.pop_where(fits);
        }
        let (passes, since) = *first.passed.get_or_insert((0, Instant::now()));
        if passes >= PASSES || since.elapsed() >= PASSING {
            return None;
        }
        let job = state.queue.pop_where(fits)?;
        if let Some(passed) = state.queue.first().and_then(|first| first.passed.as_mut()) {
            passed.0 += 1;
        }
        Some(job)
    }

    /// Takes all jobs that match `wanted`.
    pub fn take(&self, wanted: impl Fn(&Job) -> bool) -> Vec<Job> {
        self.lock().queue.take(wanted)
    }

    /// Returns the number of waiting jobs.
    pub fn len(&self) -> usize {
        self.lock().queue.len()
    }

    /// True if no job waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if a client other than `client` waits.
    pub fn has_others(&self, client: &Client) -> bool {
        self.lock().queue.has_others(client)
    }

    /// Advances the shutdown to the stage `closing`. Never returns to an earlier stage.
    pub fn close(&self, closing: Closing) {
        let mut state = self.lock();
        state.closing = state.closing.max(closing);
        drop(state);
        self.arrived.notify_all();
    }

    /// Returns the stage of the shutdown.
    pub fn closing(&self) -> Closing {
        self.lock().closing
    }

    /// Sleeps until a job for `pool` waits or the shutdown advances beyond `closing`, but at most for `most`.
    pub fn wait(&self, pool: usize, closing: Closing, most: Duration) {
        let state = self.lock();
        let for_it = |state: &InboxState| {
            !self.has_pools() || state.queue.any(|job| state.notices.is_best(pool, job.scope, &job.prompt))
        };
        let nothing =
            |state: &mut InboxState| state.closing == closing && (state.queue.is_empty() || !for_it(state));
        drop(self.arrived.wait_timeout_while(state, most, nothing));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_take_turns() {
        let mut queue = FairQueue::default();
        for (client, item) in [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)] {
            queue.push(client, item);
        }
        assert_eq!(queue.len(), 6);
        assert!(queue.has_others(&"a"));
        let order: Vec<i32> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [1, 4, 5, 2, 6, 3]);
        assert!(queue.is_empty());
        queue.push("a", 7);
        assert!(!queue.has_others(&"a") && queue.has_others(&"b"));
    }

    #[test]
    fn what_is_put_back_comes_first() {
        let mut queue = FairQueue::default();
        for (client, item) in [("a", 1), ("b", 2), ("b", 3)] {
            queue.push(client, item);
        }
        queue.push_front("b", 0);
        queue.push_front("d", 9);
        let order: Vec<i32> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [9, 0, 1, 2, 3]);
    }

    #[test]
    fn others_pass_one_that_does_not_fit() {
        let mut queue = FairQueue::default();
        for (client, item) in [("a", 100), ("a", 1), ("b", 101), ("b", 2), ("b", 3), ("c", 4)] {
            queue.push(client, item);
        }
        let order: Vec<i32> = std::iter::from_fn(|| queue.pop_where(|item| *item < 100)).collect();
        // The next client keeps its position, and the others alternate.
        assert_eq!((order, queue.len()), (vec![1, 2, 4, 3], 2));
        assert_eq!(queue.first(), Some(&mut 100));
        let order: Vec<i32> = std::iter::from_fn(|| queue.pop_where(|_| true)).collect();
        assert_eq!(order, [100, 101]);
        assert!(queue.is_empty() && queue.first().is_none());
    }

    #[test]
    fn some_are_taken_out() {
        let mut queue = FairQueue::default();
        for (client, item) in [("a", 1), ("b", 2), ("a", 3), ("c", 4)] {
            queue.push(client, item);
        }
        let mut taken = queue.take(|item| item % 2 == 0);
        taken.sort_unstable();
        assert_eq!((taken, queue.len()), (vec![2, 4], 2));
        queue.push("b", 6);
        let order: Vec<i32> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [1, 6, 3]);
    }
}
