//! Text generation: tokenises and evaluates the prompt, then samples and evaluates one token after another, in one or
//! two contexts.

use std::ops::ControlFlow;
use std::time::Instant;

use llama::error::{Error, Result};
use llama::{ALONE, Token, interrupted};
use sampling::Chain;

use crate::generation::Teller;
pub use crate::generation::{Generation, Request, Stop, check_prompt, has_nan};
use crate::session::Session;
use crate::speculative::generate as speculative;

/// Generates text. `on_text` receives the text in whole characters as it is generated, and can end the generation.
///
/// # Errors
/// [`Error::EmptyPrompt`], [`Error::PromptTooLong`], or the error of the evaluation.
pub fn generate(
    session: &mut Session,
    chain: &mut Chain,
    request: &Request<'_>,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<Generation> {
    let start = Instant::now();
    let context = session.context();
    context.model().check_length(request.prompt.len(), context.n_ctx())?;
    let prompt = context.model().tokenize(request.prompt)?;
    from_tokens(session, chain, &prompt, request, start, on_text)
}

/// Generates text after `prompt`, which follows the tokens that the sequence already contains. Times are measured
/// from `start`.
///
/// # Errors
/// Errors of [`generate`].
pub fn from_tokens(
    session: &mut Session,
    chain: &mut Chain,
    prompt: &[Token],
    request: &Request<'_>,
    start: Instant,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<Generation> {
    // This call must precede the evaluation of the prompt's last token, because penalties on a device read the prompt
    // during that evaluation.
    chain.accept_prompt(prompt)?;
    if request.thoughts.is_none() {
        session.place_sampling(chain)?;
    }
    let mut generation = prefill(session, prompt, request)?;
    if generation.stop != Stop::Interrupted {
        go_on(session, chain, prompt, None, &mut generation, request, start, on_text)?;
    }
    Ok(generation)
}

/// First half of [`from_tokens`]: evaluates `prompt`, which has at least one token, after the tokens that the sequence
/// already contains. If the evaluation is interrupted, the `stop` of the generation is [`Stop::Interrupted`].
///
/// # Errors
/// If `prompt` is empty or too long, or its evaluation fails.
pub fn prefill(session: &mut Session, prompt: &[Token], request: &Request<'_>) -> Result<Generation> {
    let context = session.context();
    check_prompt(context, context.held(), prompt)?;
    let mut generation = Generation::new(prompt.len(), request, context.n_ctx());
    let start = Instant::now();
    match context.decode(prompt) {
        Err(Error::Interrupted) => {
            generation.stop = Stop::Interrupted;
            return Ok(generation);
        }
        other => other?,
    }
    context.synchronize();
    generation.prefill = start.elapsed();
    // A sampler would choose a token even if the logits are NaN. Only the first row is checked, because most faults
    // already appear in that row.
    if request.n_predict > 0 && !context.samples_on_device(ALONE) && has_nan(context.logits()?) {
        return Err(Error::NotANumber);
    }
    Ok(generation)
}

/// Second half of [`from_tokens`]: chooses and evaluates tokens after `prompt`. The sequence contains the prompt, and
/// `chain` has accepted the prompt. `row` contains the logits for the first token if the context has no logits.
///
/// # Errors
/// If the evaluation fails.
#[expect(clippy::too_many_arguments, reason = "second half of `from_tokens`")]
pub fn go_on(
    session: &mut Session,
    chain: &mut Chain,
    prompt: &[Token],
    mut row: Option<&[f32]>,
    generation: &mut Generation,
    request: &Request<'_>,
    start: Instant,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<()> {
    let mut teller = Teller::new(session.context(), request, start, on_text);
    let graphs = session.context().graphs();
    generation.stop = loop {
        if generation.tokens.len() >= request.n_predict as usize {
            break Stop::Length;
        }
        if interrupted() {
            break Stop::Interrupted;
        }
        let row = row.take();
        let token = match (teller.closing_token(), row) {
            (Some(token), _) if chain.force(token)? => token,
            (_, Some(row)) => {
                let token = chain.choose(row)?;
                chain.accept_generated(token)?;
                token
            }
            (_, None) => chain.sample_of(session.context(), ALONE, -1)?,
        };
        if request.thoughts.is_none()
            && let Some(mut speculator) = session.take_speculator()
        {
            let teller = &mut teller;
            let stop = speculative::go_on(session, chain, &mut speculator, prompt, token, generation, teller);
            session.put_speculator(speculator);
            break stop?;
        }
        if let Some(stop) = teller.take(token, chain, generation)? {
            break stop;
        }
        let context = session.context();
        match context.decode(&[token]) {
            Err(Error::Interrupted) => break Stop::Interrupted,
            other => other?,
        }
    };
    teller.finish(generation);
    generation.device = chain.device_report().clone();
    generation.graphs = session.context().graphs().since(graphs);
    Ok(())
}
