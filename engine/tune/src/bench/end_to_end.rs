//! End-to-end path: text, tokenizer, prefill, sampler, decode, detokenizer, text.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use engine_core::generate::{Request, from_tokens};
use engine_core::runtime_host::RuntimeHost;
use engine_core::session::Session;
use engine_core::settings::Settings;
use llama::Model;
use llama::error::Result;
use measure::GpuWatch;
use sampling::Chain;

use super::case::{Case, Path, Repeat, Samples, duration};
use super::kernel::{context, nanoseconds};
use super::record::utc;

/// Text that is repeated to make a prompt.
const TEXT: &str = "Steel that has been worked cold is hard and brittle, because its crystals are full of \
strain. To anneal it, the smith brings it slowly to a red heat, holds it there until the heat has gone all \
the way through, and lets it cool as slowly as the ashes allow. The strain goes out of the metal; it can be \
bent, drawn and cut again. \"How long?\" asks the apprentice. \"An hour for every inch,\" says the smith, \
\"and no looking before morning.\"\n\n";

/// Runs `case`. Each sample tokenises a text, evaluates the first `n_prompt`
/// tokens in an empty context, samples `n_gen` tokens and converts them to text. Generation continues after an
/// end-of-text token.
///
/// # Errors
/// If the context cannot be created, or the evaluation fails.
pub fn end_to_end(
    model: &Arc<Model>,
    case: &Case,
    settings: &Settings,
    runtime_host: &RuntimeHost,
    repeat: Repeat,
) -> Result<Samples> {
    // The GPU driver starts while the context is being created.
    let mut gpus = GpuWatch::start();
    let mut session = Session::from(context(model, Path::EndToEnd, case, settings, runtime_host)?);
    session.sample_on_device(settings.device_sampling.value);
    let text = text_for(model, case.n_prompt as usize)?;
    let mut samples = Samples { time: utc(SystemTime::now()), ..Samples::default() };
    let warm_up = u32::from(repeat.warm_up);
    for round in 0..warm_up + repeat.samples {
        session.clear();
        if round == warm_up && round > 0 {
            gpus = GpuWatch::start();
        }
        // A new sampler with the same seed makes every sample draw the same random numbers.
        let mut chain = Chain::new(&settings.sampling_options().with_seed(0), model)?;
        let start = Instant::now();
        let mut prompt = model.tokenize(&text)?;
        prompt.truncate(case.n_prompt as usize);
        let request =
            Request { prompt: "", n_predict: case.n_gen, ignore_end: true, shown: &[], thoughts: None };
        let mut bytes = 0;
        let mut on_text = |text: &str| {
            bytes += text.len();
            ControlFlow::Continue(())
        };
        let generation = from_tokens(&mut session, &mut chain, &prompt, &request, start, &mut on_text)?;
        let ns = nanoseconds(start);
        if round >= warm_up {
            samples.ns.push(ns);
            samples.graphs = samples.graphs.and(generation.graphs);
            let first = generation.time_to_first_token.unwrap_or_else(|| start.elapsed());
            samples.first_token_ns.push(duration(first));
            samples.token_ns.extend(generation.token_times.iter().copied().map(duration));
        }
    }
    samples.gpus = gpus.map(|gpus| gpus.read());
    Ok(samples)
}

/// Repeats [`TEXT`] until it has at least `n` tokens.
fn text_for(model: &Model, n: usize) -> Result<String> {
    let once = model.tokenize(TEXT)?.len().max(1);
    let mut text = TEXT.repeat(n.div_ceil(once));
    while model.tokenize(&text)?.len() < n {
        text.push_str(TEXT);
    }
    Ok(text)
}
