//! Text in, text out: tokenise, prefill, then sample and decode one token at a time, in one context or in two.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use llama::error::{Error, Result};
use llama::{ALONE, Context, Graphs, Model, Token, interrupted};
use sampling::{Chain, DeviceReport};
use serde::Serialize;

use crate::speculative::{self, Report};
use crate::split::{HandOver, Sequence};
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
    pub speculation: Option<Report>,
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

/// Generates. `on_text` gets the text as it comes, in whole characters; it breaks off by saying so.
pub fn generate(
    sequence: &mut impl Sequence,
    chain: &mut Chain,
    request: &Request<'_>,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<Generation> {
    let start = Instant::now();
    let context = sequence.current();
    context.model().check_length(request.prompt.len(), context.n_ctx())?;
    let prompt = context.model().tokenize(request.prompt)?;
    from_tokens(sequence, chain, &prompt, request, start, on_text)
}

/// The same from a prompt already cut into tokens, timed from `start`, after those that the sequence holds.
pub fn from_tokens(
    sequence: &mut impl Sequence,
    chain: &mut Chain,
    prompt: &[Token],
    request: &Request<'_>,
    start: Instant,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<Generation> {
    // Before the last token of it is evaluated: penalties on a device look at it then.
    chain.accept_prompt(prompt)?;
    sequence.place_sampling(chain)?;
    let mut generation = prefill(sequence, prompt, request)?;
    if generation.stop != Stop::Interrupted {
        go_on(sequence, chain, prompt, None, &mut generation, request, start, on_text)?;
    }
    Ok(generation)
}

/// The first half of [`from_tokens`]: evaluates `prompt`, 1 token or more, after those that the sequence holds. Where it is
/// interrupted the generation's `stop` says so.
pub fn prefill(sequence: &mut impl Sequence, prompt: &[Token], request: &Request<'_>) -> Result<Generation> {
    let held = sequence.current().held();
    check_prompt(sequence.current(), held, prompt)?;
    let mut generation = Generation::new(prompt.len(), request, sequence.current().n_ctx());
    let start = Instant::now();
    let context = sequence.context_for(prompt.len())?;
    match context.decode(prompt) {
        Err(Error::Interrupted) => {
            generation.stop = Stop::Interrupted;
            return Ok(generation);
        }
        other => other?,
    }
    context.synchronize();
    generation.prefill = start.elapsed();
    // A sampler would choose something all the same. Once: what goes wrong later goes wrong in the first row, mostly.
    if request.n_predict > 0 && !context.samples_on_device(ALONE) && has_nan(context.logits()?) {
        return Err(Error::NotANumber);
    }
    Ok(generation)
}

/// The second half: chooses tokens after `prompt`, the last that the sequence holds and that `chain` knows, and evaluates them.
/// The first one is chosen by `row` where the context has no logits of its own.
#[expect(clippy::too_many_arguments, reason = "both halves of one function")]
pub fn go_on(
    sequence: &mut impl Sequence,
    chain: &mut Chain,
    prompt: &[Token],
    mut row: Option<&[f32]>,
    generation: &mut Generation,
    request: &Request<'_>,
    start: Instant,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<()> {
    let mut teller = Teller::new(sequence.current(), request, start, on_text);
    // An earlier sequence's, or one on the way to this prompt: not between its tokens.
    sequence.take_hand_over();
    let graphs = sequence.graphs();
    generation.stop = loop {
        if generation.tokens.len() >= request.n_predict as usize {
            break Stop::Length;
        }
        if interrupted() {
            break Stop::Interrupted;
        }
        let token = match row.take() {
            Some(row) => {
                let token = chain.choose(row)?;
                chain.accept_generated(token)?;
                token
            }
            None => chain.sample_of(sequence.current(), ALONE, -1)?,
        };
        if let Some(mut speculator) = sequence.take_speculator() {
            let teller = &mut teller;
            let stop =
                speculative::go_on(sequence, chain, &mut speculator, prompt, token, generation, teller);
            sequence.put_speculator(speculator);
            break stop?;
        }
        if let Some(stop) = teller.take(token, chain, generation)? {
            break stop;
        }
        let context = sequence.context_for(1)?;
        match context.decode(&[token]) {
            Err(Error::Interrupted) => break Stop::Interrupted,
            other => other?,
        }
        generation.hand_over = generation.hand_over.or_else(|| sequence.take_hand_over());
    };
    teller.finish(generation);
    generation.device = chain.device_report().clone();
    generation.graphs = sequence.graphs().since(graphs);
    Ok(())
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
    fn new(
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
    fn finish(mut self, generation: &mut Generation) {
        let rest = self.stream.finish();
        if generation.stop != Stop::OutputClosed && !rest.is_empty() && (self.on_text)(rest).is_break() {
            generation.stop = Stop::OutputClosed;
        }
    }
}

fn handed(hand_over: &Option<HandOver>) -> Duration {
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
            needed: all.next_multiple_of(256) + 256,
            trained: context.model().n_ctx_train(),
        });
    }
    Ok(())
}
