//! Sequence of tokens with its evaluated state.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine_core::generate::has_nan;
use engine_core::session;
use engine_core::settings::CTX_STEP;
use llama::Token;
use llama::error::{Error, Result};

use crate::caught::caught;
use crate::model::Model;
use crate::sampler::Sampler;

/// A sequence of tokens with its KV cache. Text can be added, generated and removed, and only the changed part is
/// evaluated.
///
/// A session has its own context and threads. Any thread may use a session, but never two threads at once. Several
/// sessions of one model may run at the same time and then share the cores.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/common/tiny.rs"));
/// # fn main() -> engine::Result<()> {
/// # let file = tiny();
/// # let path = file.path();
/// use engine::{Model, Options, Sampler};
///
/// let model = Model::load(path, &Options::default())?;
/// let mut session = model.session()?;
/// session.push("Once upon a time")?;
/// let prompt = session.tokens().len();
///
/// let first = session.generate(&mut Sampler::greedy(&model)?, 8).text()?;
/// session.truncate(prompt); // removes the answer
/// let second = session.generate(&mut Sampler::greedy(&model)?, 8).text()?;
/// assert_eq!(first, second);
/// # Ok(())
/// # }
/// ```
pub struct Session {
    inner: session::Session,
    model: Model,
    /// Tokens of the text.
    tokens: Vec<Token>,
    /// Number of evaluated tokens, counted from the first. The other tokens are not evaluated yet.
    valid: usize,
    /// True if the logits after the last evaluated token are available.
    has_logits: bool,
    stop: Arc<AtomicBool>,
}

/// Stops a session from another thread.
#[derive(Clone, Debug)]
pub struct Canceller(Arc<AtomicBool>);

impl Canceller {
    /// Makes the session's running operation end with [`Error::Interrupted`], either in the middle of a prompt or
    /// before the next token. If the session is idle, its next operation ends immediately.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Session {
    pub(super) fn new(model: &Model) -> Result<Self> {
        let loaded = &model.0;
        let mut inner = session::Session::open(&loaded.model, &loaded.settings, &loaded.runtime_host, false)?;
        inner.follow_load(&loaded.settings);
        let stop = Arc::new(AtomicBool::new(false));
        inner.stop_by(&stop);
        Ok(Session { inner, model: model.clone(), tokens: Vec::new(), valid: 0, has_logits: false, stop })
    }

    /// Returns the model of the session.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the tokens of the text so far, including tokens that are not evaluated yet.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Returns the maximum number of tokens in the session.
    pub fn capacity(&self) -> usize {
        self.inner.n_ctx() as usize
    }

    /// Adds `text` to the sequence. If the sequence is empty, also adds the special tokens that the model expects
    /// before and after a text. The text is evaluated when tokens are generated, or by [`evaluate`](Self::evaluate).
    ///
    /// # Errors
    /// Errors of the tokenizer, and [`Error::TextTooLong`] for a text of more bytes than [`capacity`](Self::capacity)
    /// tokens can represent.
    pub fn push(&mut self, text: &str) -> Result<()> {
        self.model.raw().check_length(text.len(), self.inner.n_ctx())?;
        let tokens = match self.tokens.is_empty() {
            true => self.model.tokenize(text)?,
            false => self.model.tokenize_more(text)?,
        };
        self.tokens.extend(tokens);
        Ok(())
    }

    /// Adds `tokens` to the sequence.
    ///
    /// # Errors
    /// [`Error::Usage`] for a number that is not a token of the model. After an error, the sequence is unchanged.
    pub fn push_tokens(&mut self, tokens: &[Token]) -> Result<()> {
        self.model.check(tokens)?;
        self.tokens.extend(tokens);
        Ok(())
    }

    /// Replaces the sequence with `tokens`. The common prefix of both sequences is not evaluated again.
    ///
    /// # Errors
    /// [`Error::Usage`] for a number that is not a token of the model. After an error, the sequence is unchanged.
    pub fn set(&mut self, tokens: Vec<Token>) -> Result<()> {
        self.model.check(&tokens)?;
        let same = self.tokens.iter().zip(&tokens).take_while(|(before, now)| before == now).count();
        self.truncate(same);
        self.tokens = tokens;
        Ok(())
    }

    /// Removes all tokens after the first `tokens` tokens.
    pub fn truncate(&mut self, tokens: usize) {
        self.tokens.truncate(tokens);
        if self.valid > self.tokens.len() {
            self.valid = self.tokens.len();
            self.has_logits = false;
        }
    }

