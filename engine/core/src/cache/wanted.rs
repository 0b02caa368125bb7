//! Request for a prompt cache, made before the model is loaded.

use std::path::Path;

use llama::error::{Error, Result};
use llama::{Model, PrefixReuse};

use super::key::{CacheKey, ModelDigest};
use super::store::Store;
use crate::runtime_host::RuntimeHost;
use crate::settings::Settings;

/// Store and model digest of a requested prompt cache. The digest is computed before the model is loaded, because the
/// files may change while the model is being loaded.
#[derive(Debug)]
pub struct PromptCacheRequest {
    store: Store,
    digest: ModelDigest,
}

impl PromptCacheRequest {
    /// Requests the cache in `store` for the model at `path`.
    ///
    /// # Errors
    /// If the model cannot be read.
    pub fn new(store: Store, path: &Path) -> Result<Self> {
        Ok(PromptCacheRequest { store, digest: ModelDigest::of(path)? })
    }

    /// Returns the store, and the key for prompts that `model` evaluates in a context of `n_ctx` tokens.
    ///
    /// # Errors
    /// If the model's memory can never be truncated, or if the model's files have changed.
    pub fn open(
        self,
        model: &Model,
        n_ctx: u32,
        settings: &Settings,
        runtime_host: &RuntimeHost,
    ) -> Result<(Store, CacheKey)> {
        let failed = |why: String| Err(Error::Cache { path: self.store.path().to_path_buf(), why });
        if model.prefix_reuse() == PrefixReuse::Never {
            return failed(format!(
                "the memory of {} cannot be truncated, so its prompts cannot be cached on disk",
                model.description()
            ));
        }
        if !self.digest.is_unchanged() {
            return failed(format!("{} changed while it was being loaded", model.path().display()));
        }
        let key = CacheKey::new(&self.digest, model, n_ctx, settings, runtime_host);
        Ok((self.store, key))
    }
}
