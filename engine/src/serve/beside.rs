//! Work beside the thread that all connections share, so that nobody's tokens wait for it: a few threads, and each client
//! its part of them.
//!
//! Work waits for a thread in the order in which it came. What one client has sent waits for that client's own places
//! first, so that however much it is, another's waits only for what is being done.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

use super::fields::Fields;
use super::job::Client;
use super::refusal::{Kind, Refusal};

/// Threads for what takes milliseconds: templates, texts, requests and answers.
const LIGHT: usize = 2;

/// Threads for grammars and schemas, which may take seconds: nothing else waits behind them.
const GRAMMARS: usize = 2;

/// Threads that cut very long texts into tokens, which may take seconds. One, so that whatever clients send, one core at
/// most is kept from generating.
const TEXTS: usize = 1;

/// Threads for all that.
pub const THREADS: usize = LIGHT + GRAMMARS + TEXTS;

/// A text of more bytes is cut into tokens beside, so that others' tokens do not wait for it.
const LONG_TEXT: usize = 16 * 1024;

/// A text of more bytes is cut into tokens on a thread for such texts, so that others' light work does not wait for it.
const VERY_LONG_TEXT: usize = 256 * 1024;

/// A request of more bytes is read beside.
const LONG_REQUEST: usize = 64 * 1024;

/// How many times more requests may be prepared of all clients than of one.
const CLIENTS: usize = 4;

/// What the work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// What takes milliseconds.
    Light,
    /// A grammar or schema, which may take seconds.
    Grammar,
    /// A very long text, which may take seconds too.
    Text,
}

impl Work {
    /// Returns the kind of work that it is to cut a text of `bytes` bytes into tokens; `None` if that is done at once.
    pub fn of_text(bytes: usize) -> Option<Self> {
        if bytes <= LONG_TEXT {
            None
        } else if bytes <= VERY_LONG_TEXT {
            Some(Work::Light)
        } else {
            Some(Work::Text)
        }
    }
}

/// Places for work, and requests that are prepared, each as often as answers are asked for.
#[derive(Debug)]
struct Places {
    light: Arc<Semaphore>,
    grammars: Arc<Semaphore>,
    texts: Arc<Semaphore>,
    requests: AtomicUsize,
}

impl Default for Places {
    fn default() -> Self {
        Places {
            light: Arc::new(Semaphore::new(LIGHT)),
            grammars: Arc::new(Semaphore::new(GRAMMARS)),
            texts: Arc::new(Semaphore::new(TEXTS)),
            requests: AtomicUsize::new(0),
        }
    }
}

impl Places {
    fn of(&self, work: Work) -> Arc<Semaphore> {
        Arc::clone(match work {
            Work::Light => &self.light,
            Work::Grammar => &self.grammars,
            Work::Text => &self.texts,
        })
    }
}

/// The threads, of all models together.
#[derive(Debug, Default)]
pub struct Beside {
    all: Arc<Places>,
    clients: Mutex<HashMap<Client, Arc<Places>>>,
}

/// A client's part of them.
#[derive(Clone, Debug)]
pub struct Part {
    all: Arc<Places>,
    own: Arc<Places>,
}

impl Beside {
    /// The part of `client`.
    pub fn of(&self, client: &Client) -> Part {
        // Whatever panicked, the map is whole between two calls.
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        // Those who have nothing here.
        clients.retain(|_, own| Arc::strong_count(own) > 1);
        let own = Arc::clone(clients.entry(client.clone()).or_default());
        Part { all: Arc::clone(&self.all), own }
    }
}

