//! Disk cache of evaluated prompts, with two threads. One thread finds and reads files, and the other writes files.
//!
//! The scheduler only copies states into and out of the context. All queues are bounded: lookups by the number of
//! free slots, loaded states by [`READ`] bytes, and states to be written by [`SAVES`]. If too many writes are
//! waiting, a new state is dropped.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use engine_core::cache::{BLOCK, CacheKey, Digest, Loaded, Saved, Store, Unfit};
use llama::Token;
use llama::error::{Error, Result};

use crate::caught::caught;
use crate::metrics::Metrics;

/// Maximum number of states that wait to be written, including the state that is being written. Each state is as
/// large as its part of the context.
const SAVES: usize = 2;

/// Maximum number of bytes of loaded states that wait for their slots. A single state may be larger. Without this
/// limit, one state per slot could fill the memory.
const READ: u64 = 512 << 20;

/// Maximum time that a state waits for memory before it is read. After that, the prompt is evaluated instead.
const ROOM: Duration = Duration::from_secs(2);

/// Interval at which pending reads and writes are polled.
const GLANCE: Duration = Duration::from_millis(5);

/// The scheduler's handle to the cache. Each lookup contains a `Job`, which is returned with the answer.
pub struct Disk<Job> {
    lookups: Sender<Lookup<Job>>,
    answers: Receiver<LookupAnswer<Job>>,
    /// Number of pending lookups.
    asked: usize,
    saves: Sender<Save>,
    shared: Arc<Shared>,
    store: Arc<Store>,
}

/// State that the scheduler and both threads of the cache share.
struct Shared {
    metrics: Arc<Metrics>,
    /// Number of states that are not written yet.
    waiting: AtomicUsize,
    /// Time per token of the last write, in nanoseconds. 0 before the first write.
    cost: AtomicU64,
    /// Last warning, so that a repeated warning is logged only once.
    said: Mutex<String>,
    /// Number of bytes of states that were read but are not yet in a context.
    read: AtomicU64,
}

/// Guard that counts the bytes of a loaded state until it is dropped.
struct Room(Arc<Shared>, u64);

impl Drop for Room {
    fn drop(&mut self) {
        self.0.read.fetch_sub(self.1, Ordering::AcqRel);
    }
}

struct Lookup<Job> {
    job: Job,
    scope: Digest,
    prompt: Vec<Token>,
    have: usize,
}

/// Result of a lookup.
pub struct LookupAnswer<Job> {
    /// Job that requested the lookup.
    pub job: Job,
    /// Loaded state. `None` if nothing usable was found.
    pub loaded: Option<Loaded>,
    /// Counts the bytes of `loaded` until the answer is dropped.
    _room: Option<Room>,
}

struct Save {
    scope: Digest,
    tokens: Vec<Token>,
    state: Vec<u8>,
}

impl Shared {
    fn warn(&self, text: &str) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if *said != text {
            llama::notice::warn(text);
            *said = text.to_string();
        }
    }

    /// Waits at most `most` until memory for a state of `bytes` bytes is free. `None` after a timeout. Only one thread
    /// calls this function.
    fn room(self: &Arc<Self>, bytes: u64, most: Duration) -> Option<Room> {
        let start = Instant::now();
        loop {
            let read = self.read.load(Ordering::Acquire);
            if read == 0 || read.saturating_add(bytes) <= READ {
                self.read.fetch_add(bytes, Ordering::AcqRel);
                return Some(Room(Arc::clone(self), bytes));
            }
            if start.elapsed() > most {
                return None;
            }
            std::thread::sleep(GLANCE);
        }
    }
}

