//! Thread pool for slow work that would otherwise block the thread that serves all connections. Each client has a
//! limited share of the pool.
//!
//! Work first waits for one of its client's places, and then for a thread, in order of arrival. A client with a lot of
//! work therefore delays other clients only by the work that is already running.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

use super::api_error::{ApiError, ApiErrorKind};
use super::client::Client;
use super::fields::Fields;

/// Number of threads for work that takes milliseconds: templates, texts, requests and answers.
const LIGHT: usize = 2;

/// Number of threads for grammars and schemas, which may take seconds. No other work waits for these threads.
const GRAMMARS: usize = 2;

/// Number of threads that tokenise very long texts, which may take seconds. A single thread takes at most one core
/// away from generation.
const TEXTS: usize = 1;

/// Number of threads of the pool.
pub const THREADS: usize = LIGHT + GRAMMARS + TEXTS;

/// Size of the longest text that is tokenised directly on the connection thread, in bytes.
const LONG_TEXT: usize = 16 * 1024;

/// Size of the longest text that counts as light work, in bytes. Longer texts are tokenised on a separate thread.
const VERY_LONG_TEXT: usize = 256 * 1024;

/// Size of the longest request that is parsed directly on the connection thread, in bytes.
const LONG_REQUEST: usize = 64 * 1024;

/// Limit on answers in preparation for all clients together, as a multiple of the limit for one client.
const CLIENTS: usize = 4;

/// Kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// Work that takes milliseconds.
    Light,
    /// A grammar or schema, which may take seconds.
    Grammar,
    /// Tokenising a very long text, which may take seconds.
    Text,
}

impl WorkKind {
    /// Returns the kind of work for tokenising a text of `bytes` bytes. `None` if the text is short enough for the
    /// connection thread.
    pub fn of_text(bytes: usize) -> Option<Self> {
        if bytes <= LONG_TEXT {
            None
        } else if bytes <= VERY_LONG_TEXT {
            Some(WorkKind::Light)
        } else {
            Some(WorkKind::Text)
        }
    }
}

/// Permits for work, and the number of answers that are being prepared.
#[derive(Debug)]
struct Permits {
    light: Arc<Semaphore>,
    grammars: Arc<Semaphore>,
    texts: Arc<Semaphore>,
    requests: AtomicUsize,
}

impl Default for Permits {
    fn default() -> Self {
        Permits {
            light: Arc::new(Semaphore::new(LIGHT)),
            grammars: Arc::new(Semaphore::new(GRAMMARS)),
            texts: Arc::new(Semaphore::new(TEXTS)),
            requests: AtomicUsize::new(0),
        }
    }
}

impl Permits {
    fn of(&self, work: WorkKind) -> Arc<Semaphore> {
        Arc::clone(match work {
            WorkKind::Light => &self.light,
            WorkKind::Grammar => &self.grammars,
            WorkKind::Text => &self.texts,
        })
    }
}

/// Thread pool, shared by all models.
#[derive(Debug, Default)]
pub struct BlockingPool {
    all: Arc<Permits>,
    clients: Mutex<HashMap<Client, Arc<Permits>>>,
}

/// Share of a client in the pool.
#[derive(Clone, Debug)]
pub struct ClientShare {
    all: Arc<Permits>,
    own: Arc<Permits>,
}

impl BlockingPool {
    /// Returns the share of `client`.
    pub fn of(&self, client: &Client) -> ClientShare {
        // The map is consistent even after a panic elsewhere.
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        // Clients without work are removed.
        clients.retain(|_, own| Arc::strong_count(own) > 1);
        let own = Arc::clone(clients.entry(client.clone()).or_default());
        ClientShare { all: Arc::clone(&self.all), own }
    }
}

