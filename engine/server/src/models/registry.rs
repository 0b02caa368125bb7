//! Registry of the models: leases of loaded models, and requests that wait until a model is loaded.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use build_info::Bytes;
use build_info::words::nearest;
use engine_core::core_lock::Turns;
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::Settings;
use llama::error::Result as EngineResult;
use tokio::sync::watch;
use tokio::time::timeout_at;

use super::entry::{LoadState, ModelEntry};
use super::load::load;
use super::named::{Named, Served};
use crate::api_error::{ApiError, ApiErrorKind, stopping};
use crate::blocking_pool::BlockingPool;
use crate::budget::{Budget, ByteBounds, Charge, SharedCharge, VALUE_BYTES};
use crate::client::Client;
use crate::closing::Closing;
use crate::fields::Fields;
use crate::metrics::Metrics;
use crate::request_log::RequestLog;
use crate::server::{Current, Server};

/// Function that resolves the settings of a model for the current state of the machine.
pub type Resolve = Arc<dyn Fn(&Named, &RuntimeHost) -> EngineResult<Settings> + Send + Sync>;

/// Function that shows a message to the user.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// Functions and locks that loading needs.
pub struct Loader {
    /// Resolves the settings of a model.
    pub resolve: Resolve,
    /// Reports failures to the user.
    pub say: Say,
    /// Core lock that all models share.
    pub turns: Arc<Turns>,
}

/// Registry of the models, shared by all connections.
pub struct ModelRegistry {
    pub(super) current: RwLock<Arc<Current>>,
    /// Metrics of connections, and of requests whose model is not yet known.
    pub metrics: Arc<Metrics>,
    pub(super) blocking_pool: Arc<BlockingPool>,
    /// Budget for the bytes of waiting requests.
    pub(super) budget: Arc<Budget>,
    pub(super) created: u64,
    pub(super) loader: Loader,
    pub(super) state: Mutex<RegistryState>,
    /// Notified after every change of `state` that other tasks may wait for.
    pub(super) changed: watch::Sender<()>,
    /// Held while a model is being loaded, so that models load one at a time.
    pub(super) loading: tokio::sync::Mutex<()>,
    /// Setting for ggml's tiled kernels, determined by the first model.
    pub(super) tiled: OnceLock<bool>,
    /// Becomes true when the only model has failed.
    pub(super) broken: watch::Sender<bool>,
}

pub(super) struct RegistryState {
    pub(super) entries: Vec<ModelEntry>,
    pub(super) default: Option<String>,
    pub(super) limit: Option<Bytes>,
    pub(super) several: bool,
    pub(super) closing: Closing,
    /// Counter of leases and entries.
    pub(super) count: u64,
}

impl RegistryState {
    pub(super) fn entry(&mut self, id: u64) -> Option<&mut ModelEntry> {
        self.entries.iter_mut().find(|entry| entry.id == id)
    }

    /// Returns the memory of all models that are loaded or loading, in bytes.
    pub(super) fn taken(&self) -> u64 {
        self.entries.iter().map(|entry| entry.memory.0).sum()
    }

    /// Returns the index of the entry for a request whose field `model` is `name`.
    ///
    /// # Errors
    /// If the model does not exist, or if the request does not specify a model and no default is configured.
    pub(super) fn find(&self, name: Option<&str>) -> Result<usize, ApiError> {
        let there = || self.entries.iter().filter(|entry| !entry.gone);
        let wanted = match (name, &self.default) {
            (Some(name), _) => name,
            (None, Some(default)) => default,
            (None, None) => match there().next().filter(|_| there().count() == 1) {
                Some(only) => only.name(),
                None => {
                    let message = format!(
                        "is missing: this server has {}, and its configuration has no default_model",
                        names(there())
                    );
                    return Err(ApiError::field("model", message));
                }
            },
        };
        let found = self.entries.iter().position(|entry| !entry.gone && entry.name() == wanted);
        found.ok_or_else(|| unknown(wanted, there()))
    }
}

fn names<'a>(entries: impl Iterator<Item = &'a ModelEntry>) -> String {
    entries.map(|entry| format!("{:?}", entry.name())).collect::<Vec<_>>().join(", ")
}

