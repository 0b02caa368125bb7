//! Estimate of a model's memory, made before the model is loaded.

use std::path::Path;

use build_info::Bytes;
use engine_core::model;
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{Settings, Source};
use gguf::{GgufFile, Scalar, Value};
use llama::error::Result;

/// Memory that a model and one context need, estimated from the file's header. The buffers for llama.cpp's graphs are
/// not included; they are small compared with the weights and the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Size of the weights, including adapters.
    pub weights: Bytes,
    /// Size of the context's KV cache. `None` if the model has a different kind of state, or if its layers need
    /// different amounts.
    pub cache: Option<Bytes>,
    /// Assumed context size, in tokens.
    pub n_ctx: u32,
    /// Context size, in tokens, that the model was trained for; 0 if the file does not state it.
    pub trained: u32,
    /// Memory that this process may use; `None` if the machine does not report it.
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

    /// Returns the size of the weights and the cache.
    pub fn needed(&self) -> Bytes {
        Bytes(self.weights.0.saturating_add(self.cache.unwrap_or_default().0))
    }

    /// True if the model fits into memory. An unknown size counts as 0. Also true if the available memory is unknown.
    pub fn fits(&self) -> bool {
        self.available.is_none_or(|available| self.needed() <= available)
    }

    /// Returns the largest context size, in tokens, that fits into memory together with the weights; 0 if not even the
    /// weights fit. `None` if the size is unknown.
    pub fn largest_context(&self) -> Option<u32> {
        let left = self.available?.0.saturating_sub(self.weights.0);
        let tokens = left.checked_div(self.per_token?.0)?;
        Some(u32::try_from(tokens).unwrap_or(u32::MAX))
    }
}
