//! Requests that wait for a slot: so many and no more, and each client in its turn.

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

/// A queue in which each client has a line of its own; lines are served in turn.
#[derive(Debug)]
pub struct FairQueue<K, T> {
    lines: HashMap<K, VecDeque<T>>,
    /// Clients with someone in their line, the next one first.
    turns: VecDeque<K>,
    len: usize,
}

impl<K: Clone + Eq + Hash, T> Default for FairQueue<K, T> {
    fn default() -> Self {
        FairQueue { lines: HashMap::new(), turns: VecDeque::new(), len: 0 }
    }
}

impl<K: Clone + Eq + Hash, T> FairQueue<K, T> {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts `item` at the end of the line of `client`.
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

    /// The next one.
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

    /// Whether anyone but `client` waits.
    pub fn has_others(&self, client: &K) -> bool {
        self.turns.iter().any(|other| other != client)
    }

    /// The next one, where it stays.
    pub fn first(&mut self) -> Option<&mut T> {
        self.lines.get_mut(self.turns.front()?)?.front_mut()
    }

    /// The first one that `wanted` says, line after line; a line from which one was taken comes last, but for the next
    /// one's own.
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

    /// Whether there is one that `wanted` says.
    pub fn any(&self, wanted: impl Fn(&T) -> bool) -> bool {
        self.lines.values().flatten().any(wanted)
    }

    /// Takes out all that `wanted` says.
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

/// Why a job was not taken.
#[derive(Debug, PartialEq, Eq)]
pub enum QueueRefusal {
    /// So many wait already.
    Busy {
        /// How many.
        waiting: usize,
    },
    /// The server stops.
    Stopping,
}

/// The way of jobs from the transports to the scheduler.
pub struct Inbox {
    /// Whose turn it is to evaluate, for each pool: its scheduler's, or, in the first, that of whoever makes embeddings.
    pub seats: Vec<Seat>,
    state: Mutex<InboxState>,
    arrived: Condvar,
}

/// How many may go before one that does not fit, and how long it is passed: then the others wait until it fits.
const PASSES: u32 = 16;
const PASSING: Duration = Duration::from_secs(5);

#[derive(Default)]
struct InboxState {
    queue: FairQueue<Client, Job>,
    closing: Closing,
    bound: usize,
    step: Option<Duration>,
    /// New ones, and how often there were any.
    rules: Option<(u64, Rules, Arc<Owners>)>,
    /// What the pools tell each other; nothing where there is one.
    notices: PoolNotices,
}

impl Inbox {
    /// An inbox for `bound` jobs that wait, and for a scheduler in each of `seats`.
    pub fn new(bound: usize, seats: Vec<Seat>) -> Self {
        let state = InboxState { bound, notices: PoolNotices::new(seats.len()), ..InboxState::default() };
        Inbox { seats, state: Mutex::new(state), arrived: Condvar::new() }
    }

    /// How many may wait.
    pub fn bound(&self) -> usize {
        self.lock().bound
    }

    /// Lets `bound` jobs wait from now on, and the scheduler work by `rules` and keep the prompts of `owners` alone.
    pub fn change(&self, bound: usize, rules: Rules, owners: Owners) {
        let mut state = self.lock();
        let version = state.rules.as_ref().map_or(0, |(version, ..)| *version) + 1;
        let changed = (version, rules, Arc::new(owners));
        (state.bound, state.step, state.rules) = (bound, Some(rules.step), Some(changed));
        drop(state);
        self.arrived.notify_all();
    }

    /// How long a batch may take in which anyone generates, where that was changed.
    pub fn step(&self) -> Option<Duration> {
        self.lock().step
    }

    /// Rules and owners that are new to a scheduler that has `seen` so many.
    pub fn new_rules(&self, seen: &mut u64) -> Option<(Rules, Arc<Owners>)> {
        let state = self.lock();
        let (version, rules, owners) = state.rules.as_ref().filter(|(version, ..)| version > seen)?;
        *seen = *version;
        Some((*rules, Arc::clone(owners)))
    }

    /// Whether there are several pools.
    pub fn has_pools(&self) -> bool {
        self.seats.len() > 1
    }

    /// Tells the other pools of `pool`.
    pub fn post(&self, pool: usize, notice: Notice) {
        if self.lock().notices.post(pool, notice) {
            self.arrived.notify_all();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, InboxState> {
        // Whatever panicked, the queue is whole between two calls.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts `job` in the queue.
    pub fn push(&self, job: Job) -> Result<(), QueueRefusal> {
        self.push_all(vec![job])
    }

    /// Puts all of `jobs` in the queue, or none.
    pub fn push_all(&self, jobs: Vec<Job>) -> Result<(), QueueRefusal> {
        let mut state = self.lock();
        if state.closing != Closing::Open {
            return Err(QueueRefusal::Stopping);
        }
        let room = |state: &InboxState| state.queue.len() + jobs.len() <= state.bound;
        if !room(&state) {
            // Whoever is gone does not wait.
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

    /// Puts back a job that was taken, as the next one.
    pub fn put_back(&self, job: Job) {
        self.lock().queue.push_front(job.client.clone(), job);
    }

    /// The next job that `fits` in `pool`. One that does not is passed, but not for ever.
    pub fn pop(&self, pool: usize, fits: impl Fn(&Job) -> bool) -> Option<Job> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if self.has_pools() {
            // What another pool is better for waits until that takes it.
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
        // One that waits for another of its own request is passed by all until then.
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

    /// Takes out the jobs that `wanted` says.
    pub fn take(&self, wanted: impl Fn(&Job) -> bool) -> Vec<Job> {
        self.lock().queue.take(wanted)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.lock().queue.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether anyone but `client` waits.
    pub fn has_others(&self, client: &Client) -> bool {
        self.lock().queue.has_others(client)
    }

    /// Goes on to `closing`, never back.
    pub fn close(&self, closing: Closing) {
        let mut state = self.lock();
        state.closing = state.closing.max(closing);
        drop(state);
        self.arrived.notify_all();
    }

    /// How far the end is.
    pub fn closing(&self) -> Closing {
        self.lock().closing
    }

    /// Sleeps until a job for `pool` waits, the end comes nearer than `closing`, or `most` is over.
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
        // The next one keeps its place; the others take turns.
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
