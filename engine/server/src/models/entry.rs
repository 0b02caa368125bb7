//! A model of the registry, and how far it is loaded.

use std::sync::Arc;
use std::time::Instant;

use build_info::Bytes;
use tokio::sync::watch;

use super::named::Named;
use super::start::LoadedModel;
use crate::metrics::Metrics;

/// A model and what is known of it.
pub(super) struct ModelEntry {
    pub(super) id: u64,
    pub(super) named: Named,
    pub(super) load_state: LoadState,
    pub(super) metrics: Arc<Metrics>,
    /// Requests that hold it.
    pub(super) users: usize,
    /// Requests that wait for it.
    pub(super) waiting: usize,
    /// When it was held last, as a number that grows.
    pub(super) used: u64,
    /// Whether it goes as soon as nobody holds it; whoever asks for it waits until then.
    pub(super) leaves: bool,
    /// Whether it is not in the configuration any more.
    pub(super) gone: bool,
    /// What it takes by the estimate, while it is loaded or being loaded.
    pub(super) memory: Bytes,
    pub(super) loads: u64,
    pub(super) failures: u64,
    /// Failures since it was loaded last.
    pub(super) tries: u32,
}

/// Progress of loading or unloading a model.
pub(super) enum LoadState {
    Unloaded,
    Loading,
    Loaded(Box<LoadedModel>),
    /// Its threads have yet to end.
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
