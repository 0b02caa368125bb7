//! Thread that computes embeddings.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use engine_core::embed::{BATCH, Evaluator, Pooling, Reduction};
use engine_core::settings::Settings;
use llama::error::{Error, Result};
use llama::{Model, Threads};
use tokio::sync::watch;

use super::embedder::{Embedder, EmbeddingJob, Next, embedder};
use crate::api_error::{ApiError, ApiErrorKind, stopping};
use crate::caught::caught;
use crate::closing::Closing;
use crate::hidden_paths::hide_folders;
use crate::metrics::Metrics;
use crate::plan::prefill_beside_decode;
use crate::queue::Inbox;

/// Maximum time to sleep when idle. A new job wakes the thread earlier.
const IDLE: Duration = Duration::from_millis(500);

/// Time after which an unused context is freed.
const KEPT: Duration = Duration::from_secs(300);

/// Maximum time that a job with many texts runs while another job waits.
const SLICE: Duration = Duration::from_millis(250);

/// Inputs of the embedding thread.
pub struct EmbedderStart<'a> {
    /// Model.
    pub model: &'a Arc<Model>,
    /// Settings of the server.
    pub settings: &'a Settings,
    /// Threads that the scheduler's context also uses.
    pub(crate) threads: Threads,
    /// Number of tokens in the scheduler's context.
    pub n_ctx: u32,
    /// Maximum time of a batch while requests generate text.
    pub step: Duration,
    /// Requested pooling. `None` for the model's own pooling.
    pub pooling: Option<Pooling>,
    /// Inbox of the server, which provides the shutdown stage and the core lock.
    pub inbox: &'a Arc<Inbox>,
    /// Counters to update.
    pub metrics: &'a Arc<Metrics>,
}

/// Handle of the running embedding thread.
pub struct EmbedderThread {
    thread: JoinHandle<()>,
    /// Closed when the thread ends.
    pub ended: watch::Receiver<()>,
}

impl EmbedderThread {
    /// Waits for the thread to end.
    pub fn join(self) {
        // A panic was already reported to the waiting client.
        let _ = self.thread.join();
    }
}

/// Starts the thread, which creates its context when the first request arrives.
///
/// # Errors
/// If the thread cannot be started.
pub fn start(start: EmbedderStart<'_>) -> Result<(Arc<Embedder>, EmbedderThread)> {
    let embedder = embedder(start.model, start.n_ctx, start.pooling);
    let (over, ended) = watch::channel(());
    let mut worker = EmbedderWorker {
        embedder: Arc::clone(&embedder),
        model: Arc::clone(start.model),
        settings: start.settings.clone(),
        threads: start.threads,
        step: start.step,
        inbox: Arc::clone(start.inbox),
        metrics: Arc::clone(start.metrics),
        evaluator: None,
        seconds_per_token: None,
        used: Instant::now(),
    };
    let work = move || {
        // `_over` is dropped when the thread ends, even after a panic.
        let _over = over;
        worker.run();
    };
    let thread = Builder::new().name("embedder".to_string()).spawn(work);
    let thread =
        thread.map_err(|why| Error::Serve(format!("cannot start a thread for embeddings: {why}")))?;
    Ok((embedder, EmbedderThread { thread, ended }))
}

struct EmbedderWorker {
    embedder: Arc<Embedder>,
    model: Arc<Model>,
    settings: Settings,
    threads: Threads,
    step: Duration,
    inbox: Arc<Inbox>,
    metrics: Arc<Metrics>,
    evaluator: Option<Evaluator>,
    seconds_per_token: Option<f64>,
    used: Instant,
}

/// Reason why embeddings were not computed.
enum EmbeddingFailure {
    Refused(ApiError),
    /// The client has disconnected.
    Abandoned,
}

impl From<Error> for EmbeddingFailure {
    fn from(error: Error) -> Self {
        match error {
            Error::Interrupted => EmbeddingFailure::Refused(stopping()),
            error => EmbeddingFailure::Refused(ApiError::new(ApiErrorKind::Failed, error.to_string())),
        }
    }
}

impl EmbedderWorker {
    fn run(&mut self) {
        loop {
            match self.embedder.next(&self.inbox, IDLE) {
                Next::Over => return,
                Next::Work(job) => {
                    self.metrics.embedding_waiting.set(self.embedder.len() as u64);
                    self.work(job);
                    self.used = Instant::now();
                }
                Next::Rest if self.evaluator.is_some() && self.used.elapsed() > KEPT => {
                    self.evaluator = None;
                    self.metrics.embedding_cache.set(0);
                }
                Next::Rest => {}
            }
        }
    }

