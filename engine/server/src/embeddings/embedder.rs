//! Queue of embedding requests between the connections and the thread that evaluates them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engine_core::embed::{Pooling, longest, longest_pair};
use llama::{Model, Token};
use tokio::sync::oneshot;

use crate::api_error::ApiError;
use crate::client::Client;
use crate::closing::Closing;
use crate::queue::{FairQueue, Inbox};

/// Embedding request in the queue.
pub struct EmbeddingJob {
    /// Client that sent the request.
    pub client: Client,
    /// Texts as tokens. Each has 1 to [`Embedder::longest`] tokens.
    pub texts: Vec<Vec<Token>>,
    /// Embeddings of the first texts, if the job was interrupted by other jobs.
    pub found: Vec<Vec<f32>>,
    /// Time at which the request times out.
    pub deadline: Instant,
    /// Channel for the result. The receiver closes the channel when the client no longer waits for the embeddings.
    pub answer: oneshot::Sender<Result<Vec<Vec<f32>>, ApiError>>,
}

/// Queue of jobs for the embedding thread.
pub struct Embedder {
    /// Pooling of token vectors into one embedding. `Err` with the reason if the model does not support embeddings.
    pub pooling: Result<Pooling, String>,
    /// `Ok` if the model is a reranker. The thread then computes scores instead of embeddings. `Err` with the reason if
    /// the model is not a reranker.
    pub scores: Result<(), &'static str>,
    /// Number of dimensions of an embedding.
    pub width: usize,
    /// Maximum number of tokens of a text.
    pub longest: usize,
    state: Mutex<EmbedderState>,
    arrived: Condvar,
}

#[derive(Default)]
struct EmbedderState {
    queue: FairQueue<Client, EmbeddingJob>,
    over: bool,
}

/// Reason for refusing a job.
#[derive(Debug, PartialEq, Eq)]
pub enum EmbeddingRefusal {
    /// The queue is full. Contains the number of waiting jobs.
    Busy(usize),
    /// The server is shutting down.
    Stopping,
}

/// Next action of the embedding thread.
pub(super) enum Next {
    Work(EmbeddingJob),
    Rest,
    Over,
}

impl Embedder {
    fn lock(&self) -> MutexGuard<'_, EmbedderState> {
        // The queue is valid even after a panic, because no call leaves it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues `job`. The queue has the same limit as the queue of `inbox`.
    ///
    /// # Errors
    /// If the queue is full, or if the server is shutting down.
    pub fn push(&self, job: EmbeddingJob, inbox: &Inbox) -> Result<(), EmbeddingRefusal> {
        let bound = inbox.bound();
        let mut state = self.lock();
        if state.over || inbox.closing() != Closing::Open {
            return Err(EmbeddingRefusal::Stopping);
        }
        if state.queue.len() >= bound {
            // Drops jobs whose client has disconnected.
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

    /// Wakes the thread after a change of the shutdown stage.
    pub fn wake(&self) {
        drop(self.lock());
        self.arrived.notify_all();
    }

    /// Puts an unfinished job back into the queue, behind the jobs of other clients.
    pub(super) fn put_back(&self, job: EmbeddingJob) {
        self.lock().queue.push(job.client.clone(), job);
    }

    /// Returns the number of waiting jobs.
    pub fn len(&self) -> usize {
        self.lock().queue.len()
    }

    /// True if no job waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the next job. Waits at most `most`.
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
            // Dropping the jobs closes their channels, which informs the clients of the shutdown.
            drop(state.queue.take(|_| true));
            return Next::Over;
        }
        state.queue.pop().map_or(Next::Rest, Next::Work)
    }
}

/// Creates the queue for `model`, with its pooling and its maximum text length.
pub(super) fn embedder(model: &Model, n_ctx: u32, pooling: Option<Pooling>) -> Arc<Embedder> {
    let scores = Pooling::check_scores(model);
    let longest = if scores.is_ok() { longest_pair(model) } else { longest(model, n_ctx) };
    Arc::new(Embedder {
        // A requested pooling overrides the model's own, but a reranking model cannot be pooled.
        pooling: Pooling::of(model).map(|own| pooling.unwrap_or(own)),
        scores,
        width: model.embedding_width(),
        longest,
        state: Mutex::default(),
        arrived: Condvar::new(),
    })
}
