//! A generated text, and what tells its tokens as they come.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gguf::memory::CTX_STEP;
use llama::error::{Error, Result};
use llama::{Context, Graphs, Model, Token};
use sampling::{Chain, DeviceReport};
use serde::Serialize;

use crate::sequence::HandOver;
use crate::speculative::report::DraftReport;
use crate::stream_utf8::StreamUtf8;

/// What to generate.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Text to go on from.
    pub prompt: &'a str,
    /// Most tokens to generate.
    pub n_predict: u32,
    /// Whether tokens that end a text are like any other; not where a grammar says when it ends.
    pub ignore_end: bool,
}

/// Why a generation stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// The model ended the text.
    End,
    /// As many tokens as asked for.
    Length,
    /// No room for another token.
    ContextFull,
    /// The interrupt flag.
    Interrupted,
    /// Nobody reads the text any more.
    OutputClosed,
}

/// What was generated, and how long it took.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, those that were not evaluated because a cache had them.
    pub cached_tokens: usize,
    /// The tokens.
    pub tokens: Vec<Token>,
    /// Why it stopped.
    pub stop: Stop,
    /// From the start until the first token was chosen; `None` where it never was.
    pub time_to_first_token: Option<Duration>,
    /// Time the prompt took.
    pub prefill: Duration,
    /// Time from the first token to the last, without what handing over took.
    pub decode: Duration,
    /// Time of each token after the first: from the choice of the one before to its own, handing over included.
    pub token_times: Vec<Duration>,
    /// Handing the sequence over from the weights of prefill to those of decode, where they are not the same.
    pub hand_over: Option<HandOver>,
    /// What drafts brought, where there were to be any.
    pub speculation: Option<DraftReport>,
    /// What devices did of choosing the tokens.
    pub device: DeviceReport,
    /// Graphs that were computed after the prompt.
    pub graphs: Graphs,
}

impl Generation {
    /// Nothing yet, after a prompt of `prompt_tokens` tokens.
    pub fn new(prompt_tokens: usize, request: &Request<'_>, n_ctx: u32) -> Self {
        Generation {
            prompt_tokens,
            cached_tokens: 0,
            tokens: Vec::with_capacity(request.n_predict.min(n_ctx) as usize),
            stop: Stop::Length,
            time_to_first_token: None,
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
            token_times: Vec::new(),
            hand_over: None,
            speculation: None,
            device: DeviceReport::default(),
            graphs: Graphs::default(),
        }
    }

    /// Prompt tokens per second, of those that were evaluated.
    pub fn prefill_tokens_per_second(&self) -> Option<f64> {
        rate(self.prompt_tokens - self.cached_tokens, self.prefill)
    }

    /// Generated tokens per second; the first one comes out of the prefill and does not count.
    pub fn decode_tokens_per_second(&self) -> Option<f64> {
        rate(self.tokens.len().saturating_sub(1), self.decode)
    }
}

fn rate(tokens: usize, time: Duration) -> Option<f64> {
    (tokens > 0 && !time.is_zero()).then(|| tokens as f64 / time.as_secs_f64())
}

/// Tells the tokens of a generation as they are chosen, and knows when it ends.
pub struct Teller<'a> {
    request: Request<'a>,
    model: Arc<Model>,
    /// Tokens that the context has room for.
    room: usize,
    start: Instant,
    first: Option<Instant>,
    before: Option<Instant>,
    stream: StreamUtf8,
    on_text: &'a mut dyn FnMut(&str) -> ControlFlow<()>,
}

impl<'a> Teller<'a> {
    pub(crate) fn new(
        context: &Context,
        request: &Request<'a>,
        start: Instant,
        on_text: &'a mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Self {
        Teller {
            request: *request,
            model: Arc::clone(context.model()),
            room: (context.n_ctx() as usize).saturating_sub(context.held()),
            start,
            first: None,
            before: None,
            stream: StreamUtf8::default(),
            on_text,
        }
    }

    /// Most tokens of the generation.
    pub fn most(&self) -> usize {
        self.request.n_predict as usize
    }

    /// Takes `token`, which `chain` chose and accepted; says why it is the last, if it is.
    pub fn take(&mut self, token: Token, chain: &Chain, generation: &mut Generation) -> Result<Option<Stop>> {
        let now = Instant::now();
        let first = *self.first.get_or_insert(now);
        generation.time_to_first_token.get_or_insert(first - self.start);
        if self.model.is_end(token) && (!self.request.ignore_end || chain.is_constrained()) {
            return Ok(Some(Stop::End));
        }
        generation.tokens.push(token);
        generation.token_times.extend(self.before.replace(now).map(|before| now - before));
        generation.decode = first.elapsed().saturating_sub(handed(&generation.hand_over));
        self.model.piece(token, self.stream.buffer())?;
        let text = self.stream.take();
        if !text.is_empty() && (self.on_text)(text).is_break() {
            return Ok(Some(Stop::OutputClosed));
        }
        // All that could follow is the end, so there is no need to evaluate anything for it.
        if chain.is_complete() {
            return Ok(Some(Stop::End));
        }
        if generation.tokens.len() >= self.most() {
            return Ok(Some(Stop::Length));
        }
        Ok((generation.tokens.len() > self.room).then_some(Stop::ContextFull))
    }

    /// Tells what is left of a character that is not whole.
    pub(crate) fn finish(mut self, generation: &mut Generation) {
        let rest = self.stream.finish();
        if generation.stop != Stop::OutputClosed && !rest.is_empty() && (self.on_text)(rest).is_break() {
            generation.stop = Stop::OutputClosed;
        }
    }
}

pub(crate) fn handed(hand_over: &Option<HandOver>) -> Duration {
    hand_over.map_or(Duration::ZERO, |hand_over| hand_over.time)
}

/// Looks at all of them without a branch, which the compiler makes vectors of.
pub fn has_nan(row: &[f32]) -> bool {
    row.iter().fold(false, |found, value| found | value.is_nan())
}

/// Checks that `prompt`, of which the context holds `held` tokens, fits and is not empty.
///
/// # Errors
/// [`Error::EmptyPrompt`] and [`Error::PromptTooLong`].
pub fn check_prompt(context: &Context, held: usize, prompt: &[Token]) -> Result<()> {
    if prompt.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    let all = held + prompt.len();
    if all > context.n_ctx() as usize {
        return Err(Error::PromptTooLong {
            prompt: all,
            context: context.n_ctx(),
            needed: all.next_multiple_of(CTX_STEP as usize) + CTX_STEP as usize,
            trained: context.model().n_ctx_train(),
        });
    }
    Ok(())
}
