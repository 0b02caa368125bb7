//! Embeddings of texts.

use std::sync::Arc;

use engine_core::core_lock::{Cores, Turns};
use engine_core::embed::{Evaluator, Pooling, Reduction, longest};
use engine_core::settings::CTX_STEP;
use engine_core::threads;
use llama::error::{Error, Result};
use llama::{Threads, Token};

use crate::caught::caught;
use crate::model::Model;

/// Converts texts to embeddings, with its own context and threads. Any thread may use an embedder, but never two
/// threads at once.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/common/tiny.rs"));
/// # fn main() -> engine::Result<()> {
/// # let file = tiny();
/// # let path = file.path();
/// use engine::{Model, Options};
///
/// let model = Model::load(path, &Options::default())?;
/// let mut embedder = model.embedder()?;
/// let found = embedder.embed(&["a cat", "a dog", "a cat"])?;
/// let cosine = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
/// assert!(cosine(&found[0], &found[2]) > 0.999);
/// assert!(cosine(&found[0], &found[1]) < 0.999);
/// # Ok(())
/// # }
/// ```
pub struct Embedder {
    model: Model,
    pooling: Pooling,
    threads: Threads,
    longest: usize,
    // Evaluator with room for the longest text so far; `None` before the first text.
    evaluator: Option<Evaluator>,
}

impl Embedder {
    pub(super) fn new(model: &Model) -> Result<Self> {
        let loaded = &model.0;
        let pooling = Pooling::of(model.raw()).map_err(Error::Usage)?;
        let trained = model.trained_context();
        let n_ctx = match loaded.settings.n_ctx.value {
            0 => trained,
            n_ctx => n_ctx,
        };
        Ok(Embedder {
            model: model.clone(),
            pooling,
            threads: threads::pools(
                &loaded.settings.for_model(model.raw()),
                loaded.runtime_host.host.as_ref(),
            )?,
            longest: longest(model.raw(), n_ctx),
            evaluator: None,
        })
    }

    /// Returns the number of values in an embedding.
    pub fn width(&self) -> usize {
        self.model.raw().embedding_width()
    }

    /// Returns the maximum number of tokens in a text.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Returns the embeddings of `texts`. Each embedding has length 1, so the dot product of two embeddings is their
    /// cosine similarity.
    ///
    /// # Errors
    /// - [`Error::PromptTooLong`] for a text of more than [`longest`](Self::longest) tokens
    /// - [`Error::EmptyPrompt`] for a text without tokens
    /// - [`Error::TextTooLong`] for a text of more bytes than [`longest`](Self::longest) tokens can represent
    /// - errors of the evaluation
    pub fn embed<T: AsRef<str>>(&mut self, texts: &[T]) -> Result<Vec<Vec<f32>>> {
        let longest = u32::try_from(self.longest).unwrap_or(u32::MAX);
        let tokens_of = |text: &T| {
            self.model.raw().check_length(text.as_ref().len(), longest)?;
            self.model.tokenize(text.as_ref())
        };
        let texts: Result<Vec<Vec<Token>>> = texts.iter().map(tokens_of).collect();
        self.embed_tokens(&texts?)
    }

    /// Returns the embeddings of texts that are already tokenised.
    ///
    /// # Errors
    /// Errors of [`embed`](Self::embed), and [`Error::Usage`] for an invalid token.
    pub fn embed_tokens(&mut self, texts: &[Vec<Token>]) -> Result<Vec<Vec<f32>>> {
        let found = caught("embed", || self.evaluate(texts));
        if found.is_err() {
            // After an error, the content of the evaluator is unknown.
            self.evaluator = None;
        }
        found
    }

    fn evaluate(&mut self, texts: &[Vec<Token>]) -> Result<Vec<Vec<f32>>> {
        for text in texts {
            self.model.check(text)?;
            if text.is_empty() {
                return Err(Error::EmptyPrompt);
            }
            if text.len() > self.longest {
                return Err(Error::PromptTooLong {
                    prompt: text.len(),
                    context: u32::try_from(self.longest).unwrap_or(u32::MAX),
                    needed: text.len().next_multiple_of(CTX_STEP as usize),
                    trained: self.model.trained_context(),
                });
            }
        }
        let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
        let evaluator = match self.evaluator.take().filter(|evaluator| evaluator.holds(longest)) {
            Some(evaluator) => evaluator,
            None => {
                let settings = &self.model.0.settings;
                Evaluator::new(
                    self.model.raw(),
                    Reduction::Pool(self.pooling),
                    longest,
                    settings,
                    &self.threads,
                )?
            }
        };
        // This lock is not shared, because no other context uses these threads.
        let alone = Arc::new(Turns::default()).seat(Cores::All);
        self.evaluator.insert(evaluator).embed(texts, &alone, || Ok(u32::MAX), || false)
    }
}

impl std::fmt::Debug for Embedder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedder").field("model", &self.model).finish_non_exhaustive()
    }
}

impl Model {
    /// Creates an embedder for this model.
    ///
    /// # Errors
    /// Errors of [`session`](Self::session), and [`Error::Usage`] for a model that returns no embeddings (a
    /// reranker).
    pub fn embedder(&self) -> Result<Embedder> {
        caught("create an embedder", || Embedder::new(self))
    }
}