impl ClientShare {
    /// Runs `work` on a thread. The thread is occupied until `work` ends, even if the caller stops waiting.
    pub async fn run<T: Send + 'static>(
        &self,
        kind: WorkKind,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let failed = |why: &dyn Display| ApiError::new(ApiErrorKind::Failed, why.to_string());
        // The order matters: work may wait for a thread only after it has one of its client's places.
        let own = self.own.of(kind).acquire_owned().await.map_err(|why| failed(&why))?;
        let thread = self.all.of(kind).acquire_owned().await.map_err(|why| failed(&why))?;
        let share = self.clone();
        let work = move || {
            let _permits = (own, thread, share);
            work()
        };
        tokio::task::spawn_blocking(work).await.map_err(|why| failed(&why))
    }

    /// Parses the fields of a request.
    pub async fn fields(&self, bytes: Vec<u8>) -> Result<Fields, ApiError> {
        match bytes.len() > LONG_REQUEST {
            true => self.run(WorkKind::Light, move || Fields::read(&bytes)).await?,
            false => Fields::read(&bytes),
        }
    }

    /// Counts the `answers` of a request until the returned guard is dropped.
    ///
    /// # Errors
    /// If at least `most` answers of this client are already being prepared, or at least `CLIENTS` times `most` answers
    /// of all clients. The error contains the number of these answers.
    pub fn enter(&self, answers: usize, most: usize) -> Result<Preparing, usize> {
        let before = self.own.requests.fetch_add(answers, Ordering::Relaxed);
        let all_before = self.all.requests.fetch_add(answers, Ordering::Relaxed);
        // Dropping this value subtracts `answers` again.
        let preparing = Preparing(self.clone(), answers);
        match (before, all_before) {
            (before, _) if before >= most => Err(before),
            (_, before) if before >= most.saturating_mul(CLIENTS) => Err(before),
            _ => Ok(preparing),
        }
    }
}

/// Guard that counts a request's answers while they are prepared.
#[derive(Debug)]
pub struct Preparing(ClientShare, usize);

impl Drop for Preparing {
    fn drop(&mut self) {
        let Preparing(share, answers) = self;
        share.own.requests.fetch_sub(*answers, Ordering::Relaxed);
        share.all.requests.fetch_sub(*answers, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_client_that_fills_its_part_leaves_room_for_others() {
        let pool = BlockingPool::default();
        let (one, other) =
            (pool.of(&Client::Process { id: 1, user: 0 }), pool.of(&Client::Process { id: 2, user: 0 }));
        let mut held: Vec<Preparing> = (0..3).map(|_| one.enter(2, 5).expect("room")).collect();
        assert_eq!(one.enter(1, 5).err(), Some(6));
        assert_eq!(
            pool.of(&Client::Process { id: 1, user: 0 }).enter(1, 5).err(),
            Some(6),
            "another connection of the client shares its limit"
        );
        let entered = other.enter(1, 5).expect("other clients have room");
        held.pop();
        assert!(one.enter(1, 5).is_ok(), "refused and finished answers are not counted");
        drop((held, entered));
        // The limit for all clients together also applies.
        let many: Vec<Result<Preparing, usize>> =
            (0..30).map(|client| pool.of(&Client::Process { id: client, user: 0 }).enter(1, 5)).collect();
        assert_eq!(many.iter().filter(|entered| entered.is_ok()).count(), 5 * CLIENTS);
    }

    #[test]
    fn clients_that_are_gone_leave_nothing() {
        let pool = BlockingPool::default();
        for client in 0..100 {
            drop(pool.of(&Client::Process { id: client, user: 0 }).enter(1, 5));
        }
        assert_eq!(pool.clients.lock().expect("whole").len(), 1);
    }

    /// One client queues 100 pieces of work and takes all threads. Another client's work still runs next.
    #[test]
    fn anothers_work_waits_only_for_what_is_being_done() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().max_blocking_threads(THREADS).enable_time().build();
        runtime.expect("a runtime").block_on(async {
            let pool = BlockingPool::default();
            let (one, other) =
                (pool.of(&Client::Process { id: 1, user: 0 }), pool.of(&Client::Process { id: 2, user: 0 }));
            let (go, wait) = mpsc::channel::<()>();
            let wait = Arc::new(Mutex::new(wait));
            let mut tasks = Vec::new();
            for _ in 0..100 {
                let (one, wait) = (one.clone(), Arc::clone(&wait));
                tasks.push(tokio::spawn(async move {
                    let work = move || wait.lock().expect("whole").recv().is_ok();
                    one.run(WorkKind::Grammar, work).await
                }));
            }
            // Waits until all work of this client has arrived, before the other client sends its own.
            while one.own.grammars.available_permits() > 0 {
                tokio::task::yield_now().await;
            }
            let its = tokio::spawn(async move { other.run(WorkKind::Grammar, || ()).await });
            while pool.of(&Client::Process { id: 2, user: 0 }).own.grammars.available_permits() == GRAMMARS {
                tokio::task::yield_now().await;
            }
            // One piece of work ends. The pieces that start afterwards stay blocked.
            go.send(()).expect("a receiver waits");
            let its = tokio::time::timeout(Duration::from_secs(60), its).await;
            its.expect("it was next").expect("it ends").expect("it is done");
            drop(go);
            for task in tasks {
                task.await.expect("it ends").expect("it is done");
            }
        });
    }
}
