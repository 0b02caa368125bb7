//! A loaded model, to be shared.

use std::path::Path;
use std::sync::Arc;

use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{Requested, Settings};
use engine_core::split::Layouts;
use llama::Token;
use llama::error::{Error, Result};

use crate::caught::caught;
use crate::estimate::Estimate;

/// A loaded model with the settings it was loaded by.
///
/// A handle: a clone is the same model, whose memory is given back when the last handle, [`Session`](crate::Session),
/// [`Sampler`](crate::Sampler) and [`Embedder`](crate::Embedder) of it are gone. Any number of threads may use one at the same time.
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

/// What is behind the handle.
pub(super) struct Loaded {
    pub(super) layouts: Layouts,
    pub(super) settings: Settings,
    pub(super) runtime_host: RuntimeHost,
}

impl Model {
    /// Loads the GGUF file at `path`; of one in several parts, the first. What `options` leave out is taken from the
    /// machine as it is now.
    ///
    /// # Errors
    /// [`Error::Usage`] for options that cannot be meant, [`Error::BadModel`] for a file that is damaged,
    /// [`Error::TooLarge`] where the weights do not fit into the memory, [`Error::Worker`] for a worker that cannot be used,
    /// [`Error::Load`] where llama.cpp refuses it.
    pub fn load(path: impl AsRef<Path>, options: &Requested) -> Result<Self> {
        let path = path.as_ref();
        caught("load a model", || {
            let runtime_host = RuntimeHost::read();
            let settings = Settings::resolve(options, &runtime_host)?;
            Self::load_resolved(path, settings, runtime_host)
        })
    }

    /// The same with settings that were resolved before, with a tuning record for one.
    ///
    /// # Errors
    /// Those of [`load`](Self::load).
    #[doc(hidden)]
    pub fn load_resolved(path: &Path, settings: Settings, runtime_host: RuntimeHost) -> Result<Self> {
        caught("load a model", || {
            llama::start(false);
            let layouts = Layouts::open(path, &settings, &runtime_host)?;
            Ok(Model(Arc::new(Loaded { layouts, settings, runtime_host })))
        })
    }

    /// What loading it would take of the memory, from the file's header alone.
    ///
    /// # Errors
    /// Those of reading the file, and [`Error::Usage`] for options that cannot be meant.
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
        self.0.layouts.model()
    }

    /// The file it came from.
    pub fn path(&self) -> &Path {
        self.raw().path()
    }

    /// `qwen2 1.5B Q4_K - Medium`.
    pub fn description(&self) -> String {
        self.raw().description()
    }

    /// Value of a metadata key that is a number or a text.
    pub fn metadata(&self, key: &str) -> Option<String> {
        self.raw().metadata_text(key)
    }

    /// Tokens of the context that it was trained for.
    pub fn trained_context(&self) -> u32 {
        self.raw().n_ctx_train()
    }

    /// Tokens in its vocabulary: they are numbered from 0.
    pub fn vocabulary(&self) -> u32 {
        self.raw().n_vocab()
    }

    /// Whether `token` ends a text.
    pub fn is_end(&self, token: Token) -> bool {
        self.raw().has_token(token) && self.raw().is_end(token)
    }

    /// `text` as tokens, with the special tokens that the model wants around a text. Special tokens that are written in
    /// `text` are what they say.
    ///
    /// # Errors
    /// [`Error::Tokenize`] where the model has no vocabulary, or the text is too long for llama.cpp (2 GiB).
    pub fn tokenize(&self, text: &str) -> Result<Vec<Token>> {
        caught("tokenize", || self.raw().tokenize(text))
    }

    /// The same without the special tokens around it: for text that goes on from another.
    ///
    /// # Errors
    /// Those of [`tokenize`](Self::tokenize).
    pub fn tokenize_more(&self, text: &str) -> Result<Vec<Token>> {
        caught("tokenize", || self.raw().tokenize_with(text, false))
    }

    /// The text of `tokens`; special ones have none. Bytes that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`Error::Usage`] for a number that is no token of the model.
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

    /// Every setting with its value and where it came from, as `anneal info --explain` prints it.
    pub fn settings(&self) -> Vec<engine_core::settings::Explained> {
        self.0.settings.explain()
    }

    /// Refuses numbers that are no tokens: llama.cpp asserts in places.
    pub(super) fn check(&self, tokens: &[Token]) -> Result<()> {
        match tokens.iter().find(|&&token| !self.raw().has_token(token)) {
            None => Ok(()),
            Some(token) => Err(Error::Usage(format!(
                "{token} is no token: the model has the tokens 0 to {}",
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
