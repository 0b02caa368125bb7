//! Registry of the models: leases of loaded ones, and requests that wait for others.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use build_info::Bytes;
use engine_core::core_lock::Turns;
use engine_core::live::Live;
use engine_core::settings::Settings;
use llama::error::Result as EngineResult;
use tokio::sync::watch;
use tokio::time::timeout_at;

use super::entry::{Entry, Place};
use super::load::bring;
use super::named::{Named, Served};
use crate::api_error::{Kind, Refusal, stopping};
use crate::blocking_pool::Beside;
use crate::budget::{Bounds, Budget, Charge, SharedCharge, VALUE_BYTES};
use crate::client::Client;
use crate::closing::Closing;
use crate::fields::{Fields, nearest};
use crate::metrics::Metrics;
use crate::request_log::Ticket;
use crate::server::{Current, Server};

/// Makes the settings of a model, for the machine as it is now.
pub type Resolve = Arc<dyn Fn(&Named, &Live) -> EngineResult<Settings> + Send + Sync>;

/// Tells the user something.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// What loading needs.
pub struct Loader {
    /// Makes settings.
    pub resolve: Resolve,
    /// Tells what came of it.
    pub say: Say,
    /// Whose turn it is, of all models.
    pub turns: Arc<Turns>,
}

/// What every connection shares.
pub struct Front {
    pub(super) current: RwLock<Arc<Current>>,
    /// What is counted of connections, and of requests before it is known which model they are for.
    pub metrics: Arc<Metrics>,
    pub(super) beside: Arc<Beside>,
    /// Bytes of requests that wait.
    pub(super) budget: Arc<Budget>,
    pub(super) created: u64,
    pub(super) loader: Loader,
    pub(super) state: Mutex<State>,
    /// Told whenever anything in `state` changes that somebody may wait for.
    pub(super) changed: watch::Sender<()>,
    /// Held while a model is loaded: one at a time.
    pub(super) loading: tokio::sync::Mutex<()>,
    /// Whether ggml's tiled kernels run, once that is decided.
    pub(super) tiled: OnceLock<bool>,
    /// Becomes true when the only model there is has broken.
    pub(super) broken: watch::Sender<bool>,
}

pub(super) struct State {
    pub(super) entries: Vec<Entry>,
    pub(super) default: Option<String>,
    pub(super) limit: Option<Bytes>,
    pub(super) several: bool,
    pub(super) closing: Closing,
    /// Counts uses and entries.
    pub(super) count: u64,
}

impl State {
    pub(super) fn entry(&mut self, id: u64) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.id == id)
    }

    /// What all models take that are loaded or being loaded, in bytes.
    pub(super) fn taken(&self) -> u64 {
        self.entries.iter().map(|entry| entry.memory.0).sum()
    }

    /// The entry that a request for `name` means.
    pub(super) fn find(&self, name: Option<&str>) -> Result<usize, Refusal> {
        let there = || self.entries.iter().filter(|entry| !entry.gone);
        let wanted = match (name, &self.default) {
            (Some(name), _) => name,
            (None, Some(default)) => default,
            (None, None) => match there().next().filter(|_| there().count() == 1) {
                Some(only) => only.name(),
                None => {
                    let message = format!(
                        "is missing: this server has {}, and no default_model in its configuration says which is meant",
                        names(there())
                    );
                    return Err(Refusal::field("model", message));
                }
            },
        };
        let found = self.entries.iter().position(|entry| !entry.gone && entry.name() == wanted);
        found.ok_or_else(|| unknown(wanted, there()))
    }
}

fn names<'a>(entries: impl Iterator<Item = &'a Entry>) -> String {
    entries.map(|entry| format!("{:?}", entry.name())).collect::<Vec<_>>().join(", ")
}

fn unknown<'a>(name: &str, there: impl Iterator<Item = &'a Entry> + Clone) -> Refusal {
    let short: String = name.chars().take(100).collect();
    let near = nearest(name, there.clone().map(Entry::name)).filter(|_| there.clone().count() > 1);
    let mend = near.map_or(String::new(), |near| format!("; did you mean {near:?}?"));
    let message = format!("there is no model {short:?}; this server has {}{mend}", names(there));
    Refusal { param: Some("model".to_string()), ..Refusal::new(Kind::NoModel, message) }
}

/// A model that is loaded, and stays so until this is dropped.
pub struct Held {
    front: Arc<Front>,
    id: u64,
    server: Arc<Server>,
}

impl Deref for Held {
    type Target = Arc<Server>;

    fn deref(&self) -> &Arc<Server> {
        &self.server
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.front.lock();
        let Some(entry) = state.entry(self.id) else { return };
        entry.users -= 1;
        if entry.users == 0 {
            drop(state);
            self.front.tell();
        }
    }
}

/// A request that waits for a model.
struct Waiting<'a> {
    front: &'a Front,
    id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.front.lock().entry(self.id) {
            entry.waiting -= 1;
        }
        self.front.tell();
    }
}