impl Part {
    /// Does `work` on a thread, which stays taken until it is done, whether anyone waits for it or not.
    pub async fn run<T: Send + 'static>(
        &self,
        kind: Work,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let failed = |why: &dyn Display| Refusal::new(Kind::Failed, why.to_string());
        // The order matters: whoever waits for a thread holds a place of its own.
        let own = self.own.of(kind).acquire_owned().await.map_err(|why| failed(&why))?;
        let thread = self.all.of(kind).acquire_owned().await.map_err(|why| failed(&why))?;
        let part = self.clone();
        let work = move || {
            let _places = (own, thread, part);
            work()
        };
        tokio::task::spawn_blocking(work).await.map_err(|why| failed(&why))
    }

    /// The fields of a request.
    pub async fn fields(&self, bytes: Vec<u8>) -> Result<Fields, Refusal> {
        match bytes.len() > LONG_REQUEST {
            true => self.run(Work::Light, move || Fields::read(&bytes)).await?,
            false => Fields::read(&bytes),
        }
    }

    /// Counts a request with so many `answers` while it is prepared, where not as many as `most` are.
    ///
    /// # Errors
    /// How many are.
    pub fn enter(&self, answers: usize, most: usize) -> Result<Preparing, usize> {
        let before = self.own.requests.fetch_add(answers, Ordering::Relaxed);
        let all_before = self.all.requests.fetch_add(answers, Ordering::Relaxed);
        // Dropped, it takes back what was added.
        let preparing = Preparing(self.clone(), answers);
        match (before, all_before) {
            (before, _) if before >= most => Err(before),
            (_, before) if before >= most.saturating_mul(CLIENTS) => Err(before),
            _ => Ok(preparing),
        }
    }
}

/// Counts the answers to a request while it is prepared.
#[derive(Debug)]
pub struct Preparing(Part, usize);

impl Drop for Preparing {
    fn drop(&mut self) {
        let Preparing(part, answers) = self;
        part.own.requests.fetch_sub(*answers, Ordering::Relaxed);
        part.all.requests.fetch_sub(*answers, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_client_that_fills_its_part_leaves_room_for_others() {
        let beside = Beside::default();
        let (one, other) =
            (beside.of(&Client::Process { id: 1, user: 0 }), beside.of(&Client::Process { id: 2, user: 0 }));
        let mut held: Vec<Preparing> = (0..3).map(|_| one.enter(2, 5).expect("room")).collect();
        assert_eq!(one.enter(1, 5).err(), Some(6));
        assert_eq!(
            beside.of(&Client::Process { id: 1, user: 0 }).enter(1, 5).err(),
            Some(6),
            "also another connection of it"
        );
        let entered = other.enter(1, 5).expect("others have room");
        held.pop();
        assert!(one.enter(1, 5).is_ok(), "what is refused is not counted, and what is done neither");
        drop((held, entered));
        // All of them together have an end too.
        let many: Vec<Result<Preparing, usize>> =
            (0..30).map(|client| beside.of(&Client::Process { id: client, user: 0 }).enter(1, 5)).collect();
        assert_eq!(many.iter().filter(|entered| entered.is_ok()).count(), 5 * CLIENTS);
    }

    #[test]
    fn clients_that_are_gone_leave_nothing() {
        let beside = Beside::default();
        for client in 0..100 {
            drop(beside.of(&Client::Process { id: client, user: 0 }).enter(1, 5));
        }
        assert_eq!(beside.clients.lock().expect("whole").len(), 1);
    }

    /// A hundred pieces of work of one client wait, all threads are taken by it; another's is done next.
    #[test]
    fn anothers_work_waits_only_for_what_is_being_done() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().max_blocking_threads(THREADS).enable_time().build();
        runtime.expect("a runtime").block_on(async {
            let beside = Beside::default();
            let (one, other) = (
                beside.of(&Client::Process { id: 1, user: 0 }),
                beside.of(&Client::Process { id: 2, user: 0 }),
            );
            let (go, wait) = mpsc::channel::<()>();
            let wait = Arc::new(Mutex::new(wait));
            let mut tasks = Vec::new();
            for _ in 0..100 {
                let (one, wait) = (one.clone(), Arc::clone(&wait));
                tasks.push(tokio::spawn(async move {
                    let work = move || wait.lock().expect("whole").recv().is_ok();
                    one.run(Work::Grammar, work).await
                }));
            }
            // All of them have come before the other.
            while one.own.grammars.available_permits() > 0 {
                tokio::task::yield_now().await;
            }
            let its = tokio::spawn(async move { other.run(Work::Grammar, || ()).await });
            while beside.of(&Client::Process { id: 2, user: 0 }).own.grammars.available_permits() == GRAMMARS
            {
                tokio::task::yield_now().await;
            }
            // One piece is let go of, and whatever is begun after it is not.
            go.send(()).expect("somebody waits");
            let its = tokio::time::timeout(Duration::from_secs(60), its).await;
            its.expect("it was next").expect("it ends").expect("it is done");
            drop(go);
            for task in tasks {
                task.await.expect("it ends").expect("it is done");
            }
        });
    }
}
