//! Loading of models on demand, and unloading.

use std::path::Path;
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use build_info::Bytes;
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{Settings, Source};
use llama::error::{Error, Result};
use llama::own_kernels::{self, MatrixKernels};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::entry::{LoadState, ModelEntry};
use super::memory::{MemoryEstimate, estimate};
use super::named::Named;
use super::registry::ModelRegistry;
use super::start::{Common, LoadedModel, start};
use crate::closing::Closing;
use crate::hidden_paths::hide_folders;

/// Time before a model in use is evicted for another model that needs memory. After this time, new requests for the
/// model wait, its running requests finish, and the model is unloaded.
const PATIENCE: Duration = Duration::from_secs(5);

/// Delay before the first retry of a failed load. Each further failure doubles the delay.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// Runs `work` on a separate thread, because it may take minutes.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (said, done) = oneshot::channel();
    let work = move || drop(said.send(work()));
    let thread = Builder::new().name("loader".to_string()).spawn(work);
    thread.map_err(|why| Error::Serve(format!("cannot start a thread to load the model: {why}")))?;
    done.await.unwrap_or_else(|_| Err(Error::Serve("the loading thread ended unexpectedly".to_string())))
}

/// Waits until all `threads` have ended. Each thread closes its channel when it ends.
async fn over(threads: Vec<watch::Receiver<()>>) {
    for mut thread in threads {
        while thread.changed().await.is_ok() {}
    }
}

/// Loads the model `id`, whose state is [`LoadState::Loading`].
pub(super) async fn load(registry: Arc<ModelRegistry>, id: u64) {
    let _one = registry.loading.lock().await;
    let loaded = registry.try_load(id).await;
    registry.note_loaded(id, loaded);
}

impl ModelRegistry {
    /// Loads the models with `preload`, on this thread.
    ///
    /// # Errors
    /// If a model cannot be loaded.
    pub fn preload(&self, runtime_host: &Arc<RuntimeHost>) -> Result<()> {
        self.metrics.note(runtime_host);
        let (ids, is_bounded): (Vec<u64>, bool) = {
            let state = self.lock();
            if state.entries.iter().any(|entry| entry.named.engine.tiled == Some(false)) {
                // The setting applies to all models, and can only be changed before other threads exist.
                llama::turn_off_tiled();
                let _ = self.tiled.set(false);
            }
            let ids =
                state.entries.iter().filter(|entry| entry.named.preload).map(|entry| entry.id).collect();
            (ids, state.several || state.limit.is_some())
        };
        for (at, id) in ids.into_iter().enumerate() {
            let Some((named, metrics)) = self.named(id) else { continue };
            let mut settings = (self.loader.resolve)(&named, runtime_host)?;
            if at > 0 {
                self.as_they_are(&mut settings);
            } else {
                let _ = self.tiled.set(settings.tiled.value);
            }
            let mut memory = Bytes(0);
            if is_bounded || named.options.pools > 1 || named.options.draft_model.is_some() {
                let estimate = estimate(&named, &settings)?;
                self.check(&estimate, runtime_host)?;
                memory = estimate.total();
                let state = self.lock();
                let taken = state.taken();
                let limit = state.limit.or(runtime_host.memory());
                if let Some(limit) = limit.filter(|limit| taken.saturating_add(memory.0) > limit.0) {
                    return Err(Error::Usage(format!(
                        "cannot preload {:?}: it needs {memory} of memory, the models loaded before it use {}, and \
                        the limit for all models is {limit} (memory_limit)\nhint: remove preload from one of the \
                        models",
                        named.options.name,
                        Bytes(taken)
                    )));
                }
            }
            let loaded = start(&named, &settings, runtime_host, self.common(metrics))?;
            if let Some(entry) = self.lock().entry(id) {
                entry.memory = memory;
                entry.loads += 1;
                entry.load_state = LoadState::Loaded(Box::new(loaded));
            }
        }
        Ok(())
    }

    /// Runs for the server's lifetime, and unloads each model that is marked for unloading as soon as no request holds
    /// a lease.
    pub async fn tidy(self: Arc<Self>) {
        let mut changed = self.changed.subscribe();
        self.watch_all();
        loop {
            changed.borrow_and_update();
            match self.next_to_go() {
                Some((id, loaded)) => self.let_go(id, *loaded).await,
                None => {
                    let _ = changed.changed().await;
                }
            }
        }
    }

