//! Kernel path: prefill and decode without sampling.

use std::sync::Arc;
use std::time::Instant;

use engine_core::generate::has_nan;
use engine_core::model;
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::Settings;
use llama::error::{Error, Result};
use llama::options::ContextOptions;
use llama::{Context, Model, Token};
use measure::GpuWatch;

use super::case::{Case, Path, Repeat, Samples, duration};
use super::record::utc;

/// Creates a context of the size that the test needs.
pub(crate) fn context(
    model: &Arc<Model>,
    path: Path,
    case: &Case,
    settings: &Settings,
    runtime_host: &RuntimeHost,
) -> Result<Context> {
    model::context_with(
        model,
        &context_options(model, path, case, settings)?,
        settings,
        runtime_host,
        MEASURE_LESS,
    )
}

/// Hint for a context that does not fit into memory.
pub(crate) const MEASURE_LESS: &str =
    "measure fewer tokens (-p, -n, -pg, -d), or make the cache smaller with -ctk q8_0 -ctv q8_0";

/// Returns the context options for a test: the options from `settings`, with room for `case`.
fn context_options(model: &Model, path: Path, case: &Case, settings: &Settings) -> Result<ContextOptions> {
    Ok(ContextOptions { n_ctx: case.n_ctx(path)?, ..model::context_options(model, settings, false) })
}

/// Runs `case` on the kernel path. `depth` keeps the context's state at the test's depth, for the next test at the same
/// depth.
///
/// # Errors
/// If the context cannot be created, the evaluation fails, or a logit is NaN.
pub fn kernel(
    model: &Arc<Model>,
    case: &Case,
    settings: &Settings,
    runtime_host: &RuntimeHost,
    repeat: Repeat,
    depth: &mut Option<(u32, Vec<u8>)>,
) -> Result<Samples> {
    // The GPU driver starts while the context is being created.
    let early = GpuWatch::start();
    let mut context = context(model, Path::Kernel, case, settings, runtime_host)?;
    let mut random = Random::new(model);
    let mut samples = Samples { time: utc(std::time::SystemTime::now()), ..Samples::default() };
    if repeat.warm_up {
        prefill(&mut context, &mut random, case.n_prompt)?;
        decode(&mut context, &mut random, case.n_gen.min(1), &mut Vec::new())?;
        refuse_nan(&mut context)?;
    }
    drop(early);
    let gpus = GpuWatch::start();
    for _ in 0..repeat.samples {
        context.clear();
        samples.token_ns.reserve(case.n_gen as usize);
        fill(&mut context, &mut random, case.n_depth, depth)?;
        let start = Instant::now();
        prefill(&mut context, &mut random, case.n_prompt)?;
        let graphs = context.graphs();
        decode(&mut context, &mut random, case.n_gen, &mut samples.token_ns)?;
        samples.ns.push(nanoseconds(start));
        samples.graphs = samples.graphs.and(context.graphs().since(graphs));
    }
    samples.gpus = gpus.map(|gpus| gpus.read());
    if !repeat.warm_up {
        refuse_nan(&mut context)?;
    }
    Ok(samples)
}

/// Checks that the last token's logits are not NaN, because the speed of a broken kernel is meaningless.
pub(crate) fn refuse_nan(context: &mut Context) -> Result<()> {
    match has_nan(context.logits()?) {
        true => Err(Error::NotANumber),
        false => Ok(()),
    }
}

pub(crate) fn nanoseconds(start: Instant) -> u64 {
    duration(start.elapsed())
}

/// Fills the empty context to `n_depth` tokens, from the saved state if possible.
pub(crate) fn fill(
    context: &mut Context,
    random: &mut Random,
    n_depth: u32,
    saved: &mut Option<(u32, Vec<u8>)>,
) -> Result<()> {
    if n_depth == 0 {
        return Ok(());
    }
    // If the state has different options, such as cache types, restoring fails and the tokens are evaluated again.
    if let Some((depth, state)) = saved
        && *depth == n_depth
        && context.restore(state).is_ok()
    {
        return Ok(());
    }
    context.clear();
    prefill(context, random, n_depth)?;
    let state = context.save()?;
    *saved = Some((n_depth, state));
    Ok(())
}

/// Evaluates `n` tokens: the model's begin token, followed by random tokens.
pub(crate) fn prefill(context: &mut Context, random: &mut Random, n: u32) -> Result<()> {
    if n == 0 {
        return Ok(());
    }
    let n_batch = context.n_batch().max(1);
    let mut tokens = vec![0; n_batch.min(n) as usize];
    let mut done = 0;
    while done < n {
        let chunk = &mut tokens[..n_batch.min(n - done) as usize];
        chunk.fill_with(|| random.token());
        if let (0, Some(begin)) = (done, random.begin) {
            chunk[0] = begin;
        }
        context.decode(chunk)?;
        done += chunk.len() as u32;
    }
    context.synchronize();
    Ok(())
}

/// Evaluates `n` tokens one by one, and reads the clock after each token. A reading takes about 50 ns.
pub(crate) fn decode(
    context: &mut Context,
    random: &mut Random,
    n: u32,
    token_ns: &mut Vec<u64>,
) -> Result<()> {
    let mut token = random.begin.unwrap_or_else(|| random.token());
    for _ in 0..n {
        let start = Instant::now();
        context.decode(&[token])?;
        context.synchronize();
        token_ns.push(nanoseconds(start));
        token = random.token();
    }
    Ok(())
}

/// Generator of random tokens: xorshift64 (Marsaglia 2003) with a fixed seed, so that two runs do the same work.
pub(crate) struct Random {
    state: u64,
    n_vocab: u64,
    begin: Option<Token>,
}

impl Random {
    pub(crate) fn new(model: &Model) -> Self {
        let n_vocab = u64::from(model.n_vocab().max(1));
        Random { state: 0x9e37_79b9_7f4a_7c15, n_vocab, begin: model.begin_token() }
    }

    pub(crate) fn token(&mut self) -> Token {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        // The remainder is less than n_vocab, which is a positive i32 in llama.cpp.
        ((self.state >> 33) % self.n_vocab) as Token
    }
}