impl<Job: Send + 'static> Disk<Job> {
    /// Starts both threads for `store` and a context of `n_ctx` tokens.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(store: Store, key: CacheKey, n_ctx: u32, metrics: Arc<Metrics>) -> Result<Self> {
        let (waiting, cost, said, read) = Default::default();
        let shared = Arc::new(Shared { metrics, waiting, cost, said, read });
        let store = Arc::new(store);
        let (lookups, asked) = channel::<Lookup<Job>>();
        let (answer, answers) = channel();
        let (saves, given) = channel::<Save>();
        let (its_store, its_shared) = (Arc::clone(&store), Arc::clone(&shared));
        let read = move || {
            for lookup in asked {
                let look_up = || look_up(&its_store, &key, n_ctx, &lookup, &its_shared);
                let found = caught("the prompt cache's reader", &its_shared.metrics, look_up);
                let (loaded, room) = found.flatten().unzip();
                if answer.send(LookupAnswer { job: lookup.job, loaded, _room: room }).is_err() {
                    return;
                }
            }
        };
        let (its_store, its_shared) = (Arc::clone(&store), Arc::clone(&shared));
        let write = move || {
            for save in given {
                // After a failed write, the state no longer counts as waiting.
                let write = || write(&its_store, &key, save, &its_shared);
                if caught("the prompt cache's writer", &its_shared.metrics, write).is_none() {
                    its_shared.metrics.cache_failures.add(1);
                }
                its_shared.waiting.fetch_sub(1, Ordering::AcqRel);
            }
        };
        let failed =
            |why: std::io::Error| Error::Serve(format!("cannot start a thread for the prompt cache: {why}"));
        Builder::new().name("cache-read".to_string()).spawn(read).map_err(failed)?;
        Builder::new().name("cache-write".to_string()).spawn(write).map_err(failed)?;
        Ok(Disk { lookups, answers, asked: 0, saves, shared, store })
    }

    /// Starts a search in the files of `scope` for a state that contains more of `prompt` than its first `have` tokens.
    ///
    /// # Errors
    /// Returns the job if the reading thread has ended.
    pub fn look_up(
        &mut self,
        job: Job,
        scope: Digest,
        prompt: Vec<Token>,
        have: usize,
    ) -> std::result::Result<(), Job> {
        self.lookups.send(Lookup { job, scope, prompt, have }).map_err(|unsent| unsent.0.job)?;
        self.asked += 1;
        Ok(())
    }

    /// Returns the number of pending lookups.
    pub fn asked(&self) -> usize {
        self.asked
    }

    /// Returns the next answer if one is available.
    pub fn answer(&mut self) -> Option<LookupAnswer<Job>> {
        match self.answers.try_recv() {
            Ok(answer) => {
                self.asked -= 1;
                Some(answer)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                self.asked = 0;
                None
            }
        }
    }

    /// True if writing the sequence takes less time than evaluating its new tokens again. `tokens` is the length of
    /// the sequence, `new` the number of its tokens that are not on the disk, and `evaluate` the evaluation time per
    /// token in seconds. False for a read-only store, and for fewer than [`BLOCK`] new tokens.
    pub fn is_worth(&self, new: usize, tokens: usize, evaluate: Option<f64>) -> bool {
        let cost = self.shared.cost.load(Ordering::Relaxed) as f64 / 1e9;
        let worth = evaluate.is_none_or(|evaluate| evaluate * new as f64 > cost * tokens as f64);
        !self.store.is_read_only() && new >= BLOCK && worth
    }

    /// True if another state can be queued for writing. If not, counts the state as dropped.
    pub fn has_room(&self) -> bool {
        let room = self.shared.waiting.load(Ordering::Acquire) < SAVES;
        if !room {
            self.shared.metrics.cache_dropped.add(1);
        }
        room
    }

    /// Waits until another state can be queued for writing. Returns false if `stop` returned true first.
    pub fn wait_for_room(&self, stop: impl Fn() -> bool) -> bool {
        self.wait(SAVES - 1, stop)
    }

    /// Waits until all states are written. Returns false if `stop` returned true first.
    pub fn wait_for_writes(&self, stop: impl Fn() -> bool) -> bool {
        self.wait(0, stop)
    }

    fn wait(&self, most: usize, stop: impl Fn() -> bool) -> bool {
        while self.shared.waiting.load(Ordering::Acquire) > most {
            if stop() {
                return false;
            }
            std::thread::sleep(GLANCE);
        }
        true
    }

    /// Queues the `state` of `tokens` for writing. Only requests of `scope` may use the state.
    pub fn save(&mut self, scope: Digest, tokens: Vec<Token>, state: Vec<u8>) {
        self.shared.waiting.fetch_add(1, Ordering::AcqRel);
        if self.saves.send(Save { scope, tokens, state }).is_err() {
            self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
            self.failed("cannot write the prompt cache: the writing thread has ended");
        }
    }

    /// Removes the file of a loaded state that the context rejected for the reason `why`. Counts and logs the
    /// failure.
    pub fn refused(&self, loaded: &Loaded, why: String) {
        let mut notes = Vec::new();
        self.store.discard(&loaded.path, &Unfit::Refused(why), &mut notes);
        notes.iter().for_each(|note| self.failed(note));
    }

    /// Counts and logs a failure.
    pub fn failed(&self, why: &str) {
        self.shared.metrics.cache_failures.add(1);
        self.shared.warn(why);
    }
}