    fn common(&self, metrics: Arc<crate::metrics::Metrics>) -> Common {
        let turns = Arc::clone(&self.loader.turns);
        Common { turns, blocking_pool: Arc::clone(&self.blocking_pool), metrics, created: self.created }
    }

    fn named(&self, id: u64) -> Option<(Named, Arc<crate::metrics::Metrics>)> {
        let mut state = self.lock();
        let entry = state.entry(id)?;
        Some((entry.named.clone(), Arc::clone(&entry.metrics)))
    }

    /// Sets the kernels in `settings` to the kernels that the first model chose, because the choice applies to the
    /// whole process. ggml has already read the environment variable for tiled kernels, and the environment must not
    /// change while other threads read it.
    fn as_they_are(&self, settings: &mut Settings) {
        let kernels = &mut settings.kernels;
        if let Some(used) = own_kernels::choice().map(|choice| choice.kernels)
            && kernels.value != MatrixKernels::Auto
            && kernels.value != used
        {
            (kernels.value, kernels.source) = (used, Source::Environment);
        }
        if settings.tiled.source != Source::Environment {
            settings.tiled.value = *self.tiled.get().unwrap_or(&true);
            settings.tiled.source = Source::Environment;
        }
    }

    /// Checks that the model alone fits the memory limit.
    fn check(&self, estimate: &MemoryEstimate, runtime_host: &RuntimeHost) -> Result<()> {
        let limit = self.lock().limit.or(runtime_host.memory());
        match limit.and_then(|limit| estimate.refused(limit)) {
            Some(why) => Err(Error::Usage(why)),
            None => Ok(()),
        }
    }

    /// True if a request waits for the model `id`.
    ///
    /// # Errors
    /// If the server is shutting down.
    fn is_wanted(&self, id: u64) -> Result<bool> {
        let mut state = self.lock();
        if state.closing != Closing::Open {
            return Err(Error::Serve("the server is shutting down".to_string()));
        }
        Ok(state.entry(id).is_some_and(|entry| entry.waiting > 0 && !entry.gone))
    }

    /// Loads the model `id`. `None` if no request waits for the model any more.
    async fn try_load(self: &Arc<Self>, id: u64) -> Result<Option<LoadedModel>> {
        // The client may have disconnected, because loading other models may have taken minutes.
        if !self.is_wanted(id)? {
            return Ok(None);
        }
        let Some((named, metrics)) = self.named(id) else { return Ok(None) };
        let (resolve, wanted) = (Arc::clone(&self.loader.resolve), named.clone());
        let (estimate, mut settings, limit) = aside(move || {
            let runtime_host = RuntimeHost::read();
            let settings = resolve(&wanted, &runtime_host)?;
            Ok((estimate(&wanted, &settings)?, settings, runtime_host.memory()))
        })
        .await?;
        self.as_they_are(&mut settings);
        // Without a configured limit, the limit is the free memory plus the memory of the loaded models.
        let taken = self.lock().taken();
        let limit = self.lock().limit.or(limit.map(|free| Bytes(free.0.saturating_add(taken))));
        if let Some(limit) = limit {
            if let Some(why) = estimate.refused(limit) {
                return Err(Error::Usage(why));
            }
            if !self.make_room(id, estimate.total(), limit).await? {
                return Ok(None);
            }
        }
        if let Some(entry) = self.lock().entry(id) {
            entry.memory = estimate.total();
        }
        let common = self.common(metrics);
        aside(move || start(&named, &settings, &Arc::new(RuntimeHost::read()), common).map(Some)).await
    }

    /// Waits until `needed` bytes are free within `limit`. Returns false if no request waits for the model any more.
    async fn make_room(&self, id: u64, needed: Bytes, limit: Bytes) -> Result<bool> {
        let mut changed = self.changed.subscribe();
        let begin = Instant::now();
        loop {
            changed.borrow_and_update();
            if !self.is_wanted(id)? {
                return Ok(false);
            }
            {
                let mut state = self.lock();
                let taken = state.taken();
                if taken.saturating_add(needed.0) <= limit.0 {
                    return Ok(true);
                }
                let may_disturb = begin.elapsed() >= PATIENCE;
                choose_one_to_go(&mut state.entries, taken.saturating_add(needed.0) - limit.0, may_disturb);
            }
            self.tell_others(&mut changed);
            let _ = timeout(PATIENCE, changed.changed()).await;
        }
    }

