//! Process that runs candidates: it loads the model once and answers requests in JSON.
//!
//! Each request and each answer is one line. The driver ends the process by closing its stdin, or kills it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use build_info::Bytes;
use build_info::tuning::{Chosen, Sample};
use engine_core::logits::{Feed, logits};
use engine_core::model;
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{Requested, Settings};
use engine_core::tuning::requested;
use host::process::ProcFolder;
use llama::error::{Error, Result};
use llama::{Model, Token};
use serde::{Deserialize, Serialize};

use super::depth::Depths;
use super::task::Work;
use crate::bench::{self, Case, Random};

/// Number of tokens in the text for which outputs are compared.
const TEXT_TOKENS: usize = 64;
/// Number of greedy tokens after the text.
const GREEDY: u32 = 16;
/// Text with prose, numbers and code, so that it contains every kind of token.
const TEXT: &str = "The river had risen by 3.75 metres in the night, and at 06:40 the ferry was still on the other bank. \
    \"It will come,\" she said, \"it always has.\" fn rise(levels: &[f64]) -> Option<f64> { levels.iter().copied()\
    .reduce(f64::max) } In 1897 there were 12 such crossings between the two towns; today there is one, and nobody \
    remembers who paid for the bell.";

/// Request from the driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerRequest {
    /// Loads the model. `Load` is the first request, and is sent once.
    Load {
        /// Settings for loading.
        settings: Chosen,
    },
    /// Evaluates and generates tokens.
    Measure {
        /// Settings for the run.
        settings: Chosen,
        /// Token counts of the run.
        work: Work,
    },
    /// Writes the logits after every token of a text, and after greedy tokens.
    Check {
        /// Settings for the evaluation.
        settings: Chosen,
        /// Number of tokens before the text, for which no logits are written. See [`lead`].
        lead: u32,
        /// Path of the file for the logits.
        out: PathBuf,
    },
}

/// Answer from the worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerAnswer {
    /// The model is loaded.
    Loaded,
    /// The run is finished.
    Measured {
        /// Times of the run.
        sample: Sample,
        /// Peak memory of the process during the run.
        #[serde(default)]
        peak: Option<Bytes>,
    },
    /// The logits are written.
    Checked {
        /// Number of tokens in the text.
        text: usize,
    },
    /// The request failed, for this reason.
    Error(String),
}

/// Answers `requests`, one per line, until `requests` ends. The settings `given` override the settings in the
/// requests.
///
/// # Errors
/// If an answer cannot be written. All other failures are sent as answers.
pub fn serve(
    path: &Path,
    given: &Requested,
    runtime_host: &RuntimeHost,
    requests: impl Iterator<Item = String>,
    mut out: impl Write,
) -> std::io::Result<()> {
    let (mut model, mut depths) = (None, Depths::default());
    for line in requests {
        let answer = match serde_json::from_str(&line) {
            Ok(request) => obey(path, given, runtime_host, &mut model, &mut depths, request)
                .unwrap_or_else(|error| WorkerAnswer::Error(error.to_string())),
            Err(error) => WorkerAnswer::Error(format!("invalid request: {error}")),
        };
        writeln!(out, "{}", serde_json::to_string(&answer)?)?;
        out.flush()?;
    }
    Ok(())
}

