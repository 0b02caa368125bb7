//! Result of a generation, and the callback that reports its text.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gguf::memory::CTX_STEP;
use llama::error::{Error, Result};
use llama::{Context, Graphs, Model, Token};
use sampling::{Chain, DeviceReport};
use serde::Serialize;

use crate::speculative::report::DraftReport;
use crate::stream_utf8::StreamUtf8;
use crate::thought_counter::ThoughtCounter;

/// Request for a generation.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Text to continue.
    pub prompt: &'a str,
    /// Maximum number of tokens to generate.
    pub n_predict: u32,
    /// True if end-of-text tokens do not end the generation. Has no effect with a grammar, which decides where the
    /// text ends.
    pub ignore_end: bool,
    /// Control tokens that are rendered as text, because they mark thoughts.
    pub shown: &'a [Token],
    /// Counter that closes the thoughts when their budget is spent. `None` if they have no budget. With a budget, the
    /// host samples every token, without drafts.
    pub thoughts: Option<&'a ThoughtCounter>,
}

/// Reason why a generation stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// The model ended the text.
    End,
    /// The requested number of tokens was generated.
    Length,
    /// The context has no room for another token.
    ContextFull,
    /// The interrupt flag was set.
    Interrupted,
    /// The output was closed by its reader.
    OutputClosed,
}

/// Generated tokens, with the times of the generation.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Number of tokens of the prompt.
    pub prompt_tokens: usize,
    /// Number of prompt tokens that were not evaluated because they were cached.
    pub cached_tokens: usize,
    /// Generated tokens.
    pub tokens: Vec<Token>,
    /// Reason why the generation stopped.
    pub stop: Stop,
    /// Time from the start until the first token was chosen; `None` if no token was chosen.
    pub time_to_first_token: Option<Duration>,
    /// Time to evaluate the prompt.
    pub prefill: Duration,
    /// Time from the first token to the last.
    pub decode: Duration,
    /// Time of each token after the first, measured from the choice of the previous token to the choice of this
    /// token.
    pub token_times: Vec<Duration>,
    /// Statistics of the drafts; `None` without speculative decoding.
    pub speculation: Option<DraftReport>,
    /// Report on the sampling that ran on devices.
    pub device: DeviceReport,
    /// Graphs that were computed after the prompt.
    pub graphs: Graphs,
}

impl Generation {
    /// Returns an empty generation after a prompt of `prompt_tokens` tokens.
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
            speculation: None,
            device: DeviceReport::default(),
            graphs: Graphs::default(),
        }
    }

    /// Returns the number of evaluated prompt tokens per second.
    pub fn prefill_tokens_per_second(&self) -> Option<f64> {
        rate(self.prompt_tokens - self.cached_tokens, self.prefill)
    }

    /// Returns the number of generated tokens per second. The first token is not counted, because the prefill
    /// computes its logits.
    pub fn decode_tokens_per_second(&self) -> Option<f64> {
        rate(self.tokens.len().saturating_sub(1), self.decode)
    }
}

fn rate(tokens: usize, time: Duration) -> Option<f64> {
    (tokens > 0 && !time.is_zero()).then(|| tokens as f64 / time.as_secs_f64())
}

/// Reports the tokens of a generation as they are chosen, and detects the end of the generation.
pub struct Teller<'a> {
    request: Request<'a>,
    model: Arc<Model>,
    /// Number of tokens for which the context still has room.
    room: usize,
    start: Instant,
    first: Option<Instant>,
    before: Option<Instant>,
    stream: StreamUtf8,
    thoughts: Option<ThoughtCounter>,
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
            thoughts: request.thoughts.cloned(),
            on_text,
        }
    }

    /// Returns the maximum number of tokens of the generation.
    pub fn most(&self) -> usize {
        self.request.n_predict as usize
    }

    /// Returns the next token if the thoughts are being closed. A character of several tokens is completed first.
    pub(crate) fn closing_token(&self) -> Option<Token> {
        self.thoughts.as_ref().and_then(ThoughtCounter::closing_token).filter(|_| self.stream.is_whole())
    }

    /// Records and reports `token`, which `chain` chose and accepted. If `token` is the last token, returns the
    /// reason to stop.
    ///
    /// # Errors
    /// If the token cannot be converted to text.
    pub fn take(&mut self, token: Token, chain: &Chain, generation: &mut Generation) -> Result<Option<Stop>> {
        let now = Instant::now();
        let first = *self.first.get_or_insert(now);
        generation.time_to_first_token.get_or_insert(first - self.start);
        if self.model.is_end(token) && (!self.request.ignore_end || chain.is_constrained()) {
            return Ok(Some(Stop::End));
        }
        generation.tokens.push(token);
        generation.token_times.extend(self.before.replace(now).map(|before| now - before));
        generation.decode = first.elapsed();
        self.model.piece_with(token, self.request.shown.contains(&token), self.stream.buffer())?;
        let text = self.stream.take();
        if let Some(thoughts) = &mut self.thoughts {
            thoughts.add(token, text);
        }
        if !text.is_empty() && (self.on_text)(text).is_break() {
            return Ok(Some(Stop::OutputClosed));
        }
        // The grammar allows only the end of the text, so no further token needs to be evaluated.
        if chain.is_complete() {
            return Ok(Some(Stop::End));
        }
        if generation.tokens.len() >= self.most() {
            return Ok(Some(Stop::Length));
        }
        Ok((generation.tokens.len() > self.room).then_some(Stop::ContextFull))
    }

    /// Reports the bytes of an incomplete character at the end.
    pub(crate) fn finish(mut self, generation: &mut Generation) {
        let rest = self.stream.finish();
        if generation.stop != Stop::OutputClosed && !rest.is_empty() && (self.on_text)(rest).is_break() {
            generation.stop = Stop::OutputClosed;
        }
    }
}

/// True if any value is NaN. All values are checked without a branch, so that the compiler can vectorise the loop.
pub fn has_nan(row: &[f32]) -> bool {
    row.iter().fold(false, |found, value| found | value.is_nan())
}

/// Checks that `prompt` is not empty and fits into the context, which contains the first `held` tokens of `prompt`.
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
