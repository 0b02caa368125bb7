//! Chain of samplers for one text, with an optional grammar.
//!
//! The samplers are llama.cpp's, in the order of its common sampler: logit bias, penalties, DRY, top-n-sigma, top-k,
//! typical, top-p, min-p, XTC, temperature, and the random draw. Tokens that a grammar forbids are removed before
//! these samplers run.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use llama::error::{Error, Result};
use llama::options::DeviceSampling;
use llama::sampling::{DeviceReport, SamplingOptions, SamplingStep};
use llama::{Candidate, Context, DeviceAsked, Model, RawChain, SequenceId, Token};

use crate::guide::Guide;

/// Chain that chooses the tokens of one text, one after the other.
///
/// The tokens are determined by the options, the seed and the logits.
pub struct Chain {
    // Declared before the model, so that the chain, which reads the vocabulary, is dropped first.
    raw: RawChain,
    /// Samplers that run on the host after a device has done the first steps.
    rest: Option<RawChain>,
    guide: Option<Guide>,
    options: SamplingOptions,
    /// Identifier by which the samplers on a device are matched to this text.
    id: u64,
    /// Tokens within the window of the penalties, for samplers on a device.
    seen: VecDeque<Token>,
    /// Number of tokens that were chosen; each choice used one random number.
    chosen: u64,
    report: DeviceReport,
    /// True if the most likely token is always chosen, and no sampler can remove it.
    takes_best: bool,
    is_constrained: bool,
    seed: u32,
    model: Arc<Model>,
}

impl Chain {
    /// Creates a chain for a new text of `model`. If the options have no seed, a random seed is used; see
    /// [`seed`](Self::seed).
    ///
    /// # Errors
    /// [`Error::Usage`] for invalid values, [`Error::Grammar`] for a grammar that cannot be used.
    pub fn new(options: &SamplingOptions, model: &Arc<Model>) -> Result<Self> {
        options.check()?;
        if let Some(bias) =
            options.logit_bias.iter().find(|bias| bias.token.cast_unsigned() >= model.n_vocab())
        {
            return Err(Error::Usage(format!(
                "logit_bias has an entry for token {}, but the model's tokens are 0 to {}",
                bias.token,
                model.n_vocab().saturating_sub(1)
            )));
        }
        let constraint = options.constraint.as_ref();
        let guide = constraint.map(|constraint| Guide::new(constraint, model)).transpose()?;
        let seed = options.seed.unwrap_or_else(draw_seed);
        let raw = RawChain::new(options, seed, model)?;
        static LAST: AtomicU64 = AtomicU64::new(0);
        let on_host = SamplingStep::of(options, model.n_vocab());
        Ok(Chain {
            raw,
            rest: None,
            guide,
            options: options.clone(),
            id: LAST.fetch_add(1, Ordering::Relaxed),
            seen: VecDeque::new(),
            chosen: 0,
            report: DeviceReport { on_host, ..DeviceReport::default() },
            takes_best: options.is_greedy() && options.typical_p >= 1.0 && options.xtc_probability <= 0.0,
            is_constrained: constraint.is_some(),
            seed,
            model: Arc::clone(model),
        })
    }

    /// Chooses a token from the logits in output row `row` of `context` (-1 is the last row), and accepts the token.
    ///
    /// # Errors
    /// If the row does not exist, the logits are NaN, or no token is allowed.
    pub fn sample(&mut self, context: &mut Context, row: i32) -> Result<Token> {
        let token = self.choose(context.logits_at(row)?)?;
        self.report.tokens_on_host += 1;
        self.accept_as(token, true)?;
        Ok(token)
    }

    /// Like [`sample`](Self::sample), for a row of `sequence`. A device may already have done the first steps.
    pub fn sample_of(&mut self, context: &mut Context, sequence: SequenceId, row: i32) -> Result<Token> {
        let token = match (context.device_chooses(sequence, self.id), &mut self.rest) {
            (Some(true), _) => {
                self.report.tokens_on_device += 1;
                context.token_of_device(row)?
            }
            (Some(false), Some(rest)) => {
                self.report.tokens_on_host += 1;
                context.choose_from_left(rest, row)?
            }
            _ => return self.sample(context, row),
        };
        self.accept_as(token, true)?;
        context.accept_on_device(sequence, token)?;
        Ok(token)
    }

    /// Moves as many sampling steps as possible to the device that computes the logits of `sequence`, from the next
    /// evaluation on. The chain must already have accepted the prompt.
    ///
    /// # Errors
    /// If llama.cpp cannot plan its graphs with the samplers.
    pub fn place(&mut self, context: &mut Context, sequence: SequenceId) -> Result<()> {
        if context.device_chooses(sequence, self.id).is_some() {
            return Ok(());
        }
        let seen: Vec<Token> = self.seen.iter().copied().collect();
        let asked = DeviceAsked {
            owner: self.id,
            options: &self.options,
            seed: self.seed,
            drawn: self.chosen,
            seen: &seen,
        };
        let plan = context.sample_on_device(sequence, &asked)?;
        if !plan.offloaded().is_empty() && !plan.chooses() && self.rest.is_none() {
            let mut rest = RawChain::new(&plan.rest(&self.options), self.seed, &self.model)?;
            seen.iter().try_for_each(|token| rest.accept(*token, false))?;
            self.rest = Some(rest);
        }
        self.report.offloaded = plan.offloaded().to_vec();
        self.report.on_host = plan.on_host().to_vec();
        self.report.why = plan.on_host().first().map(|step| match plan.is_for_devices(&self.options) {
            false => {
                format!("{}: llama.cpp does not support this step on devices", step.name())
            }
            true => format!("{}: this device does not support this step", step.name()),
        });
        Ok(())
    }

