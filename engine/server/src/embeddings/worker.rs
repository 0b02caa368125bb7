//! The thread that makes embeddings.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use engine_core::embed::{BATCH, Evaluator, Pooling};
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

/// How long it sleeps at most with nothing to do; a job wakes it.
const IDLE: Duration = Duration::from_millis(500);

/// How long the context is kept for the next request.
const KEPT: Duration = Duration::from_secs(300);

/// How long a job with many texts goes on while another waits: one with few does not wait for all of it.
const SLICE: Duration = Duration::from_millis(250);

/// What the thread is made of.
pub struct EmbedderStart<'a> {
    /// The model.
    pub model: &'a Arc<Model>,
    /// What the server runs with.
    pub settings: &'a Settings,
    /// The threads of the scheduler's context.
    pub(crate) threads: Threads,
    /// Tokens of that context.
    pub n_ctx: u32,
    /// How long a batch may take while others generate.
    pub step: Duration,
    /// Which tokens' embeddings a text's is made of; without it what the model says.
    pub pooling: Option<Pooling>,
    /// Says when the end is, and whose turn.
    pub inbox: &'a Arc<Inbox>,
    /// What is counted.
    pub metrics: &'a Arc<Metrics>,
}

/// The end of the thread.
pub struct EmbedderThread {
    thread: JoinHandle<()>,
    /// Closed when it ends.
    pub ended: watch::Receiver<()>,
}

impl EmbedderThread {
    /// Waits for it.
    pub fn join(self) {
        // A panic there was told to whoever waited for its answer.
        let _ = self.thread.join();
    }
}

/// Starts the thread, which makes its context when it is first needed.
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
        // Its sender is dropped at the end, whatever that is.
        let _over = over;
        worker.run();
    };
    let thread = Builder::new().name("embedder".to_string()).spawn(work);
    let thread = thread.map_err(|why| Error::Serve(format!("no thread for embeddings: {why}")))?;
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

/// Why there are no embeddings.
enum EmbeddingFailure {
    Refused(ApiError),
    /// Nobody waits for them.
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

    /// Does `job`, or a part of it.
    fn work(&mut self, mut job: EmbeddingJob) {
        let metrics = Arc::clone(&self.metrics);
        let found = caught("whatever makes embeddings", &metrics, || self.embed(&job)).unwrap_or_else(|| {
            // Nobody knows what it holds.
            self.evaluator = None;
            self.metrics.embedding_cache.set(0);
            let why = "whatever makes embeddings panicked, which is an error in this program; see its log";
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
        // Whoever is gone does not want it.
        let _ = job.answer.send(answered);
    }

    /// The next embeddings of `job`: of some texts at least.
    fn embed(&mut self, job: &EmbeddingJob) -> std::result::Result<Vec<Vec<f32>>, EmbeddingFailure> {
        let EmbeddingJob { texts, found, deadline, answer, .. } = job;
        self.make(texts.iter().map(Vec::len).max().unwrap_or(0))?;
        let Some(evaluator) = &mut self.evaluator else { return Ok(Vec::new()) };
        let (inbox, metrics) = (&self.inbox, &self.metrics);
        // As it is by now: a configuration can be read again.
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
            // Those who generate wait for a batch of this.
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

    /// Makes a context for texts of `longest` tokens, where there is none that holds them.
    fn make(&mut self, longest: usize) -> std::result::Result<(), EmbeddingFailure> {
        if self.evaluator.as_ref().is_some_and(|evaluator| evaluator.holds(longest)) {
            return Ok(());
        }
        // The old one first: there may not be room for both.
        self.evaluator = None;
        self.metrics.embedding_cache.set(0);
        let refused =
            |message: String| EmbeddingFailure::Refused(ApiError::new(ApiErrorKind::Failed, message));
        let pooling = self.embedder.pooling.clone().map_err(refused)?;
        let evaluator = Evaluator::new(&self.model, pooling, longest, &self.settings, &self.threads);
        let evaluator = evaluator.map_err(|error| match EmbeddingFailure::from(error) {
            EmbeddingFailure::Refused(refusal) => {
                tracing::warn!(model = %self.model.path().display(), error = refusal.message, "no context for embeddings");
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

/// The time was over.
pub fn late() -> ApiError {
    ApiError::new(ApiErrorKind::Deadline, "the time of the request was over before its embeddings were made")
}
