//! Facts about this server that its OpenAPI description states.

use engine_core::settings::MAX_CTX;
use serde_json::{Value, json};

use crate::models::{KnownModels, ModelRegistry};
use crate::request::Defaults;

/// What differs from server to server.
pub(super) struct ServerFacts {
    /// The models' names, the one first whose tokens and limits these are.
    pub(super) names: Vec<String>,
    pub(super) last_token: u32,
    pub(super) n_ctx: u32,
    /// Whether a prompt may be empty: the model begins a text with a token of its own.
    pub(super) begins: bool,
    /// Numbers of an embedding, where that is known.
    pub(super) width: Option<usize>,
    pub(super) has_keys: bool,
    pub(super) defaults: Defaults,
}

impl ServerFacts {
    pub(super) fn of(registry: &ModelRegistry) -> Self {
        let KnownModels { names, server, defaults } = registry.known();
        let model = server.as_ref().map(|server| &server.model);
        ServerFacts {
            names,
            // Of a model that is not loaded nobody knows.
            last_token: model.map_or(i32::MAX as u32, |model| model.n_vocab().saturating_sub(1)),
            n_ctx: server.as_ref().map_or(MAX_CTX, |server| server.n_ctx),
            begins: model.is_none_or(|model| model.begin_token().is_some()),
            width: server.as_ref().map(|server| server.embedder.width),
            has_keys: !registry.current().keys.is_empty(),
            defaults,
        }
    }

    /// What the field `model` may be.
    pub(super) fn models(&self) -> Value {
        self.names.iter().map(|name| Value::from(name.as_str())).chain([Value::Null]).collect()
    }

    /// What the field `dimensions` may be.
    pub(super) fn dimensions(&self) -> Value {
        let about = "As many as the model has.";
        match self.width {
            Some(width) => json!({ "enum": [width, null], "description": about }),
            None => json!({ "type": ["integer", "null"], "minimum": 1, "description": about }),
        }
    }

    /// What the field `workload` may be.
    pub(super) fn workloads(&self) -> Value {
        self.defaults.workloads.names().map(Value::from).chain([Value::Null]).collect()
    }
}
