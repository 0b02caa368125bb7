//! A prompt cache that was asked for, on its way to be used.

use std::path::Path;

use llama::Model;
use llama::error::{Error, Result};

use super::key::{CacheKey, ModelDigest};
use super::store::Store;
use crate::runtime_host::RuntimeHost;
use crate::settings::Settings;

/// Where it lies, and what the model is: looked at before the model is loaded, which takes longer.
#[derive(Debug)]
pub struct PromptCacheRequest {
    store: Store,
    digest: ModelDigest,
}

impl PromptCacheRequest {
    /// The caches in `store` for the model at `path`.
    ///
    /// # Errors
    /// Where the model cannot be read.
    pub fn new(store: Store, path: &Path) -> Result<Self> {
        Ok(PromptCacheRequest { store, digest: ModelDigest::of(path)? })
    }

    /// The place, and the key of what `model` evaluates in a context of `n_ctx` tokens; `split` is whether prompts have
    /// weights of their own.
    ///
    /// # Errors
    /// For a model whose context keeps something else than K and V of every token, and for one whose file is another by
    /// now.
    pub fn open(
        self,
        model: &Model,
        n_ctx: u32,
        split: bool,
        settings: &Settings,
        runtime_host: &RuntimeHost,
    ) -> Result<(Store, CacheKey)> {
        let failed = |why: String| Err(Error::Cache { path: self.store.path().to_path_buf(), why });
        if !model.has_plain_cache() {
            return failed(format!(
                "{} does not keep K and V of every token (a sliding window, or a recurrent state), and only those can be \
                 kept on the disk",
                model.description()
            ));
        }
        if !self.digest.is_unchanged() {
            return failed(format!("{} changed while it was loaded", model.path().display()));
        }
        let key = CacheKey::new(&self.digest, model, n_ctx, split, settings, runtime_host);
        Ok((self.store, key))
    }
}