fn look_up<Job>(
    store: &Store,
    key: &CacheKey,
    n_ctx: u32,
    lookup: &Lookup<Job>,
    shared: &Arc<Shared>,
) -> Option<(Loaded, Room)> {
    let mut notes = Vec::new();
    shared.metrics.cache_lookups.add(1);
    let key = store.key_in(key, lookup.scope).unwrap_or_else(|why| {
        notes.push(why);
        None
    });
    let found = key.and_then(|key| store.find(&key, &lookup.prompt, lookup.have, n_ctx, false, &mut notes));
    let room = found.and_then(|found| Some((shared.room(found.size().0, ROOM)?, found)));
    let loaded = room.and_then(|(room, found)| Some((store.read(found, &mut notes)?, room)));
    for note in &notes {
        shared.metrics.cache_failures.add(1);
        shared.warn(note);
    }
    if let Some((loaded, _)) = &loaded {
        shared.metrics.cache_read_bytes.add(loaded.size.0);
    }
    loaded
}

fn write(store: &Store, key: &CacheKey, save: Save, shared: &Shared) {
    let start = Instant::now();
    let saved = match store.key_in(key, save.scope) {
        Ok(Some(key)) => store.save(&key, &save.tokens, &[], save.state),
        Ok(None) => Ok(Saved::Known),
        Err(why) => Err(why),
    };
    match saved {
        Ok(Saved::Written(size)) => {
            shared.metrics.cache_writes.add(1);
            shared.metrics.cache_written_bytes.add(size.0);
            let cost = start.elapsed().as_nanos() / save.tokens.len().max(1) as u128;
            shared.cost.store(u64::try_from(cost).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        Ok(Saved::Known) => {}
        Err(why) => {
            shared.metrics.cache_failures.add(1);
            shared.warn(&why);
        }
    }
}

#[cfg(test)]
mod tests {
    use build_info::Bytes;

    use super::*;

    const SCOPE: Digest = [5; 32];

    fn disk(folder: &std::path::Path, read_only: bool) -> (Disk<u32>, Arc<Metrics>) {
        let store = Store::folder(folder, Bytes::gib(1), read_only).expect("a folder");
        let key = CacheKey { model: [1; 32], build: [2; 32], settings: [3; 32], scope: [0; 32] };
        let metrics = Arc::new(Metrics::default());
        (Disk::start(store, key, 1000, Arc::clone(&metrics)).expect("threads"), metrics)
    }

    fn ask(disk: &mut Disk<u32>, job: u32, prompt: &[Token], have: usize) -> Option<usize> {
        disk.look_up(job, SCOPE, prompt.to_vec(), have).expect("it is asked");
        assert_eq!(disk.asked(), 1);
        let answer = loop {
            match disk.answer() {
                Some(answer) => break answer,
                None => std::thread::sleep(GLANCE),
            }
        };
        assert_eq!((answer.job, disk.asked()), (job, 0));
        answer.loaded.map(|loaded| loaded.common)
    }

    #[test]
    fn what_is_written_is_found() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mut disk, metrics) = disk(folder.path(), false);
        let tokens: Vec<Token> = (0..300).collect();
        assert_eq!(ask(&mut disk, 7, &tokens, 0), None);
        assert!(disk.has_room());
        disk.save(SCOPE, tokens.clone(), vec![1; 3000]);
        assert!(disk.wait_for_writes(|| false));
        assert_eq!(ask(&mut disk, 8, &tokens, 0), Some(300));
        assert_eq!(ask(&mut disk, 9, &tokens, 290), None, "a slot has nearly as much");
        let counted = [&metrics.cache_lookups, &metrics.cache_writes, &metrics.cache_failures];
        assert_eq!(counted.map(|number| number.get()), [3, 1, 0]);
        assert_eq!(metrics.cache_written_bytes.get(), metrics.cache_read_bytes.get());
        // Writing is slow, and evaluating is fast.
        assert!(disk.is_worth(300, 300, None) && disk.is_worth(300, 300, Some(1.0)));
        assert!(!disk.is_worth(100, 300, Some(1.0)) && !disk.is_worth(300, 300, Some(1e-12)));
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_harms_nobody() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mut disk, metrics) = disk(&folder.path().join("gone"), false);
        std::fs::remove_dir(folder.path().join("gone")).expect("it is empty");
        std::fs::write(folder.path().join("gone"), "a file").expect("written");
        disk.save(SCOPE, (0..300).collect(), vec![1; 3000]);
        assert!(disk.wait_for_writes(|| false));
        assert_eq!((metrics.cache_failures.get(), metrics.cache_writes.get()), (1, 0));
        assert_eq!(ask(&mut disk, 1, &(0..300).collect::<Vec<_>>(), 0), None);
    }

    #[test]
    fn what_was_read_is_bounded_but_one_may_always() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mut disk, _) = disk(folder.path(), false);
        let most = Duration::ZERO;
        let first = disk.shared.room(2 * READ, most).expect("a single state always has room");
        assert!(disk.shared.room(1, most).is_none());
        drop(first);
        let (half, rest) = (disk.shared.room(READ / 2, most), disk.shared.room(READ / 2, most));
        assert!(half.is_some() && rest.is_some() && disk.shared.room(1, most).is_none());
        drop((half, rest));
        // The bytes of an answer are counted until the answer is dropped.
        let tokens: Vec<Token> = (0..300).collect();
        disk.save(SCOPE, tokens.clone(), vec![1; 3000]);
        assert!(disk.wait_for_writes(|| false));
        disk.look_up(1, SCOPE, tokens, 0).expect("it is asked");
        let answer = loop {
            match disk.answer() {
                Some(answer) => break answer,
                None => std::thread::sleep(GLANCE),
            }
        };
        let held = disk.shared.read.load(Ordering::Acquire);
        assert!(answer.loaded.is_some() && held >= 3000, "{held} bytes");
        drop(answer);
        assert_eq!(disk.shared.read.load(Ordering::Acquire), 0);
    }

    #[test]
    fn a_full_queue_takes_nothing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (disk, metrics) = disk(folder.path(), false);
        disk.shared.waiting.store(SAVES, Ordering::Release);
        assert!(!disk.has_room());
        assert!(!disk.wait_for_room(|| true));
        assert_eq!(metrics.cache_dropped.get(), 1);
    }

    #[test]
    fn nothing_is_worth_writing_where_nothing_is_written() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert!(!disk(folder.path(), true).0.is_worth(1000, 1000, None));
    }
}
