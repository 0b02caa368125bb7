//! Properties of this server for its OpenAPI description.

use engine_core::settings::MAX_CTX;
use serde_json::{Value, json};

use crate::models::{KnownModels, ModelRegistry};
use crate::request::Defaults;

/// Properties that differ from server to server.
pub(super) struct ServerFacts {
    /// Names of the models. The other fields describe the first model.
    pub(super) names: Vec<String>,
    pub(super) last_token: u32,
    pub(super) n_ctx: u32,
    /// True if a prompt may be empty, because the tokenizer adds a BOS token to each text.
    pub(super) begins: bool,
    /// True if the model can fill in the middle of a text.
    pub(super) fills_in: bool,
    /// Number of dimensions of an embedding. `None` if the model is not loaded.
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
            // If the model is not loaded, its last token is unknown.
            last_token: model.map_or(i32::MAX as u32, |model| model.n_vocab().saturating_sub(1)),
            n_ctx: server.as_ref().map_or(MAX_CTX, |server| server.n_ctx),
            begins: model.is_none_or(|model| model.begin_token().is_some()),
            fills_in: model.is_none_or(|model| model.infill_tokens().is_some()),
            width: server.as_ref().map(|server| server.embedder.width),
            has_keys: !registry.current().keys.is_empty(),
            defaults,
        }
    }

    /// Returns the allowed values of the field `model`.
    pub(super) fn models(&self) -> Value {
        self.names.iter().map(|name| Value::from(name.as_str())).chain([Value::Null]).collect()
    }

    /// Returns the schema of the field `dimensions`.
    pub(super) fn dimensions(&self) -> Value {
        let about = "Number of dimensions of the model's embeddings.";
        match self.width {
            Some(width) => json!({ "enum": [width, null], "description": about }),
            None => json!({ "type": ["integer", "null"], "minimum": 1, "description": about }),
        }
    }

    /// Returns the allowed values of the field `workload`.
    pub(super) fn workloads(&self) -> Value {
        self.defaults.workloads.names().map(Value::from).chain([Value::Null]).collect()
    }
}
