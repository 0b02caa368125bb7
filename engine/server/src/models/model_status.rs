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
            object["context"] = server.longest_text().into();
            object["slots"] = server.slots.into();
        }
        if let LoadState::Failed { why, .. } = &self.load_state {
            object["error"] = why.as_str().into();
        }
        object
    }

    /// Returns the metrics of this model.
    fn families(&self) -> Vec<Family> {
        let mut families = self.metrics.families();
        families.retain(|family| !is_of_server(family));
        let mut add = |name: &str, kind: &'static str, help: &str, value: u64| {
            let values = vec![(String::new(), value.to_string())];
            families.push(Family { name: name.to_string(), kind, help: help.to_string(), values });
        };
        add("model_loaded", "gauge", "1 if the model is loaded, else 0.", u64::from(self.loaded().is_some()));
        add(
            "model_memory_bytes",
            "gauge",
            "Memory of the model, as estimated before it was loaded.",
            self.memory.0,
        );
        add("model_requests", "gauge", "Requests that use the model.", self.users as u64);
        add(
            "model_requests_waiting",
            "gauge",
            "Requests that wait for the model to load.",
            self.waiting as u64,
        );
        add("model_loads_total", "counter", "Number of times that the model was loaded.", self.loads);
        add("model_load_failures_total", "counter", "Failed attempts to load the model.", self.failures);
        families.iter_mut().for_each(|family| family.label(self.name()));
        families
    }
}

/// True for metrics that exist once per server, not once per model.
fn is_of_server(family: &Family) -> bool {
    family.name.starts_with("connections") || family.name == "waiting_request_bytes"
}

/// Snapshot of a model for `GET /status`.
pub struct ModelSnapshot {
    /// Name of the model.
    pub name: String,
    /// Loading state.
    pub state: &'static str,
    /// Description of the model. Empty while the model is not loaded.
    pub description: String,
    /// Number of tokens of the model's context. 0 while the model is not loaded.
    pub n_ctx: u32,
    /// Metrics of the model.
    pub metrics: Arc<Metrics>,
    /// Maximum number of requests that may wait for a slot.
    pub bound: u64,
    /// Number of requests that wait until the model is loaded.
    pub waiting: u64,
}

/// Properties of the models for the OpenAPI description.
pub struct KnownModels {
    /// Names of the models. The default model comes first.
    pub names: Vec<String>,
    /// Default model, if it is loaded.
    pub server: Option<Arc<Server>>,
    /// Defaults for requests to the default model.
    pub defaults: Defaults,
}

impl ModelRegistry {
    /// Returns the time at which the registry was created, in seconds since 1970.
    pub fn created(&self) -> u64 {
        self.created
    }

    /// True if a part of the server other than a scheduler has panicked.
    pub fn has_panicked(&self) -> bool {
        let has = |metrics: &Metrics| metrics.panics.get() > 0;
        has(&self.metrics) || self.lock().entries.iter().any(|entry| has(&entry.metrics))
    }

    /// Returns snapshots of all models.
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

    /// Returns descriptions of all models, for `/v1/models`.
    pub fn described(&self) -> Vec<Value> {
        let state = self.lock();
        let there = state.entries.iter().filter(|entry| !entry.gone);
        there.map(|entry| entry.described(self.created)).collect()
    }

    /// Returns the description of the model `name`.
    ///
    /// # Errors
    /// If the model does not exist.
    pub fn described_by_name(&self, name: &str) -> Result<Value, ApiError> {
        let state = self.lock();
        let at = state.find(Some(name))?;
        Ok(state.entries[at].described(self.created))
    }

    /// Returns the metrics in the Prometheus text format. If the server has several models, each value has the label
    /// `model`.
    pub fn to_prometheus(&self) -> String {
        let state = self.lock();
        if !state.several {
            return self.metrics.to_prometheus();
        }
        let mut families: Vec<Family> = state.entries.iter().flat_map(ModelEntry::families).collect();
        for mut family in self.metrics.families() {
            // Refused and invalid requests are counted before their model is known.
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

    /// Returns the properties of the models for the OpenAPI description.
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