fn unknown<'a>(name: &str, there: impl Iterator<Item = &'a ModelEntry> + Clone) -> ApiError {
    let short: String = name.chars().take(100).collect();
    let near = nearest(name, there.clone().map(ModelEntry::name)).filter(|_| there.clone().count() > 1);
    let mend = near.map_or(String::new(), |near| format!("; did you mean {near:?}?"));
    let message = format!("unknown model {short:?}; this server has {}{mend}", names(there));
    ApiError { param: Some("model".to_string()), ..ApiError::new(ApiErrorKind::NoModel, message) }
}

/// Lease of a loaded model. The model stays loaded until the lease is dropped.
pub struct ModelLease {
    registry: Arc<ModelRegistry>,
    id: u64,
    server: Arc<Server>,
}

impl Deref for ModelLease {
    type Target = Arc<Server>;

    fn deref(&self) -> &Arc<Server> {
        &self.server
    }
}

impl Drop for ModelLease {
    fn drop(&mut self) {
        let mut state = self.registry.lock();
        let Some(entry) = state.entry(self.id) else { return };
        entry.users -= 1;
        if entry.users == 0 {
            drop(state);
            self.registry.tell();
        }
    }
}

/// Guard that counts a request that waits for a model.
struct WaitingRequest<'a> {
    registry: &'a ModelRegistry,
    id: u64,
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.registry.lock().entry(self.id) {
            entry.waiting -= 1;
        }
        self.registry.tell();
    }
}