    /// Wakes all receivers that wait for a change, except `own`.
    fn tell_others(&self, own: &mut watch::Receiver<()>) {
        self.tell();
        own.borrow_and_update();
    }

    /// Records the result of loading the model `id`.
    fn note_loaded(self: &Arc<Self>, id: u64, loaded: Result<Option<LoadedModel>>) {
        let mut state = self.lock();
        let closing = state.closing;
        let Some(entry) = state.entry(id) else { return };
        match loaded {
            Ok(Some(loaded)) => {
                loaded.server.inbox.close(closing);
                (entry.loads, entry.tries) = (entry.loads + 1, 0);
                let ended = loaded.running.schedulers();
                entry.load_state = LoadState::Loaded(Box::new(loaded));
                self.watch(id, entry.loads, ended);
            }
            Ok(None) => (entry.load_state, entry.memory) = (LoadState::Unloaded, Bytes(0)),
            Err(error) => {
                // The message for the log and for clients must be a single line.
                let why = build_info::words::with_inline_hint(&error.to_string());
                if closing == Closing::Open {
                    (self.loader.say)(&format!("cannot load the model {:?}: {why}", entry.name()));
                }
                let why = without_folders(&why, &entry.named);
                failed(entry, why);
            }
        }
        drop(state);
        self.tell();
    }

    fn watch_all(self: &Arc<Self>) {
        let state = self.lock();
        for entry in &state.entries {
            if let Some(loaded) = entry.loaded() {
                self.watch(entry.id, entry.loads, loaded.running.schedulers());
            }
        }
    }

    /// Watches for schedulers of the model `id` that end unexpectedly.
    fn watch(self: &Arc<Self>, id: u64, loads: u64, ended: Vec<watch::Receiver<()>>) {
        for ended in ended {
            let registry = Arc::clone(self);
            tokio::spawn(async move {
                over(vec![ended]).await;
                registry.fell(id, loads);
            });
        }
    }

    fn fell(&self, id: u64, loads: u64) {
        let mut state = self.lock();
        let (several, closing) = (state.several, state.closing);
        let Some(entry) = state.entry(id).filter(|entry| entry.loads == loads) else { return };
        let Some(loaded) = entry.loaded() else { return };
        if closing != Closing::Open {
            return;
        }
        // Closing the inbox also stops the other pools, and cancels the requests that wait for any of the pools.
        loaded.server.inbox.close(Closing::Now);
        drop(loaded.server.inbox.take(|_| true));
        if !several {
            self.broken.send_replace(true);
            return;
        }
        (self.loader.say)(&format!(
            "the scheduler of the model {:?} ended unexpectedly; reloading the model",
            entry.name()
        ));
        entry.leaves = true;
        drop(state);
        self.tell();
    }

    /// Takes a model that is marked for unloading and has no leases.
    fn next_to_go(&self) -> Option<(u64, Box<LoadedModel>)> {
        let mut state = self.lock();
        state.entries.retain(|entry| {
            !(entry.gone && matches!(entry.load_state, LoadState::Unloaded | LoadState::Failed { .. }))
        });
        let goes = |entry: &&mut ModelEntry| {
            (entry.leaves || entry.gone) && entry.users == 0 && entry.loaded().is_some()
        };
        let entry = state.entries.iter_mut().find(goes)?;
        let ended = entry.loaded().map(|loaded| loaded.running.ended()).unwrap_or_default();
        match std::mem::replace(&mut entry.load_state, LoadState::Unloading(ended)) {
            LoadState::Loaded(loaded) => Some((entry.id, loaded)),
            other => {
                entry.load_state = other;
                None
            }
        }
    }

