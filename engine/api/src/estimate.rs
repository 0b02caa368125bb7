//! What a model takes of the memory, before it is loaded.

use std::path::Path;

use build_info::Bytes;
use engine_core::model;
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{Settings, Source};
use gguf::{GgufFile, Scalar, Value};
use llama::error::Result;

/// What a model and one context of it take of the memory, by the file's header. Without what llama.cpp needs besides for
/// its graphs, which is small beside either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// The weights, adapters included.
    pub weights: Bytes,
    /// K and V of the context. `None` for models that keep something else, or not as much in every layer.
    pub cache: Option<Bytes>,
    /// Tokens of the context that it is of.
    pub n_ctx: u32,
    /// Tokens of the context that the model was trained for; 0 where the file does not say.
    pub trained: u32,
    /// What this process can have; `None` where the machine does not tell.
    pub available: Option<Bytes>,
    per_token: Option<Bytes>,
}

impl Estimate {
    pub(super) fn new(path: &Path, settings: &Settings, runtime_host: &RuntimeHost) -> Result<Self> {
        let file = GgufFile::open(path)?;
        let adapters = model::adapters_size(&file, settings)?;
        let weights = Bytes(file.weights()?.0.saturating_add(adapters.0));
        let architecture = match file.get("general.architecture") {
            Some(Value::Scalar(Scalar::String(name))) => name.clone(),
            _ => String::new(),
        };
        let trained = file.u32(&format!("{architecture}.context_length")).unwrap_or(0);
        let n_ctx = match (settings.n_ctx.value, settings.n_ctx.source) {
            (0, _) => trained,
            (n_ctx, Source::Default) if trained > 0 => n_ctx.min(trained),
            (n_ctx, _) => n_ctx,
        };
        let (key, value) = (settings.type_k.value.bytes_per_32(), settings.type_v.value.bytes_per_32());
        let of = |tokens: u32| Some(file.cache_shape()?.bytes(u64::from(tokens), key, value));
        Ok(Estimate {
            weights,
            cache: of(n_ctx),
            n_ctx,
            trained,
            available: runtime_host.memory(),
            per_token: of(1),
        })
    }

    /// Weights and cache.
    pub fn needed(&self) -> Bytes {
        Bytes(self.weights.0.saturating_add(self.cache.unwrap_or_default().0))
    }

    /// Whether it fits, as far as is known.
    pub fn fits(&self) -> bool {
        self.available.is_none_or(|available| self.needed() <= available)
    }

    /// Tokens of the largest context that fits beside the weights; 0 where not even these do, `None` where it cannot be
    /// said.
    pub fn largest_context(&self) -> Option<u32> {
        let left = self.available?.0.saturating_sub(self.weights.0);
        let tokens = left.checked_div(self.per_token?.0)?;
        Some(u32::try_from(tokens).unwrap_or(u32::MAX))
    }
}