impl ModelRegistry {
    /// Creates a registry of `served` with no model loaded.
    pub fn new(served: &Served, current: Current, loader: Loader) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let metrics = Arc::new(Metrics::default());
        // A single model shares the metrics of the server.
        let own = || if served.several { Arc::new(Metrics::default()) } else { Arc::clone(&metrics) };
        let entries =
            served.models.iter().zip(0..).map(|(named, id)| ModelEntry::new(id, named.clone(), own()));
        ModelRegistry {
            current: RwLock::new(Arc::new(current)),
            blocking_pool: Arc::new(BlockingPool::default()),
            budget: Arc::new(Budget::new(&metrics)),
            created: now.map_or(0, |now| now.as_secs()),
            loader,
            state: Mutex::new(RegistryState {
                count: served.models.len() as u64,
                entries: entries.collect(),
                default: served.default.clone(),
                limit: served.memory_limit,
                several: served.several,
                closing: Closing::Open,
            }),
            changed: watch::Sender::new(()),
            loading: tokio::sync::Mutex::new(()),
            tiled: OnceLock::new(),
            broken: watch::Sender::new(false),
            metrics,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, RegistryState> {
        // The state is valid even after a panic, because no call leaves it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell(&self) {
        self.changed.send_replace(());
    }

    /// Returns the current options that all models share.
    pub fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts the charge for a request of `client`.
    pub fn charge(&self, client: &Client) -> Charge {
        self.budget.charge(client)
    }

    /// Parses the fields of a request of `client`, whose bytes `charge` covers.
    ///
    /// # Errors
    /// If `bytes` is not a valid request, or if the limit on the bytes of waiting requests is exceeded.
    pub async fn fields(
        &self,
        bytes: Vec<u8>,
        mut charge: Charge,
        client: &Client,
    ) -> Result<Fields, ApiError> {
        let fields = self.blocking_pool.of(client).fields(bytes).await?;
        charge.grow(fields.values() * VALUE_BYTES, ByteBounds::of(&self.current().limits))?;
        Ok(fields.charged(SharedCharge::new(charge)))
    }

    /// Returns the stage of the shutdown.
    pub fn closing(&self) -> Closing {
        self.lock().closing
    }

    /// Completes when the only model has failed.
    pub async fn broke(&self) {
        let mut broken = self.broken.subscribe();
        let _ = broken.wait_for(|broken| *broken).await;
    }

    /// Returns a lease of the model that the field `model` names. Waits until the model is loaded.
    ///
    /// # Errors
    /// If the model does not exist or cannot be loaded, if too many requests wait for it, or if the request times
    /// out.
    pub async fn choose(
        self: &Arc<Self>,
        fields: &mut Fields,
        arrived: Instant,
    ) -> Result<ModelLease, ApiError> {
        let name = fields.text("model")?;
        if let Some(lease) = self.try_lease(name.as_deref(), &mut None)? {
            return Ok(lease);
        }
        // An invalid timeout is reported later, when the field is taken.
        let asked = fields.peek("timeout_s").and_then(serde_json::Value::as_f64);
        let most = self.patience(name.as_deref());
        let asked = asked.filter(|asked| (0.0..=most.as_secs_f64()).contains(asked));
        let patience = asked.map_or(most, Duration::from_secs_f64);
        self.lease(name.as_deref(), arrived + patience).await
    }

    /// Returns a lease of the default model. Waits until the model is loaded.
    ///
    /// # Errors
    /// The errors of [`choose`](Self::choose).
    pub async fn choose_default(self: &Arc<Self>, arrived: Instant) -> Result<ModelLease, ApiError> {
        self.lease(None, arrived + self.patience(None)).await
    }

    /// Returns the index of the entry for a request whose field `model` is `name`, as [`RegistryState::find`] does. If
    /// the configuration has `accept_any_model`, an unknown name selects the default model.
    fn find(&self, state: &RegistryState, name: Option<&str>) -> Result<usize, ApiError> {
        match state.find(name) {
            Err(unknown) if name.is_some() && self.current().accept_any_model => {
                state.find(None).map_err(|_| unknown)
            }
            found => found,
        }
    }

    /// Returns the time limit of requests for the model `name`, or for the default model.
    pub fn patience(&self, name: Option<&str>) -> Duration {
        let state = self.lock();
        let entry = self.find(&state, name).ok().map(|at| &state.entries[at]);
        entry.map_or(self.current().defaults.deadline, |entry| entry.named.options.deadline)
    }

    /// Returns a lease of the model `name`, or of the default model. Waits until the model is loaded or `until` has
    /// passed.
    ///
    /// # Errors
    /// The errors of [`choose`](Self::choose).
    pub async fn lease(self: &Arc<Self>, name: Option<&str>, until: Instant) -> Result<ModelLease, ApiError> {
        let mut changed = self.changed.subscribe();
        let mut waiting = None;
        loop {
            changed.borrow_and_update();
            if let Some(lease) = self.try_lease(name, &mut waiting)? {
                return Ok(lease);
            }
            if timeout_at(until.into(), changed.changed()).await.is_err() {
                let message = "the request timed out before its model was loaded (timeout_s)";
                return Err(ApiError::new(ApiErrorKind::Deadline, message));
            }
        }
    }

    /// Returns a lease if the model is loaded. Otherwise starts loading the model, and stores a guard in `waiting`.
    fn try_lease<'a>(
        self: &'a Arc<Self>,
        name: Option<&str>,
        waiting: &mut Option<WaitingRequest<'a>>,
    ) -> Result<Option<ModelLease>, ApiError> {
        let mut state = self.lock();
        if state.closing != Closing::Open {
            self.metrics.refused.add(1);
            return Err(stopping());
        }
        let at = self.find(&state, name)?;
        state.count += 1;
        let count = state.count;
        let entry = &mut state.entries[at];
        match &entry.load_state {
            LoadState::Loaded(loaded) if !entry.leaves => {
                let server = Arc::clone(&loaded.server);
                (entry.users, entry.used) = (entry.users + 1, count);
                RequestLog::current().model(entry.name());
                return Ok(Some(ModelLease { registry: Arc::clone(self), id: entry.id, server }));
            }
            LoadState::Failed { why, until } if *until > Instant::now() => {
                let seconds = until.saturating_duration_since(Instant::now()).as_secs() + 1;
                let message = format!(
                    "cannot load the model {:?} now: {why}; the server retries on the first request after {seconds} s",
                    entry.name()
                );
                return Err(ApiError {
                    retry_after: Some(seconds),
                    ..ApiError::new(ApiErrorKind::NoRoom, message)
                });
            }
            _ => {}
        }
        if waiting.is_none() {
            if entry.waiting > entry.named.options.queue {
                entry.metrics.refused.add(1);
                let message = format!(
                    "too many requests: {} are already waiting for this model to load; try again later",
                    entry.waiting
                );
                return Err(ApiError { retry_after: Some(1), ..ApiError::new(ApiErrorKind::Busy, message) });
            }
            entry.waiting += 1;
            *waiting = Some(WaitingRequest { registry: self, id: entry.id });
        }
        if matches!(entry.load_state, LoadState::Unloaded | LoadState::Failed { .. }) {
            entry.load_state = LoadState::Loading;
            tokio::spawn(load(Arc::clone(self), entry.id));
        }
        Ok(None)
    }
}