    async fn let_go(&self, id: u64, loaded: LoadedModel) {
        loaded.server.inbox.close(Closing::Draining);
        loaded.server.embedder.wake();
        over(loaded.running.ended()).await;
        // The model is dropped on a separate thread, because freeing gigabytes takes time.
        let broke = aside(move || {
            let LoadedModel { server, running } = loaded;
            drop(server);
            running.join()
        });
        let broke = broke.await;
        let mut state = self.lock();
        let Some(entry) = state.entry(id) else { return };
        entry.metrics.let_go();
        tracing::info!(model = entry.name(), "unloaded");
        (entry.leaves, entry.memory, entry.load_state) = (false, Bytes(0), LoadState::Unloaded);
        if let Err(error) = broke {
            let why = build_info::words::with_inline_hint(&error.to_string());
            let why = without_folders(&why, &entry.named);
            failed(entry, why);
        }
        drop(state);
        self.tell();
    }

    /// Starts the shutdown, or advances it to a later stage.
    pub fn close(&self, closing: Closing) {
        let mut state = self.lock();
        state.closing = state.closing.max(closing);
        for loaded in state.entries.iter().filter_map(ModelEntry::loaded) {
            loaded.server.inbox.close(closing);
            loaded.server.embedder.wake();
        }
        drop(state);
        self.tell();
    }

    /// Waits until all threads of all models have ended, after [`close`](Self::close).
    pub async fn all_ended(&self) {
        // A model can be unloaded only after its loading has ended.
        drop(self.loading.lock().await);
        let ended = |entry: &ModelEntry| match &entry.load_state {
            LoadState::Loaded(loaded) => loaded.running.ended(),
            LoadState::Unloading(ended) => ended.clone(),
            _ => Vec::new(),
        };
        let all: Vec<_> = self.lock().entries.iter().flat_map(ended).collect();
        over(all).await;
    }

    /// Joins all threads.
    ///
    /// # Errors
    /// If a scheduler panicked.
    pub fn join(&self) -> Result<()> {
        let entries = std::mem::take(&mut self.lock().entries);
        let mut ends = Ok(());
        for entry in entries {
            if let LoadState::Loaded(loaded) = entry.load_state {
                ends = ends.and(loaded.running.join());
            }
        }
        ends
    }
}

/// Removes the folders of the model's files from `why`, which clients see. The log contains the full paths.
fn without_folders(why: &str, named: &Named) -> String {
    let options = &named.options;
    let adapters = named.engine.variant.adapters.iter().map(|adapter| adapter.path.as_path());
    let cache = options.prompt_cache.iter().map(|cache| cache.folder.as_path());
    let template = options.chat_template.iter().map(Path::new);
    let draft = options.draft_model.iter().map(|draft| draft.path.as_path());
    let one = std::iter::once(options.model.as_path());
    let paths = one.chain(draft).chain(adapters).chain(cache).chain(template);
    hide_folders(why, paths)
}

fn failed(entry: &mut ModelEntry, why: String) {
    let wait = RETRY.saturating_mul(1 << entry.tries.min(6)).min(LONGEST_RETRY);
    entry.tries += 1;
    entry.failures += 1;
    (entry.memory, entry.leaves) = (Bytes(0), false);
    entry.load_state = LoadState::Failed { why, until: Instant::now() + wait };
}

/// Marks models for unloading until all marked models, including models marked earlier, free at least `more` bytes.
/// Unused models are marked first, in the order of their last use. If `may_disturb` is set, models in use follow.
fn choose_one_to_go(entries: &mut [ModelEntry], more: u64, may_disturb: bool) {
    let goes = |entry: &ModelEntry| {
        entry.leaves || entry.gone || matches!(entry.load_state, LoadState::Unloading(_))
    };
    let mut free: u64 = entries.iter().filter(|entry| goes(entry)).map(|entry| entry.memory.0).sum();
    for disturb in [false, true] {
        while free < more && (may_disturb || !disturb) {
            let can = |entry: &&mut ModelEntry| {
                entry.loaded().is_some() && !goes(entry) && (disturb || entry.users == 0)
            };
            let oldest = entries.iter_mut().filter(can).min_by_key(|entry| entry.used);
            let Some(entry) = oldest else { break };
            entry.leaves = true;
            free += entry.memory.0;
        }
    }
}
