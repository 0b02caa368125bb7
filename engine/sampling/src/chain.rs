//! The chain of samplers of one text, with its grammar.
//!
//! The samplers are llama.cpp's, in the order of its common sampler: logit bias, penalties, DRY, top-n-sigma, top-k,
//! typical, top-p, min-p, XTC, temperature, and the draw. What a grammar forbids is left out before all of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use llama::error::{Error, Result};
use llama::options::DeviceSampling;
use llama::sampling::{DeviceReport, SamplingOptions, SamplingStep};
use llama::{Candidate, Context, DeviceAsked, Model, RawChain, SequenceId, Token};

use crate::guide::Guide;

/// Chooses the tokens of one text, one after the other.
///
/// With the same options, seed included, the same logits give the same tokens.
pub struct Chain {
    // Before the model, whose vocabulary it reads.
    raw: RawChain,
    /// What is left to do where a device does the first steps.
    rest: Option<RawChain>,
    guide: Option<Guide>,
    options: SamplingOptions,
    /// By which a device's samplers are known to be those of this text.
    id: u64,
    /// The last tokens, as many as penalties look at, for a device's.
    seen: VecDeque<Token>,
    /// How many tokens were chosen; each took one random number.
    chosen: u64,
    report: DeviceReport,
    /// Whether the best token is taken, with no sampler that could take it away.
    takes_best: bool,
    is_constrained: bool,
    seed: u32,
    model: Arc<Model>,
}

impl Chain {
    /// A chain for a new text of `model`. Where no seed is asked for one is drawn; see [`seed`](Self::seed).
    ///
    /// # Errors
    /// [`Error::Usage`] for values that cannot be meant, [`Error::Grammar`] for a grammar that cannot be used.
    pub fn new(options: &SamplingOptions, model: &Arc<Model>) -> Result<Self> {
        options.check()?;
        if let Some(bias) =
            options.logit_bias.iter().find(|bias| bias.token.cast_unsigned() >= model.n_vocab())
        {
            return Err(Error::Usage(format!(
                "logit_bias of token {}: the model has the tokens 0 to {}",
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

    /// Chooses a token by the logits in output row `row` of `context` (-1 is the last one), and accepts it.
    ///
    /// # Errors
    /// Where there is no such row, the logits are no numbers, or no token is allowed.
    pub fn sample(&mut self, context: &mut Context, row: i32) -> Result<Token> {
        let token = self.choose(context.logits_at(row)?)?;
        self.report.tokens_on_host += 1;
        self.accept_as(token, true)?;
        Ok(token)
    }

    /// The same for a row of `sequence`, for which a device may have done its part.
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

    /// Lets the device that computes the logits of `sequence` do as much as it can of what chooses this text's tokens, from the
    /// next evaluation on. The chain knows the prompt.
    ///
    /// # Errors
    /// Where llama.cpp cannot plan for it.
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
                format!("{}: llama.cpp does not do this on devices, nor what comes after it", step.name())
            }
            true => format!("{}: this device lacks what it needs", step.name()),
        });
        Ok(())
    }

    /// Lets the host choose this text's tokens, since `why`.
    ///
    /// # Errors
    /// Where llama.cpp cannot plan for it.
    pub fn stay_on_host(&mut self, context: &mut Context, sequence: SequenceId, why: &str) -> Result<()> {
        context.sample_on_host(sequence)?;
        self.report.why = Some(why.to_string());
        Ok(())
    }

    /// The same, where a device was asked.
    pub fn device_said(&self) -> Option<&DeviceReport> {
        Some(&self.report).filter(|report| !report.offloaded.is_empty() || report.why.is_some())
    }

    /// What of the choices was a device's so far.
    pub fn device_report(&self) -> &DeviceReport {
        &self.report
    }

    /// Tells the chain that `token` of the prompt comes before the text: penalties look at it, grammars do not.
    pub fn accept(&mut self, token: Token) -> Result<()> {
        self.accept_as(token, false)
    }

    /// Tells the chain that `token` is the text's next one, for whoever [chooses](Self::choose) without
    /// [`sample`](Self::sample).
    pub fn accept_generated(&mut self, token: Token) -> Result<()> {
        self.accept_as(token, true)
    }

    /// The same as [`accept`](Self::accept) for all tokens of a prompt; only the last ones are looked at.
    pub fn accept_prompt(&mut self, prompt: &[Token]) -> Result<()> {
        let last = &prompt[prompt.len().saturating_sub(self.raw.window())..];
        last.iter().try_for_each(|token| self.accept(*token))
    }

    /// Whether the text is complete by its grammar, and only its end can follow.
    pub fn is_complete(&self) -> bool {
        self.guide.as_ref().is_some_and(Guide::is_complete)
    }

    /// Whether a grammar or a schema decides what the text is like: then its end is the end, asked for or not.
    pub fn is_constrained(&self) -> bool {
        self.is_constrained
    }

    /// Whether the best token is taken, whatever is drawn.
    pub fn takes_best(&self) -> bool {
        self.takes_best
    }

    /// Whether the token of the greatest logit is taken, whatever the text, so that a device can choose as well.
    pub fn is_argmax(&self) -> bool {
        self.guide.is_none() && self.raw.is_argmax()
    }

    /// The seed that was asked for or drawn.
    pub fn seed(&self) -> u32 {
        self.seed
    }

    /// What the last token was chosen from, with probabilities where it was drawn.
    pub fn candidates(&self) -> &[Candidate] {
        self.raw.candidates()
    }

    /// Chooses a token by a row of logits, one for each token of the vocabulary, without accepting it.
    pub fn choose(&mut self, logits: &[f32]) -> Result<Token> {
        let Some(guide) = &mut self.guide else { return self.raw.sample(logits, None) };
        // The best of all is the best of those allowed, if it is one of them: the others need not be known. Where tokens
        // are drawn this would not do: what is cut depends on all that is allowed.
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

/// Whether devices are asked to choose for `model`, and why not where they are not.
pub fn asks_devices(mode: DeviceSampling, model: &Model) -> std::result::Result<(), &'static str> {
    match mode {
        DeviceSampling::Off => Err("--device-sampling off"),
        DeviceSampling::On => Ok(()),
        DeviceSampling::Auto if model.makes_logits_on_device() => Ok(()),
        DeviceSampling::Auto => Err("the CPU makes the logits"),
    }
}

/// A seed from the clock, for whoever asks for none. It is reported, so that a text can be repeated.
fn draw_seed() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = now.map_or(1, |since| since.subsec_nanos() ^ (since.as_secs() as u32).rotate_left(16));
    // To llama.cpp the greatest number is none.
    seed.min(u32::MAX - 1)
}