    /// Processes `job`, or a part of it.
    fn work(&mut self, mut job: EmbeddingJob) {
        let metrics = Arc::clone(&self.metrics);
        let found = caught("the embedding thread", &metrics, || self.embed(&job)).unwrap_or_else(|| {
            // After a panic, the context may be inconsistent, so it is dropped.
            self.evaluator = None;
            self.metrics.embedding_cache.set(0);
            let why = "the embedding thread panicked (a bug in this program); see the server's log";
            Err(EmbeddingFailure::Refused(ApiError::new(ApiErrorKind::Failed, why)))
        });
        let answered = match found {
            Ok(found) => {
                job.found.extend(found);
                if job.found.len() < job.texts.len() {
                    self.embedder.put_back(job);
                    return self.metrics.embedding_waiting.set(self.embedder.len() as u64);
                }
                Ok(std::mem::take(&mut job.found))
            }
            Err(EmbeddingFailure::Refused(refusal)) => Err(refusal),
            Err(EmbeddingFailure::Abandoned) => return self.metrics.abandoned.add(1),
        };
        if answered.is_ok() {
            self.metrics.embeddings.add(job.texts.len() as u64);
            self.metrics.embedding_tokens.add(job.texts.iter().map(|text| text.len() as u64).sum());
        }
        // An error means that the client has disconnected.
        let _ = job.answer.send(answered);
    }

    /// Computes at least one more embedding of `job`.
    fn embed(&mut self, job: &EmbeddingJob) -> std::result::Result<Vec<Vec<f32>>, EmbeddingFailure> {
        let EmbeddingJob { texts, found, deadline, answer, .. } = job;
        self.make(texts.iter().map(Vec::len).max().unwrap_or(0))?;
        let Some(evaluator) = &mut self.evaluator else { return Ok(Vec::new()) };
        let (inbox, metrics) = (&self.inbox, &self.metrics);
        // A reload of the configuration may have changed the step.
        let step = inbox.step().unwrap_or(self.step);
        let per_token = self.seconds_per_token;
        let begin = Instant::now();
        let limit = || {
            if answer.is_closed() {
                return Err(EmbeddingFailure::Abandoned);
            }
            if inbox.closing() == Closing::Now {
                return Err(EmbeddingFailure::Refused(stopping()));
            }
            if Instant::now() >= *deadline {
                return Err(EmbeddingFailure::Refused(late()));
            }
            // Batches are smaller while other requests generate text, because these requests wait for each batch of
            // this job.
            Ok(match metrics.slots_busy.get() {
                0 => BATCH,
                _ => prefill_beside_decode(step, per_token).min(BATCH),
            })
        };
        let embedder = &self.embedder;
        let pause = || begin.elapsed() >= SLICE && !embedder.is_empty();
        let texts = &texts[found.len()..];
        let found = evaluator.embed(texts, &inbox.seats[0], limit, pause);
        let done = found.as_ref().map_or(0, Vec::len);
        let tokens: usize = texts[..done].iter().map(Vec::len).sum();
        if tokens >= 16 {
            self.seconds_per_token = Some(begin.elapsed().as_secs_f64() / tokens as f64);
        }
        found
    }

    /// Creates a context for texts of `longest` tokens, unless the current context is large enough.
    fn make(&mut self, longest: usize) -> std::result::Result<(), EmbeddingFailure> {
        if self.evaluator.as_ref().is_some_and(|evaluator| evaluator.holds(longest)) {
            return Ok(());
        }
        // Frees the old context first, because memory may not suffice for both contexts.
        self.evaluator = None;
        self.metrics.embedding_cache.set(0);
        let refused =
            |message: String| EmbeddingFailure::Refused(ApiError::new(ApiErrorKind::Failed, message));
        let reduction = match self.embedder.scores {
            Ok(()) => Reduction::Score,
            Err(_) => Reduction::Pool(self.embedder.pooling.clone().map_err(refused)?),
        };
        let evaluator = Evaluator::new(&self.model, reduction, longest, &self.settings, &self.threads);
        let evaluator = evaluator.map_err(|error| match EmbeddingFailure::from(error) {
            EmbeddingFailure::Refused(refusal) => {
                tracing::warn!(model = %self.model.path().display(), error = refusal.message, "cannot create a \
                                                                                              context for embeddings");
                let message = hide_folders(&refusal.message, [self.model.path()]);
                EmbeddingFailure::Refused(ApiError { message, ..refusal })
            }
            failed => failed,
        })?;
        self.metrics.embedding_cache.set(evaluator.cache.0);
        self.evaluator = Some(evaluator);
        Ok(())
    }
}

/// Returns the error for an embedding request that timed out.
pub fn late() -> ApiError {
    ApiError::new(ApiErrorKind::Deadline, "the request timed out before its result was computed (timeout_s)")
}
