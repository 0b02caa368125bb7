//! Entry of the model registry: a model, with its loading state.

use std::sync::Arc;
use std::time::Instant;

use build_info::Bytes;
use tokio::sync::watch;

use super::named::Named;
use super::start::LoadedModel;
use crate::metrics::Metrics;

/// Entry of a model.
pub(super) struct ModelEntry {
    pub(super) id: u64,
    pub(super) named: Named,
    pub(super) load_state: LoadState,
    pub(super) metrics: Arc<Metrics>,
    /// Number of requests that hold a lease of the model.
    pub(super) users: usize,
    /// Number of requests that wait until the model is loaded.
    pub(super) waiting: usize,
    /// Counter value when the model was last leased, for LRU eviction.
    pub(super) used: u64,
    /// True if the model will be unloaded when no request holds a lease. Until then, new requests wait.
    pub(super) leaves: bool,
    /// True if the configuration no longer contains the model.
    pub(super) gone: bool,
    /// Estimated memory, while the model is loaded or loading.
    pub(super) memory: Bytes,
    pub(super) loads: u64,
    pub(super) failures: u64,
    /// Number of failed loads since the last successful load.
    pub(super) tries: u32,
}

/// State of loading or unloading a model.
pub(super) enum LoadState {
    Unloaded,
    Loading,
    Loaded(Box<LoadedModel>),
    /// The model's threads are still ending.
    Unloading(Vec<watch::Receiver<()>>),
    Failed {
        why: String,
        until: Instant,
    },
}

impl ModelEntry {
    pub(super) fn new(id: u64, named: Named, metrics: Arc<Metrics>) -> Self {
        ModelEntry {
            id,
            named,
            load_state: LoadState::Unloaded,
            metrics,
            users: 0,
            waiting: 0,
            used: 0,
            leaves: false,
            gone: false,
            memory: Bytes(0),
            loads: 0,
            failures: 0,
            tries: 0,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.named.options.name
    }

    pub(super) fn loaded(&self) -> Option<&LoadedModel> {
        match &self.load_state {
            LoadState::Loaded(loaded) => Some(loaded),
            _ => None,
        }
    }
}
