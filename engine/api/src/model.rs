//! Loaded model that threads can share.

use std::path::Path;
use std::sync::Arc;

use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{Requested, Settings};
use llama::Token;
use llama::error::{Error, Result};

use crate::caught::caught;
use crate::estimate::Estimate;

/// A loaded model with its settings.
///
/// A `Model` is a handle: all clones refer to the same loaded model. The memory is freed when all handles of the model
/// and all of its [`Session`](crate::Session)s, [`Sampler`](crate::Sampler)s and [`Embedder`](crate::Embedder)s are
/// dropped. Any number of threads may use a model at the same time.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/common/tiny.rs"));
/// # fn main() -> engine::Result<()> {
/// # let file = tiny();
/// # let path = file.path();
/// use engine::{Model, Options};
///
/// let model = Model::load(path, &Options { n_ctx: Some(512), ..Options::default() })?;
/// let tokens = model.tokenize("Hello, world!")?;
/// assert_eq!(model.detokenize(&tokens)?, "Hello, world!");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Model(pub(super) Arc<Loaded>);

/// Model and settings behind a handle.
pub(super) struct Loaded {
    pub(super) model: Arc<llama::Model>,
    pub(super) settings: Settings,
    pub(super) runtime_host: RuntimeHost,
}

impl Model {
    /// Loads the GGUF file at `path`; for a model in several parts, `path` is the first part. The defaults of options
    /// that are not set depend on the current state of the machine.
    ///
    /// # Errors
    /// - [`Error::Usage`] for invalid options
    /// - [`Error::BadModel`] for a damaged file
    /// - [`Error::TooLarge`] if the weights do not fit into memory
    /// - [`Error::Worker`] for a worker that cannot be used
    /// - [`Error::Load`] if llama.cpp refuses the model
    pub fn load(path: impl AsRef<Path>, options: &Requested) -> Result<Self> {
        let path = path.as_ref();
        caught("load a model", || {
            let runtime_host = RuntimeHost::read();
            let settings = Settings::resolve(options, &runtime_host)?;
            Self::load_resolved(path, settings, runtime_host)
        })
    }

    /// Loads the model at `path` with settings that have already been resolved, for example with a tuning record.
    ///
    /// # Errors
    /// Errors of [`load`](Self::load).
    #[doc(hidden)]
    pub fn load_resolved(path: &Path, settings: Settings, runtime_host: RuntimeHost) -> Result<Self> {
        caught("load a model", || {
            llama::start(false);
            let model = engine_core::model::open(path, &settings, &runtime_host)?;
            Ok(Model(Arc::new(Loaded { model, settings, runtime_host })))
        })
    }

    /// Estimates the memory that the model at `path` needs, from the file's header alone.
    ///
    /// # Errors
    /// If the file cannot be read; [`Error::Usage`] for invalid options.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/common/tiny.rs"));
    /// # fn main() -> engine::Result<()> {
    /// # let file = tiny();
    /// # let path = file.path();
    /// use engine::{Model, Options};
    ///
    /// let estimate = Model::estimate(path, &Options::default())?;
    /// assert!(estimate.fits(), "it takes {} and there are {:?}", estimate.needed(), estimate.available);
    /// # Ok(())
    /// # }
    /// ```
    pub fn estimate(path: impl AsRef<Path>, options: &Requested) -> Result<Estimate> {
        let path = path.as_ref();
        caught("estimate a model", || {
            let runtime_host = RuntimeHost::read();
            let settings = Settings::resolve(options, &runtime_host)?;
            Estimate::new(path, &settings, &runtime_host)
        })
    }

    pub(super) fn raw(&self) -> &Arc<llama::Model> {
        &self.0.model
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.raw().path()
    }

    /// Returns llama.cpp's description, such as `qwen2 1.5B Q4_K - Medium`.
    pub fn description(&self) -> String {
        self.raw().description()
    }

    /// Returns the value of the metadata key `key`; `None` if the key is missing, or if its value is neither a number
    /// nor a string.
    pub fn metadata(&self, key: &str) -> Option<String> {
        self.raw().metadata_text(key)
    }

    /// Returns the context size, in tokens, that the model was trained for.
    pub fn trained_context(&self) -> u32 {
        self.raw().n_ctx_train()
    }

    /// Returns the number of tokens in the vocabulary. Tokens are numbered from 0.
    pub fn vocabulary(&self) -> u32 {
        self.raw().n_vocab()
    }

    /// True if `token` ends a text.
    pub fn is_end(&self, token: Token) -> bool {
        self.raw().has_token(token) && self.raw().is_end(token)
    }

    /// Tokenises `text`, with the special tokens that the model expects before and after a text. If `text` contains
    /// the name of a special token, the name becomes that token.
    ///
    /// # Errors
    /// [`Error::Tokenize`] if the model has no vocabulary, or if the text is too long for llama.cpp (2 GiB).
    pub fn tokenize(&self, text: &str) -> Result<Vec<Token>> {
        caught("tokenize", || self.raw().tokenize(text))
    }

    /// Tokenises `text` without the special tokens around it, for text that continues another text.
    ///
    /// # Errors
    /// Errors of [`tokenize`](Self::tokenize).
    pub fn tokenize_more(&self, text: &str) -> Result<Vec<Token>> {
        caught("tokenize", || self.raw().tokenize_with(text, false))
    }

    /// Returns the text of `tokens`. Special tokens have no text. Invalid UTF-8 becomes U+FFFD.
    ///
    /// # Errors
    /// [`Error::Usage`] for an invalid token.
    pub fn detokenize(&self, tokens: &[Token]) -> Result<String> {
        caught("detokenize", || {
            self.check(tokens)?;
            let mut bytes = Vec::new();
            if !self.raw().has_vocabulary() {
                return Err(Error::Tokenize("the model has no vocabulary".to_string()));
            }
            tokens.iter().try_for_each(|&token| self.raw().piece(token, &mut bytes))?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        })
    }

    /// Returns every setting with its value and its source, as `anneal info --explain` prints them.
    pub fn settings(&self) -> Vec<engine_core::settings::Explained> {
        self.0.settings.explain()
    }

    /// Refuses invalid tokens, because some functions of llama.cpp assert that tokens are valid.
    ///
    /// # Errors
    /// [`Error::Usage`] with the first invalid token.
    pub(super) fn check(&self, tokens: &[Token]) -> Result<()> {
        match tokens.iter().find(|&&token| !self.raw().has_token(token)) {
            None => Ok(()),
            Some(token) => Err(Error::Usage(format!(
                "invalid token {token}: the model's tokens are 0 to {}",
                self.vocabulary().saturating_sub(1)
            ))),
        }
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Model").field(&self.path()).finish()
    }
}
