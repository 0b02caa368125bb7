//! State of the models, as clients see it.

use std::sync::Arc;

use serde_json::{Value, json};

use super::entry::{LoadState, ModelEntry};
use super::registry::ModelRegistry;
use crate::api_error::ApiError;
use crate::metrics::{Family, Metrics, written};
use crate::request::Defaults;
use crate::server::Server;

impl ModelEntry {
    fn state(&self) -> &'static str {
        match &self.load_state {
            LoadState::Unloaded => "unloaded",
            LoadState::Loading => "loading",
            LoadState::Loaded(_) if self.leaves => "leaving",
            LoadState::Loaded(_) => "loaded",
            LoadState::Unloading(_) => "leaving",
            LoadState::Failed { .. } => "failed",
        }
    }

    fn described(&self, created: u64) -> Value {
        let server = self.loaded().map(|loaded| &loaded.server);
        let mut object = json!({
            "id": self.name(),
            "object": "model",
            "created": created,
            "owned_by": "anneal",
            "state": self.state(),
        });
        if let Some(server) = server {
            object["description"] = server.model.description().into();
            object["context"] = server.n_ctx.into();
            object["slots"] = server.slots.into();
        }
        if let LoadState::Failed { why, .. } = &self.load_state {
            object["error"] = why.as_str().into();
        }
        object
    }

    /// Its own numbers.
    fn families(&self) -> Vec<Family> {
        let mut families = self.metrics.families();
        families.retain(|family| !is_of_server(family));
        let mut add = |name: &str, kind: &'static str, help: &str, value: u64| {
            let values = vec![(String::new(), value.to_string())];
            families.push(Family { name: name.to_string(), kind, help: help.to_string(), values });
        };
        add("model_loaded", "gauge", "Whether the model is loaded.", u64::from(self.loaded().is_some()));
        add(
            "model_memory_bytes",
            "gauge",
            "What it takes, as estimated before it was loaded.",
            self.memory.0,
        );
        add("model_requests", "gauge", "Requests that hold it.", self.users as u64);
        add(
            "model_requests_waiting",
            "gauge",
            "Requests that wait for it to be loaded.",
            self.waiting as u64,
        );
        add("model_loads_total", "counter", "Times that it was loaded.", self.loads);
        add("model_load_failures_total", "counter", "Times that it could not be loaded.", self.failures);
        families.iter_mut().for_each(|family| family.label(self.name()));
        families
    }
}

/// True for numbers that no model has of its own.
fn is_of_server(family: &Family) -> bool {
    family.name.starts_with("connections") || family.name == "waiting_request_bytes"
}

/// A model as it is now, for `GET /status`.
pub struct ModelSnapshot {
    /// Its name.
    pub name: String,
    /// How far it is.
    pub state: &'static str,
    /// What it is, while it is loaded.
    pub description: String,
    /// Tokens of its context, while it is loaded.
    pub n_ctx: u32,
    /// What is counted of it.
    pub metrics: Arc<Metrics>,
    /// Requests that may wait for a slot.
    pub bound: u64,
    /// Requests that wait for it to be loaded.
    pub waiting: u64,
}

/// The models as programs have to know them.
pub struct KnownModels {
    /// Their names, the one first that a request means which names none.
    pub names: Vec<String>,
    /// The first one, if it is loaded.
    pub server: Option<Arc<Server>>,
    /// What counts for it where a request says nothing.
    pub defaults: Defaults,
}

impl ModelRegistry {
    /// When it was made, in seconds since 1970.
    pub fn created(&self) -> u64 {
        self.created
    }

    /// Whether anything beside a scheduler has panicked, of whichever model.
    pub fn has_panicked(&self) -> bool {
        let has = |metrics: &Metrics| metrics.panics.get() > 0;
        has(&self.metrics) || self.lock().entries.iter().any(|entry| has(&entry.metrics))
    }

    /// All models as they are now.
    pub fn snapshots(&self) -> Vec<ModelSnapshot> {
        let state = self.lock();
        let snapshot = |entry: &ModelEntry| {
            let server = entry.loaded().map(|loaded| &loaded.server);
            ModelSnapshot {
                name: entry.name().to_string(),
                state: entry.state(),
                description: server.map(|server| server.model.description()).unwrap_or_default(),
                n_ctx: server.map_or(0, |server| server.n_ctx),
                metrics: Arc::clone(&entry.metrics),
                bound: entry.named.options.queue as u64,
                waiting: entry.waiting as u64,
            }
        };
        state.entries.iter().map(snapshot).collect()
    }

    /// All models, for `/v1/models`.
    pub fn described(&self) -> Vec<Value> {
        let state = self.lock();
        let there = state.entries.iter().filter(|entry| !entry.gone);
        there.map(|entry| entry.described(self.created)).collect()
    }

    /// The model called `name`.
    ///
    /// # Errors
    /// Where there is none.
    pub fn described_by_name(&self, name: &str) -> Result<Value, ApiError> {
        let state = self.lock();
        let at = state.find(Some(name))?;
        Ok(state.entries[at].described(self.created))
    }

    /// What is counted, in the text format of Prometheus: where there are several models, each with its label.
    pub fn to_prometheus(&self) -> String {
        let state = self.lock();
        if !state.several {
            return self.metrics.to_prometheus();
        }
        let mut families: Vec<Family> = state.entries.iter().flat_map(ModelEntry::families).collect();
        for mut family in self.metrics.families() {
            // What is counted before it is known which model is meant.
            let of_all = |labels: &str| ["{end=\"refused\"}", "{end=\"invalid\"}"].contains(&labels);
            match family.name.as_str() {
                _ if is_of_server(&family) => families.push(family),
                "requests_total" => {
                    family.values.retain(|(labels, _)| of_all(labels));
                    families.push(family);
                }
                _ => {}
            }
        }
        written(&families)
    }

    /// What the server tells of itself for programs.
    pub fn known(&self) -> KnownModels {
        let state = self.lock();
        let first = state.find(None).unwrap_or(0);
        let there = || state.entries.iter().filter(|entry| !entry.gone);
        let mut names: Vec<String> = there().map(|entry| entry.name().to_string()).collect();
        if let Some(entry) = state.entries.get(first) {
            names.retain(|name| name != entry.name());
            names.insert(0, entry.name().to_string());
        }
        let entry = state.entries.get(first);
        let server = entry.and_then(ModelEntry::loaded).map(|loaded| Arc::clone(&loaded.server));
        let defaults = entry.map(|entry| entry.named.options.current(&entry.named.engine).defaults);
        KnownModels { names, server, defaults: defaults.unwrap_or_else(|| self.current().defaults.clone()) }
    }
}