    /// Returns a handle that stops the session from another thread.
    pub fn canceller(&self) -> Canceller {
        Canceller(Arc::clone(&self.stop))
    }

    /// Discards a cancellation that arrived after the operation had ended.
    pub(super) fn forget_cancel(&self) {
        self.stop.store(false, Ordering::Relaxed);
    }

    /// Evaluates all tokens that are not evaluated yet.
    ///
    /// # Errors
    /// - [`Error::EmptyPrompt`] if there are no tokens
    /// - [`Error::PromptTooLong`] if the tokens do not fit
    /// - [`Error::Interrupted`] after [`Canceller::cancel`]; the next call resumes the evaluation
    /// - [`Error::Decode`] if llama.cpp fails
    pub fn evaluate(&mut self) -> Result<()> {
        let evaluated = caught("evaluate", || self.catch_up());
        match &evaluated {
            Ok(()) => {}
            Err(Error::Interrupted) => {
                self.stop.store(false, Ordering::Relaxed);
                self.has_logits = false;
            }
            // After this error, the content of the context is unknown.
            Err(Error::Internal { .. } | Error::Decode { .. } | Error::State { .. }) => {
                self.inner.clear();
                (self.valid, self.has_logits) = (0, false);
            }
            Err(_) => {}
        }
        evaluated
    }

    /// Returns the logits after the text, one for each token of the vocabulary: natural logarithms of probabilities,
    /// up to a constant. Evaluates all tokens that are not evaluated yet.
    ///
    /// # Errors
    /// Errors of [`evaluate`](Self::evaluate).
    pub fn logits(&mut self) -> Result<&[f32]> {
        self.evaluate()?;
        self.inner.context().logits()
    }

    fn catch_up(&mut self) -> Result<()> {
        if self.tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if self.tokens.len() > self.capacity() {
            return Err(Error::PromptTooLong {
                prompt: self.tokens.len(),
                context: self.inner.n_ctx(),
                needed: self.tokens.len().next_multiple_of(CTX_STEP as usize) + CTX_STEP as usize,
                trained: self.model.trained_context(),
            });
        }
        if self.has_logits && self.valid == self.tokens.len() {
            return Ok(());
        }
        // At least the last token is evaluated, because its logits are needed.
        let wanted = self.valid.min(self.tokens.len() - 1);
        self.valid = self.inner.context().keep(wanted);
        let rest = &self.tokens[self.valid..];
        let is_prompt = rest.len() > 1;
        let context = self.inner.context();
        if let Err(error) = context.decode(rest) {
            if matches!(error, Error::Interrupted) {
                // llama.cpp removes the unfinished batch from a cache (src/llama-context.cpp, `decode`; ggml 0.26.0),
                // but cannot undo the batch's effect on a recurrent state.
                let plain = context.model().has_plain_cache();
                self.valid = if plain { context.held().min(self.tokens.len()) } else { context.keep(0) };
            }
            return Err(error);
        }
        context.synchronize();
        // A sampler would choose a token even if the logits are NaN. Only the prompt is checked, because most faults
        // already appear in its logits.
        if is_prompt && has_nan(context.logits()?) {
            return Err(Error::NotANumber);
        }
        (self.valid, self.has_logits) = (self.tokens.len(), true);
        Ok(())
    }

    /// Chooses the next token. Adds the token to the text unless it ends the text.
    pub(super) fn next(&mut self, sampler: &mut Sampler, ignore_end: bool) -> Result<(Token, bool)> {
        if self.stop.swap(false, Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        self.evaluate()?;
        let (inner, tokens) = (&mut self.inner, &self.tokens);
        let token = caught("sample", || {
            // If the sampler has accepted more tokens than the text contains, these tokens belong to another text.
            sampler.chain.accept_prompt(tokens.get(sampler.told..).unwrap_or_default())?;
            sampler.told = tokens.len();
            sampler.chain.sample(inner.context(), -1)
        })?;
        let is_end = self.model.raw().is_end(token) && (!ignore_end || sampler.chain.is_constrained());
        if !is_end {
            self.tokens.push(token);
        }
        sampler.told = self.tokens.len();
        Ok((token, is_end))
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("model", &self.model)
            .field("tokens", &self.tokens.len())
            .finish_non_exhaustive()
    }
}

impl Model {
    /// Creates a session with its own context and threads.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the context does not fit into memory, [`Error::Context`] if llama.cpp refuses it.
    pub fn session(&self) -> Result<Session> {
        caught("create a session", || Session::new(self))
    }
}
