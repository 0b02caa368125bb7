//! Queue of requests for embeddings, between the connections and the thread that evaluates them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engine_core::embed::{Pooling, longest};
use llama::{Model, Token};
use tokio::sync::oneshot;

use crate::api_error::ApiError;
use crate::client::Client;
use crate::closing::Closing;
use crate::queue::{FairQueue, Inbox};

/// Texts whose embeddings are wanted.
pub struct EmbeddingJob {
    /// Whose they are.
    pub client: Client,
    /// Each as tokens: 1 to as many as are taken.
    pub texts: Vec<Vec<Token>>,
    /// The embeddings of the first ones, where it had to let others go before.
    pub found: Vec<Vec<f32>>,
    /// When they must be done.
    pub deadline: Instant,
    /// Where the embeddings go. Closed by the reader when nobody wants them any more.
    pub answer: oneshot::Sender<Result<Vec<Vec<f32>>, ApiError>>,
}

/// The way of jobs to the thread.
pub struct Embedder {
    /// How tokens become one embedding, or why there are none.
    pub pooling: Result<Pooling, String>,
    /// Numbers of an embedding.
    pub width: usize,
    /// Tokens of the longest text.
    pub longest: usize,
    state: Mutex<EmbedderState>,
    arrived: Condvar,
}

#[derive(Default)]
struct EmbedderState {
    queue: FairQueue<Client, EmbeddingJob>,
    over: bool,
}

/// Why a job was not taken.
#[derive(Debug, PartialEq, Eq)]
pub enum EmbeddingRefusal {
    /// So many wait already.
    Busy(usize),
    /// The server stops.
    Stopping,
}

/// What the thread does next.
pub(super) enum Next {
    Work(EmbeddingJob),
    Rest,
    Over,
}

impl Embedder {
    fn lock(&self) -> MutexGuard<'_, EmbedderState> {
        // Whatever panicked, the queue is whole between two calls.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts `job` in the queue, in which as many wait as in that of `inbox`.
    pub fn push(&self, job: EmbeddingJob, inbox: &Inbox) -> Result<(), EmbeddingRefusal> {
        let bound = inbox.bound();
        let mut state = self.lock();
        if state.over || inbox.closing() != Closing::Open {
            return Err(EmbeddingRefusal::Stopping);
        }
        if state.queue.len() >= bound {
            // Whoever is gone does not wait.
            drop(state.queue.take(|job| job.answer.is_closed()));
        }
        if state.queue.len() >= bound {
            return Err(EmbeddingRefusal::Busy(state.queue.len()));
        }
        state.queue.push(job.client.clone(), job);
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    /// Lets the thread see that the end has come nearer.
    pub fn wake(&self) {
        drop(self.lock());
        self.arrived.notify_all();
    }

    /// Puts back a job that is not done, behind those of others.
    pub(super) fn put_back(&self, job: EmbeddingJob) {
        self.lock().queue.push(job.client.clone(), job);
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.lock().queue.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next job; waits for `most` at most.
    pub(super) fn next(&self, inbox: &Inbox, most: Duration) -> Next {
        let mut state = self.lock();
        let nothing = |state: &mut EmbedderState| state.queue.is_empty() && inbox.closing() == Closing::Open;
        if inbox.closing() == Closing::Open {
            let waited = self.arrived.wait_timeout_while(state, most, nothing);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let closing = inbox.closing();
        if closing == Closing::Now || (closing == Closing::Draining && state.queue.is_empty()) {
            state.over = true;
            // Dropped, their answers say that the server stops.
            drop(state.queue.take(|_| true));
            return Next::Over;
        }
        state.queue.pop().map_or(Next::Rest, Next::Work)
    }
}

/// How a text of `model` becomes one embedding, and how long one may be.
pub(super) fn embedder(model: &Model, n_ctx: u32, pooling: Option<Pooling>) -> Arc<Embedder> {
    let longest = longest(model, n_ctx);
    Arc::new(Embedder {
        // Whoever says how knows better; but a model that ranks has nothing to pool.
        pooling: Pooling::of(model).map(|own| pooling.unwrap_or(own)),
        width: model.embedding_width(),
        longest,
        state: Mutex::default(),
        arrived: Condvar::new(),
    })
}
