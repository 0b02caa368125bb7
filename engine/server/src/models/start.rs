//! Start of a model: loads the model, and creates its contexts and their threads.

use std::sync::{Arc, RwLock, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use build_info::Bytes;
use chat::Template;
use engine_core::cache::PromptCacheRequest;
use engine_core::core_lock::{Cores, Turns};
use engine_core::fit::Seats;
use engine_core::model;
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::Settings;
use engine_core::speculative::{DraftModel, Sameness};
use engine_core::threads;
use llama::error::{Error, Result};
use llama::fit::LayerPlan;
use llama::{MAX_THREADS, Model, PrefixReuse, Threads};
use rustix::thread::{CpuSet, sched_setaffinity};
use tokio::sync::watch;

use super::named::Named;
use crate::blocking_pool::BlockingPool;
use crate::hidden_paths::hide_folders;
use crate::metrics::Metrics;
use crate::options::ServeOptions;
use crate::queue::Inbox;
use crate::scheduler::Scheduler;
use crate::server::Server;
use crate::{embeddings, pools};

/// Running threads of a model.
pub struct Running {
    schedulers: Vec<JoinHandle<()>>,
    embedding: embeddings::EmbedderThread,
    /// Channels of the threads, beginning with the schedulers'. Each channel closes when its thread ends.
    ended: Vec<watch::Receiver<()>>,
}

impl Running {
    /// Returns the channels of all threads. Each channel closes when its thread ends.
    pub fn ended(&self) -> Vec<watch::Receiver<()>> {
        self.ended.clone()
    }

    /// Returns the channels of the schedulers.
    pub fn schedulers(&self) -> Vec<watch::Receiver<()>> {
        self.ended[..self.schedulers.len()].to_vec()
    }

    /// Joins all threads.
    ///
    /// # Errors
    /// If a scheduler panicked.
    pub fn join(self) -> Result<()> {
        self.embedding.join();
        let ends: Vec<_> = self.schedulers.into_iter().map(JoinHandle::join).collect();
        match ends.iter().all(std::result::Result::is_ok) {
            true => Ok(()),
            false => Err(Error::Serve("the scheduler panicked".to_string())),
        }
    }
}

/// Objects that all models share.
pub(super) struct Common {
    pub turns: Arc<Turns>,
    pub blocking_pool: Arc<BlockingPool>,
    pub metrics: Arc<Metrics>,
    pub created: u64,
}

/// Scheduler that is ready to run.
struct StartedScheduler {
    thread: JoinHandle<()>,
    ended: watch::Receiver<()>,
    n_ctx: u32,
    threads: Threads,
}

/// Loads `named` and creates its contexts.
///
/// # Errors
/// If the model cannot be loaded, or if a context or a thread cannot be created.
pub(super) fn start(
    named: &Named,
    settings: &Settings,
    runtime_host: &Arc<RuntimeHost>,
    common: Common,
) -> Result<LoadedModel> {
    let options = &named.options;
    let cores = match options.pools {
        0 | 1 => vec![None],
        pools => pools::cores(pools, settings, runtime_host.host.as_ref())?.into_iter().map(Some).collect(),
    };
    let wanted = || options.prompt_cache.as_ref().map(|cache| cache.wanted(&options.model)).transpose();
    let caches = cores.iter().map(|_| wanted()).collect::<Result<Vec<_>>>()?;
    let loading = Instant::now();
    let seats = Seats {
        contexts: u32::try_from(cores.len()).unwrap_or(1),
        sequences: options.slots,
        rows: options.rules.rows(options.slots),
    };
    let model = model::open_for(&options.model, settings, runtime_host, seats)?;
    let (path, milliseconds) = (options.model.display().to_string(), loading.elapsed().as_millis() as u64);
    tracing::info!(model = options.name, path, bytes = model.size(), milliseconds, "loaded");
    tell_reuse(options, &model);
    let draft = draft_model(options, &model, seats, settings, runtime_host)?;
    let template = template(options, &model)?;
    let seat = |cpus: &Option<Vec<u32>>| {
        let cores = cpus.as_ref().map_or(Cores::All, |cpus| Cores::These(cpus.clone()));
        common.turns.seat(cores)
    };
    let inbox = Arc::new(Inbox::new(options.queue, cores.iter().map(seat).collect()));
    let metrics = common.metrics;
    let mut made = Vec::new();
    for ((index, cpus), cache) in cores.iter().enumerate().zip(caches) {
        let start = SchedulerStart {
            index,
            cpus: cpus.clone(),
            options: options.clone(),
            settings: cpus.as_ref().map_or_else(|| settings.clone(), |cpus| pools::settings(settings, cpus)),
            runtime_host: Arc::clone(runtime_host),
            cache,
            model: Arc::clone(&model),
            draft: draft.clone(),
            inbox: Arc::clone(&inbox),
            metrics: Arc::clone(&metrics),
        };
        match start.scheduler() {
            Ok(scheduler) => made.push(scheduler),
            Err(error) => {
                // The schedulers that were already started have no work, so they end immediately.
                inbox.close(crate::closing::Closing::Now);
                made.into_iter().for_each(|made: StartedScheduler| drop(made.thread.join()));
                metrics.let_go();
                return Err(error);
            }
        }
    }
    let n_ctx = made.iter().map(|made| made.n_ctx).min().unwrap_or(0);
    let (embedder, embedding) = embeddings::start(embeddings::EmbedderStart {
        model: &model,
        settings,
        threads: made[0].threads.clone(),
        n_ctx,
        step: options.rules.step,
        pooling: options.embedding_pooling,
        inbox: &inbox,
        metrics: &metrics,
    })?;
    let ended = made.iter().map(|made| made.ended.clone()).chain([embedding.ended.clone()]).collect();
    let server = Arc::new(Server {
        name: options.name.clone(),
        n_ctx,
        slots: options.slots * u32::try_from(made.len()).unwrap_or(1),
        created: common.created,
        current: RwLock::new(Arc::new(options.current(&named.engine))),
        model,
        template,
        inbox,
        embedder,
        metrics,
        blocking_pool: common.blocking_pool,
    });
    let schedulers = made.into_iter().map(|made| made.thread).collect();
    Ok(LoadedModel { server, running: Running { schedulers, embedding, ended } })
}

/// Logs how prompts of `model` are reused, unless the model's memory can be truncated at any token.
fn tell_reuse(options: &ServeOptions, model: &Model) {
    match model.prefix_reuse() {
        PrefixReuse::AnyToken => {}
        _ if !options.rules.reuse => {}
        PrefixReuse::Checkpoints | PrefixReuse::StateAlone => {
            let bytes = options.rules.checkpoint_memory.0;
            tracing::info!(model = options.name, bytes, "prompts are reused from checkpoints");
        }
        PrefixReuse::Never => llama::notice::warn(&format!(
            "{} evaluates every prompt from its beginning: llama.cpp cannot truncate the memory of {}",
            options.name,
            model.description()
        )),
    }
}

/// Loads the draft model for `model`. `None`, with a warning, if `model` does not support speculative decoding.
fn draft_model(
    options: &ServeOptions,
    model: &Arc<Model>,
    seats: Seats,
    settings: &Settings,
    runtime_host: &RuntimeHost,
) -> Result<Option<(Arc<Model>, f32)>> {
    let Some(draft) = &options.draft_model else { return Ok(None) };
    if let Some(why) = Sameness::new(model).forbids(options.rules.drafts.near) {
        llama::notice::warn(&format!("the draft model {} is not used: {why}", draft.path.display()));
        return Ok(None);
    }
    let mut settings = settings.clone();
    // Memory is kept free for the model's contexts, which are created later.
    let awaited = model.plan().map_or(Bytes(0), LayerPlan::awaited);
    settings.fit_target.value.0 = settings.fit_target.value.0.saturating_add(awaited.0);
    let n_ctx = model::n_ctx(&settings, model.n_ctx_train());
    let loaded =
        DraftModel::load(&draft.path, n_ctx, seats.contexts, seats.sequences, &settings, runtime_host)?;
    Ok(Some((loaded, draft.least_p)))
}

/// Compiles the chat template. Without a template, the model can still complete plain text.
fn template(options: &ServeOptions, model: &Model) -> Result<std::result::Result<Arc<Template>, String>> {
    match Template::choose(options.chat_template.as_deref(), model) {
        Ok(template) => {
            // The template caches the result, so that requests do not wait for the trial rendering.
            template.shows_tools();
            Ok(Ok(Arc::new(template)))
        }
        Err(error) if options.chat_template.is_some() => Err(error),
        Err(error) => {
            tracing::debug!(model = options.name, error = %error, "no chat template");
            Ok(Err(hide_folders(&error.to_string(), [options.model.as_path()])))
        }
    }
}

/// Inputs of a scheduler.
struct SchedulerStart {
    index: usize,
    /// CPUs of the pool. `None` if the model has only one pool.
    cpus: Option<Vec<u32>>,
    options: ServeOptions,
    settings: Settings,
    runtime_host: Arc<RuntimeHost>,
    cache: Option<PromptCacheRequest>,
    model: Arc<Model>,
    /// Draft model, and the minimum probability of its tokens.
    draft: Option<(Arc<Model>, f32)>,
    inbox: Arc<Inbox>,
    metrics: Arc<Metrics>,
}

impl SchedulerStart {
    fn scheduler(self) -> Result<StartedScheduler> {
        let (said, made) = mpsc::channel();
        let (over, ended) = watch::channel(());
        let work = move || {
            // `_over` is dropped when the thread ends, even after a panic.
            let _over = over;
            match self.make() {
                Ok((scheduler, made)) => {
                    let _ = said.send(Ok(made));
                    scheduler.run();
                }
                Err(error) => drop(said.send(Err(error))),
            }
        };
        let thread = Builder::new().name("scheduler".to_string()).spawn(work);
        let thread =
            thread.map_err(|why| Error::Serve(format!("cannot start a thread for the scheduler: {why}")))?;
        match made.recv() {
            Ok(Ok((n_ctx, threads))) => Ok(StartedScheduler { thread, ended, n_ctx, threads }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::Serve("the scheduler panicked".to_string())),
        }
    }

    /// Creates the scheduler. Runs on the scheduler's thread, which is also one of the pool's threads.
    fn make(self) -> Result<(Scheduler, (u32, Threads))> {
        let SchedulerStart {
            index,
            cpus,
            options,
            settings,
            runtime_host,
            cache,
            model,
            draft,
            inbox,
            metrics,
        } = self;
        if let Some(cpus) = &cpus {
            // The thread is pinned before the context is created, so that the context's memory is allocated on this
            // NUMA node.
            bind(cpus);
        }
        let settings = settings.for_model(&model);
        let own = (settings.decode_threads.value, settings.prefill_threads.value);
        let most = cpus.as_ref().map_or(MAX_THREADS, |cpus| u32::try_from(cpus.len()).unwrap_or(MAX_THREADS));
        let roomy = options.workloads.room(&settings, most);
        let rows = options.rules.rows(options.slots);
        let mut context = model::shared_context(&model, &roomy, &runtime_host, options.slots, rows)?;
        // With workloads, the scheduler sets the thread counts for each batch.
        if options.workloads.is_empty() {
            threads::follow_load(&mut context, &settings);
        }
        let drafts =
            draft.map(|(draft, p)| DraftModel::beside(&draft, &context, None, p, &settings, &runtime_host));
        let drafts = drafts.transpose()?;
        let made = (context.n_ctx(), context.pools());
        let own = (!options.workloads.is_empty()).then_some(own);
        let scheduler =
            Scheduler::new(context, inbox, metrics, options.rules)?.in_pool(index, own).drafting_with(drafts);
        Ok((scheduler.with_disk(cache, &settings, &runtime_host)?, made))
    }
}

/// Pins the current thread to `cpus`. If the system does not allow pinning, the thread stays unpinned.
fn bind(cpus: &[u32]) {
    let mut set = CpuSet::new();
    for cpu in cpus.iter().map(|cpu| *cpu as usize).filter(|cpu| *cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    let _ = sched_setaffinity(None, &set);
}

pub(super) struct LoadedModel {
    pub(super) server: Arc<Server>,
    pub(super) running: Running,
}