impl Front {
    /// A front of `served`, of which nothing is loaded yet.
    pub fn new(served: &Served, current: Current, loader: Loader) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let metrics = Arc::new(Metrics::default());
        // One model's numbers are the server's.
        let own = || if served.several { Arc::new(Metrics::default()) } else { Arc::clone(&metrics) };
        let entries = served.models.iter().zip(0..).map(|(named, id)| Entry::new(id, named.clone(), own()));
        Front {
            current: RwLock::new(Arc::new(current)),
            beside: Arc::new(Beside::default()),
            budget: Arc::new(Budget::new(&metrics)),
            created: now.map_or(0, |now| now.as_secs()),
            loader,
            state: Mutex::new(State {
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

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Whatever panicked, it is whole between two calls.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell(&self) {
        self.changed.send_replace(());
    }

    /// What counts now, of what all models share.
    pub fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Charge for a request of `client` of which no byte has come yet.
    pub fn charge(&self, client: &Client) -> Charge {
        self.budget.charge(client)
    }

    /// The fields of a request of `client` that `charge` is for.
    pub async fn fields(
        &self,
        bytes: Vec<u8>,
        mut charge: Charge,
        client: &Client,
    ) -> Result<Fields, Refusal> {
        let fields = self.beside.of(client).fields(bytes).await?;
        charge.grow(fields.values() * VALUE_BYTES, Bounds::of(&self.current().limits))?;
        Ok(fields.charged(SharedCharge::new(charge)))
    }

    /// How far the end is.
    pub fn closing(&self) -> Closing {
        self.lock().closing
    }

    /// Returns when the only model has broken.
    pub async fn broke(&self) {
        let mut broken = self.broken.subscribe();
        let _ = broken.wait_for(|broken| *broken).await;
    }

    /// The model that the field `model` of a request names, as soon as it is loaded.
    ///
    /// # Errors
    /// Where there is no such model, it cannot be loaded, too many wait for it, or the time is over.
    pub async fn choose(self: &Arc<Self>, fields: &mut Fields, arrived: Instant) -> Result<Held, Refusal> {
        let name = fields.text("model")?;
        if let Some(held) = self.try_hold(name.as_deref(), &mut None)? {
            return Ok(held);
        }
        // What it should be is said where it is taken.
        let asked = fields.peek("timeout_s").and_then(serde_json::Value::as_f64);
        let most = self.patience(name.as_deref());
        let asked = asked.filter(|asked| (0.0..=most.as_secs_f64()).contains(asked));
        let patience = asked.map_or(most, Duration::from_secs_f64);
        self.hold(name.as_deref(), arrived + patience).await
    }

    fn patience(&self, name: Option<&str>) -> Duration {
        let state = self.lock();
        let entry = state.find(name).ok().map(|at| &state.entries[at]);
        entry.map_or(self.current().defaults.deadline, |entry| entry.named.options.deadline)
    }

    async fn hold(self: &Arc<Self>, name: Option<&str>, until: Instant) -> Result<Held, Refusal> {
        let mut changed = self.changed.subscribe();
        let mut waiting = None;
        loop {
            changed.borrow_and_update();
            if let Some(held) = self.try_hold(name, &mut waiting)? {
                return Ok(held);
            }
            if timeout_at(until.into(), changed.changed()).await.is_err() {
                let message = "the time of the request was over before its model was loaded";
                return Err(Refusal::new(Kind::Deadline, message));
            }
        }
    }

    /// The model, if it is loaded; else it is going to be, and `waiting` says that somebody waits for it.
    fn try_hold<'a>(
        self: &'a Arc<Self>,
        name: Option<&str>,
        waiting: &mut Option<Waiting<'a>>,
    ) -> Result<Option<Held>, Refusal> {
        let mut state = self.lock();
        if state.closing != Closing::Open {
            self.metrics.refused.add(1);
            return Err(stopping());
        }
        let at = state.find(name)?;
        state.count += 1;
        let count = state.count;
        let entry = &mut state.entries[at];
        match &entry.place {
            Place::Here(here) if !entry.leaves => {
                let server = Arc::clone(&here.server);
                (entry.users, entry.used) = (entry.users + 1, count);
                Ticket::current().model(entry.name());
                return Ok(Some(Held { front: Arc::clone(self), id: entry.id, server }));
            }
            Place::Failed { why, until } if *until > Instant::now() => {
                let seconds = until.saturating_duration_since(Instant::now()).as_secs() + 1;
                let message = format!(
                    "the model {:?} cannot be loaded now: {why}; it is tried again with the first request after {seconds} \
                     s",
                    entry.name()
                );
                return Err(Refusal { retry_after: Some(seconds), ..Refusal::new(Kind::NoRoom, message) });
            }
            _ => {}
        }
        if waiting.is_none() {
            if entry.waiting > entry.named.options.queue {
                entry.metrics.refused.add(1);
                let message =
                    format!("{} requests wait for this model to be loaded: try again later", entry.waiting);
                return Err(Refusal { retry_after: Some(1), ..Refusal::new(Kind::Busy, message) });
            }
            entry.waiting += 1;
            *waiting = Some(Waiting { front: self, id: entry.id });
        }
        if matches!(entry.place, Place::Out | Place::Failed { .. }) {
            entry.place = Place::Coming;
            tokio::spawn(bring(Arc::clone(self), entry.id));
        }
        Ok(None)
    }
}
