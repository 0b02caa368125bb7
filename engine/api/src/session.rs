//! A sequence of tokens with what was evaluated of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine_core::generate::has_nan;
use engine_core::sequence::Sequence;
use engine_core::settings::CTX_STEP;
use engine_core::split;
use llama::Token;
use llama::error::{Error, Result};

use crate::caught::caught;
use crate::model::Model;
use crate::sampler::Sampler;

/// A sequence of tokens with its K and V: text is added, generated and taken back, and only what changed is evaluated.
///
/// It has a context and threads of its own. One thread at a time, whichever it is; several sessions of one model may run
/// at the same time, and then share the cores.
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
/// session.truncate(prompt); // takes the answer back
/// let second = session.generate(&mut Sampler::greedy(&model)?, 8).text()?;
/// assert_eq!(first, second);
/// # Ok(())
/// # }
/// ```
pub struct Session {
    inner: split::Session,
    model: Model,
    /// The text.
    tokens: Vec<Token>,
    /// So many of its first tokens are evaluated, and nothing else is.
    valid: usize,
    /// Whether the logits after the last of them are there.
    has_logits: bool,
    stop: Arc<AtomicBool>,
}

/// Stops a session from another thread.
#[derive(Clone, Debug)]
pub struct Canceller(Arc<AtomicBool>);

impl Canceller {
    /// Ends what the session does now, in the middle of a prompt or before the next token, with
    /// [`Error::Interrupted`]; where it does nothing, what it does next.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Session {
    pub(super) fn new(model: &Model) -> Result<Self> {
        let loaded = &model.0;
        let mut inner = loaded.layouts.session(&loaded.settings, &loaded.runtime_host, false)?;
        let stop = Arc::new(AtomicBool::new(false));
        inner.stop_by(&stop);
        Ok(Session { inner, model: model.clone(), tokens: Vec::new(), valid: 0, has_logits: false, stop })
    }

    /// Its model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The text so far, tokens that are not evaluated yet included.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Tokens that it can hold.
    pub fn capacity(&self) -> usize {
        self.inner.n_ctx() as usize
    }

    /// Adds `text`: at the beginning with the special tokens that the model wants around a text, later without. It is
    /// evaluated when tokens are generated, or by [`evaluate`](Self::evaluate).
    ///
    /// # Errors
    /// Those of the tokenizer, and [`Error::TextTooLong`] for a text of more bytes than its
    /// [`capacity`](Self::capacity) can hold tokens of.
    pub fn push(&mut self, text: &str) -> Result<()> {
        self.model.raw().check_length(text.len(), self.inner.n_ctx())?;
        let tokens = match self.tokens.is_empty() {
            true => self.model.tokenize(text)?,
            false => self.model.tokenize_more(text)?,
        };
        self.tokens.extend(tokens);
        Ok(())
    }

    /// Adds `tokens`.
    ///
    /// # Errors
    /// [`Error::Usage`] for a number that is no token of the model; nothing is added then.
    pub fn push_tokens(&mut self, tokens: &[Token]) -> Result<()> {
        self.model.check(tokens)?;
        self.tokens.extend(tokens);
        Ok(())
    }

    /// Makes `tokens` the text. What it begins with as the text before did is not evaluated again.
    ///
    /// # Errors
    /// [`Error::Usage`] for a number that is no token of the model; the text is then as it was.
    pub fn set(&mut self, tokens: Vec<Token>) -> Result<()> {
        self.model.check(&tokens)?;
        let same = self.tokens.iter().zip(&tokens).take_while(|(before, now)| before == now).count();
        self.truncate(same);
        self.tokens = tokens;
        Ok(())
    }

    /// Keeps the first `tokens` tokens of the text.
    pub fn truncate(&mut self, tokens: usize) {
        self.tokens.truncate(tokens);
        if self.valid > self.tokens.len() {
            self.valid = self.tokens.len();
            self.has_logits = false;
        }
    }

    /// What stops it from another thread.
    pub fn canceller(&self) -> Canceller {
        Canceller(Arc::clone(&self.stop))
    }

    /// Takes back a cancel that came after its end.
    pub(super) fn forget_cancel(&self) {
        self.stop.store(false, Ordering::Relaxed);
    }

    /// Evaluates what is not.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`] where there is no text, [`Error::PromptTooLong`] where it does not fit,
    /// [`Error::Interrupted`] after a [`Canceller::cancel`]; the next call goes on from there. [`Error::Decode`] where
    /// llama.cpp fails.
    pub fn evaluate(&mut self) -> Result<()> {
        let evaluated = caught("evaluate", || self.catch_up());
        match &evaluated {
            Ok(()) => {}
            Err(Error::Interrupted) => {
                self.stop.store(false, Ordering::Relaxed);
                self.has_logits = false;
            }
            // What is in there is unknown.
            Err(Error::Internal { .. } | Error::Decode { .. } | Error::State { .. }) => {
                self.inner.clear();
                (self.valid, self.has_logits) = (0, false);
            }
            Err(_) => {}
        }
        evaluated
    }

    /// The logits after the text, one for each token of the vocabulary: natural logarithms of probabilities, but for a
    /// constant. Evaluates what is not.
    ///
    /// # Errors
    /// Those of [`evaluate`](Self::evaluate).
    pub fn logits(&mut self) -> Result<&[f32]> {
        self.evaluate()?;
        self.inner.current().logits()
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
        // One token at least, for its logits.
        let wanted = self.valid.min(self.tokens.len() - 1);
        self.valid = self.inner.current().keep(wanted);
        let rest = &self.tokens[self.valid..];
        let is_prompt = rest.len() > 1;
        let context = self.inner.context_for(rest.len())?;
        if let Err(error) = context.decode(rest) {
            if matches!(error, Error::Interrupted) {
                // llama.cpp takes back the batch that it did not end; a recurrent state cannot be.
                let plain = context.model().has_plain_cache();
                self.valid = if plain { context.held().min(self.tokens.len()) } else { context.keep(0) };
            }
            return Err(error);
        }
        context.synchronize();
        // A sampler would choose something all the same. Once: what goes wrong later goes wrong in the first, mostly.
        if is_prompt && has_nan(context.logits()?) {
            return Err(Error::NotANumber);
        }
        (self.valid, self.has_logits) = (self.tokens.len(), true);
        Ok(())
    }

    /// Chooses the next token. It becomes a part of the text unless it ends it.
    pub(super) fn next(&mut self, sampler: &mut Sampler, ignore_end: bool) -> Result<(Token, bool)> {
        if self.stop.swap(false, Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        self.evaluate()?;
        let (inner, tokens) = (&mut self.inner, &self.tokens);
        let token = caught("sample", || {
            // Of another text where it was told of more.
            sampler.chain.accept_prompt(tokens.get(sampler.told..).unwrap_or_default())?;
            sampler.told = tokens.len();
            sampler.chain.sample(inner.current(), -1)
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
    /// A sequence of its own, with its own context of K and V and its own threads.
    ///
    /// # Errors
    /// [`Error::TooLarge`] where the context does not fit into the memory, [`Error::Context`] where llama.cpp refuses it.
    pub fn session(&self) -> Result<Session> {
        caught("make a session", || Session::new(self))
    }
}