    /// Moves all sampling steps of this text back to the host, for the reason `why`.
    ///
    /// # Errors
    /// If llama.cpp cannot plan its graphs without the samplers.
    pub fn stay_on_host(&mut self, context: &mut Context, sequence: SequenceId, why: &str) -> Result<()> {
        context.sample_on_host(sequence)?;
        self.report.why = Some(why.to_string());
        Ok(())
    }

    /// Returns the report on device sampling; `None` if no device was asked to sample.
    pub fn device_said(&self) -> Option<&DeviceReport> {
        Some(&self.report).filter(|report| !report.offloaded.is_empty() || report.why.is_some())
    }

    /// Returns the report on device sampling so far.
    pub fn device_report(&self) -> &DeviceReport {
        &self.report
    }

    /// Accepts `token` of the prompt. Penalties consider the token; grammars do not.
    pub fn accept(&mut self, token: Token) -> Result<()> {
        self.accept_as(token, false)
    }

    /// Accepts `token` as the next token of the text. Call this after [`choose`](Self::choose);
    /// [`sample`](Self::sample) already accepts its token.
    pub fn accept_generated(&mut self, token: Token) -> Result<()> {
        self.accept_as(token, true)
    }

    /// Accepts `token` as the next token of the text without sampling. Returns false, and does not accept the token, if
    /// the grammar forbids it. Do not call this function if a device samples this text.
    ///
    /// # Errors
    /// If the grammar cannot check the token.
    pub fn force(&mut self, token: Token) -> Result<bool> {
        if let Some(guide) = &mut self.guide
            && !guide.allows(token, self.model.is_end(token))?
        {
            return Ok(false);
        }
        self.accept_as(token, true)?;
        // No random number was used.
        self.chosen -= 1;
        Ok(true)
    }

    /// Accepts all tokens of a prompt, as [`accept`](Self::accept) does. Only the last tokens have an effect.
    pub fn accept_prompt(&mut self, prompt: &[Token]) -> Result<()> {
        let last = &prompt[prompt.len().saturating_sub(self.raw.window())..];
        last.iter().try_for_each(|token| self.accept(*token))
    }

    /// True if the grammar allows only the end of the text.
    pub fn is_complete(&self) -> bool {
        self.guide.as_ref().is_some_and(Guide::is_complete)
    }

    /// Returns the paths of the keywords of the JSON schema that are not enforced, such as `properties.list.uniqueItems`.
    pub fn ignored_keywords(&self) -> &[String] {
        self.guide.as_ref().map_or(&[], |guide| &guide.ignored)
    }

    /// True if a grammar or a schema constrains the text. The text then ends at its end token, even if end tokens are
    /// ignored otherwise.
    pub fn is_constrained(&self) -> bool {
        self.is_constrained
    }

    /// True if the most likely token is always chosen, without random numbers.
    pub fn takes_best(&self) -> bool {
        self.takes_best
    }

    /// True if the token with the largest logit is always chosen, regardless of the text. A device can then choose it.
    pub fn is_argmax(&self) -> bool {
        self.guide.is_none() && self.raw.is_argmax()
    }

    /// Returns the seed that was given or drawn.
    pub fn seed(&self) -> u32 {
        self.seed
    }

    /// Returns the candidates for the last token, with probabilities if the token was drawn at random.
    pub fn candidates(&self) -> &[Candidate] {
        self.raw.candidates()
    }

    /// Chooses a token from `logits`, which contain one logit for each token of the vocabulary. Does not accept the
    /// token.
    ///
    /// # Errors
    /// If the logits are NaN, or no token is allowed.
    pub fn choose(&mut self, logits: &[f32]) -> Result<Token> {
        let Some(guide) = &mut self.guide else { return self.raw.sample(logits, None) };
        // If the grammar allows the best of all tokens, the other tokens need not be checked. For a random draw, all
        // tokens must be checked, because truncation depends on all allowed tokens.
        if self.takes_best {
            let token = self.raw.sample(logits, None)?;
            if guide.allows(token, self.model.is_end(token))? {
                return Ok(token);
            }
        }
        let mask = guide.mask()?;
        self.raw.sample(logits, Some(&mask))
    }

    fn accept_as(&mut self, token: Token, generated: bool) -> Result<()> {
        self.raw.accept(token, generated)?;
        if let Some(rest) = &mut self.rest {
            rest.accept(token, generated)?;
        }
        self.chosen += u64::from(generated);
        let window = self.raw.window();
        if window > 0 {
            if self.seen.len() == window {
                self.seen.pop_front();
            }
            self.seen.push_back(token);
        }
        match &mut self.guide {
            Some(guide) if generated => guide.accept(token),
            _ => Ok(()),
        }
    }
}

/// Checks whether devices should sample for `model`. The error states why they should not.
pub fn asks_devices(mode: DeviceSampling, model: &Model) -> std::result::Result<(), &'static str> {
    match mode {
        DeviceSampling::Off => Err("--device-sampling off"),
        DeviceSampling::On => Ok(()),
        DeviceSampling::Auto if model.makes_logits_on_device() => Ok(()),
        DeviceSampling::Auto => Err("the CPU computes the logits"),
    }
}

/// Draws a seed from the clock, for options without a seed. The seed is reported to the user, so that the text can be
/// reproduced.
fn draw_seed() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = now.map_or(1, |since| since.subsec_nanos() ^ (since.as_secs() as u32).rotate_left(16));
    // For llama.cpp, `u32::MAX` means no seed.
    seed.min(u32::MAX - 1)
}