fn obey(
    path: &Path,
    given: &Requested,
    runtime_host: &RuntimeHost,
    loaded: &mut Option<Arc<Model>>,
    depths: &mut Depths,
    request: WorkerRequest,
) -> Result<WorkerAnswer> {
    let settings = match &request {
        WorkerRequest::Load { settings }
        | WorkerRequest::Measure { settings, .. }
        | WorkerRequest::Check { settings, .. } => settings,
    };
    let settings = Settings::resolve_tuned(given, Some(&requested(settings)?), runtime_host)?;
    if let WorkerRequest::Load { .. } = request {
        *loaded = None;
        let model = model::open(path, &settings, runtime_host)?;
        // This run reads the pages of a mapped model from disk, so that the first measured run does not have to.
        let work = Work { prompt: TEXT_TOKENS as u32, generate: 1, ..Work::default() };
        measure(&model, work, &settings, runtime_host, depths)?;
        *loaded = Some(model);
        return Ok(WorkerAnswer::Loaded);
    }
    let Some(model) = loaded else { return Err(Error::Usage("no model is loaded".to_string())) };
    match request {
        WorkerRequest::Measure { work, .. } => {
            forget_the_peak();
            let sample = measure(model, work, &settings, runtime_host, depths)?;
            // The saved states are subtracted, because only a tuning run keeps them.
            let peak = peak().map(|peak| Bytes(peak.0.saturating_sub(depths.size().0)));
            Ok(WorkerAnswer::Measured { sample, peak })
        }
        WorkerRequest::Check { lead, out, .. } => check(model, &settings, runtime_host, lead, &out),
        WorkerRequest::Load { .. } => Ok(WorkerAnswer::Loaded),
    }
}

/// Times prefill and decode separately, each in a new context after the number of tokens that `work` specifies.
fn measure(
    model: &Arc<Model>,
    work: Work,
    settings: &Settings,
    runtime_host: &RuntimeHost,
    depths: &mut Depths,
) -> Result<Sample> {
    let case = Case { n_prompt: work.prompt, n_gen: work.generate, n_depth: work.depth() };
    let mut context = bench::context(model, bench::Path::Kernel, &case, settings, runtime_host)?;
    let mut random = Random::new(model);
    let time = |start: Instant| bench::duration(start.elapsed());
    let mut sample = Sample {
        prompt: work.prompt,
        prompt_after: work.prompt_after,
        generated: work.generate,
        generated_after: work.generate_after,
        ..Sample::default()
    };
    if work.prompt > 0 {
        if work.prompt_after > 0 {
            let state = depths.state(model, settings, runtime_host, work.depth())?;
            context.restore_first(state, work.prompt_after)?;
        }
        let start = Instant::now();
        bench::prefill(&mut context, &mut random, work.prompt)?;
        sample.prefill_ns = time(start);
    }
    if work.generate > 0 {
        if work.generate_after > 0 {
            let state = depths.state(model, settings, runtime_host, work.depth())?;
            context.restore_first(state, work.generate_after)?;
        }
        let start = Instant::now();
        bench::decode(&mut context, &mut random, work.generate, &mut Vec::new())?;
        sample.decode_ns = time(start);
    }
    Ok(sample)
}

/// Returns the number of tokens that must precede the text for `settings` to affect the output. Only with these tokens
/// can the prompt fill graphs that are larger than the text.
pub fn lead(settings: &Chosen) -> u32 {
    settings.n_ubatch.map_or(0, |tokens| tokens.saturating_add(TEXT_TOKENS as u32))
}

fn check(
    model: &Arc<Model>,
    settings: &Settings,
    runtime_host: &RuntimeHost,
    lead: u32,
    out: &Path,
) -> Result<WorkerAnswer> {
    let mut tokens: Vec<Token> = match model.has_vocabulary() {
        true => model.tokenize(TEXT)?,
        false => Vec::new(),
    };
    let mut random = Random::new(model);
    tokens.resize_with(TEXT_TOKENS, || random.token());
    let case = Case { n_prompt: TEXT_TOKENS as u32, n_gen: GREEDY, n_depth: lead };
    let mut context = bench::context(model, bench::Path::Kernel, &case, settings, runtime_host)?;
    bench::prefill(&mut context, &mut random, lead)?;
    let all = logits(&mut context, &tokens, Feed { step: false, greedy: GREEDY })?;
    std::fs::write(out, all.to_bytes())
        .map_err(|error| Error::Logits(format!("cannot write {}: {error}", out.display())))?;
    Ok(WorkerAnswer::Checked { text: tokens.len() })
}

/// Resets the peak memory, so that later runs do not report the peak of an earlier run. If the kernel cannot reset the
/// peak, the old value remains.
fn forget_the_peak() {
    ProcFolder::this().reset_peak();
}

/// Returns the peak memory of this process since the last reset.
fn peak() -> Option<Bytes> {
    ProcFolder::this().peak_resident().map(Bytes)
}
