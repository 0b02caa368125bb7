//! Times the parts of the work other than prefill and decode: tokenising, sampling and loading.

use std::fmt;
use std::path::Path as FilePath;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::Settings;
use gguf::GgufFile;
use llama::Model;
use llama::error::{Error, Result};
use sampling::Chain;

use super::case::{Case, Path, Repeat, Samples};
use super::kernel::{context, nanoseconds};
use super::record::utc;

/// Minimum number of bytes that one sample of [`Part::Tokenize`] or [`Part::Detokenize`] processes. This takes about
/// ten milliseconds, so the clock's resolution does not matter.
const TEXT_BYTES: usize = 64 << 10;

/// Number of tokens that one sample of [`Part::Sample`] or [`Part::Greedy`] chooses.
const CHOICES: u32 = 64;

/// Number of loads in one sample of [`Part::Gguf`]; a load takes milliseconds.
const READS: u32 = 4;

/// Part of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Evaluating a prompt of random tokens.
    Prefill,
    /// Evaluating tokens one by one.
    Decode,
    /// Converting text to tokens.
    Tokenize,
    /// Converting tokens to text.
    Detokenize,
    /// Choosing a token with the default chain: top-k, top-p, min-p, temperature, random draw.
    Sample,
    /// Choosing the most likely token.
    Greedy,
    /// Loading the model, with its file in the page cache.
    Load,
    /// Loading the model's vocabulary only.
    Vocab,
    /// Reading and checking the file's header, as this program does before llama.cpp loads the file.
    Gguf,
}

impl Part {
    /// All parts, in the order of the report.
    pub const ALL: [Part; 9] = [
        Part::Prefill,
        Part::Decode,
        Part::Tokenize,
        Part::Detokenize,
        Part::Sample,
        Part::Greedy,
        Part::Load,
        Part::Vocab,
        Part::Gguf,
    ];

    /// Returns the part's command-line name.
    pub fn name(self) -> &'static str {
        match self {
            Part::Prefill => "prefill",
            Part::Decode => "decode",
            Part::Tokenize => "tokenize",
            Part::Detokenize => "detokenize",
            Part::Sample => "sample",
            Part::Greedy => "greedy",
            Part::Load => "load",
            Part::Vocab => "vocab",
            Part::Gguf => "gguf",
        }
    }

    /// Returns the unit in which this part's work is counted.
    pub fn unit(self) -> &'static str {
        match self {
            Part::Prefill | Part::Decode | Part::Detokenize | Part::Sample | Part::Greedy => "tokens",
            Part::Tokenize => "bytes",
            Part::Load | Part::Vocab | Part::Gguf => "loads",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Part::ALL.into_iter().find(|part| part.name() == text).ok_or_else(|| {
            let names = Part::ALL.map(Part::name).join(", ");
            format!("unknown part {text:?}: use one or more of {names}")
        })
    }
}

/// Times `part`, which must be a loading part, for the file at `path`. `load` loads the whole model.
///
/// # Errors
/// If the model cannot be loaded.
pub fn loading(
    part: Part,
    path: &FilePath,
    settings: &Settings,
    repeat: Repeat,
    load: &dyn Fn() -> Result<Arc<Model>>,
) -> Result<(u64, Samples)> {
    let times = if part == Part::Gguf { READS } else { 1 };
    engine_core::model::check_file(path, settings)?;
    let samples = sampled(repeat, || {
        for _ in 0..times {
            match part {
                Part::Gguf => drop(GgufFile::open(path)?),
                Part::Vocab => {
                    let options = llama::ModelOptions { vocab_only: true, ..settings.model_options() };
                    drop(Model::load(path, &options)?);
                }
                _ => drop(load()?),
            }
        }
        Ok(())
    })?;
    Ok((u64::from(times), samples))
}

/// Times tokenising. `text` is repeated until a sample is large enough. Also returns the number of bytes in a sample.
///
/// # Errors
/// If the text cannot be tokenised.
pub fn tokenize(model: &Model, text: &str, repeat: Repeat) -> Result<(u64, Samples)> {
    let times = passes(text)?;
    let samples = sampled(repeat, || {
        for _ in 0..times {
            std::hint::black_box(model.tokenize(text)?);
        }
        Ok(())
    })?;
    Ok(((times * text.len()) as u64, samples))
}

/// Times converting the tokens of `text` to text. Also returns the number of tokens in a sample.
///
/// # Errors
/// If the text cannot be tokenised, or a token cannot be converted to text.
pub fn detokenize(model: &Model, text: &str, repeat: Repeat) -> Result<(u64, Samples)> {
    let times = passes(text)?;
    let tokens = model.tokenize(text)?;
    let mut bytes = Vec::with_capacity(text.len() + 64);
    let samples = sampled(repeat, || {
        for _ in 0..times {
            bytes.clear();
            for &token in &tokens {
                model.piece(token, &mut bytes)?;
            }
            std::hint::black_box(&bytes);
        }
        Ok(())
    })?;
    Ok(((times * tokens.len()) as u64, samples))
}

fn passes(text: &str) -> Result<usize> {
    if text.is_empty() {
        return Err(Error::Usage("--text: the file is empty\nhint: choose a file with text".to_string()));
    }
    Ok(TEXT_BYTES.div_ceil(text.len()))
}

/// Times the choice of tokens from the logits after `text`. The logits are the same each time, so that two builds do
/// the same work. Also returns the number of tokens in a sample.
///
/// # Errors
/// If evaluation or sampling fails.
pub fn sample(
    model: &Arc<Model>,
    part: Part,
    text: &str,
    settings: &Settings,
    runtime_host: &RuntimeHost,
    repeat: Repeat,
) -> Result<(u64, Samples)> {
    // A few tokens are enough to get logits.
    const PROMPT: usize = 16;
    let case = Case { n_prompt: PROMPT as u32, n_gen: 1, n_depth: 0 };
    let mut context = context(model, Path::Kernel, &case, settings, runtime_host)?;
    let mut prompt = model.tokenize(text)?;
    prompt.truncate(PROMPT);
    context.decode(&prompt)?;
    context.synchronize();
    let mut options = settings.sampling_options().with_seed(0);
    if part == Part::Greedy {
        options.make_greedy();
    }
    let samples = sampled(repeat, || {
        let mut chain = Chain::new(&options, model)?;
        for _ in 0..CHOICES {
            std::hint::black_box(chain.sample(&mut context, -1)?);
        }
        Ok(())
    })?;
    Ok((u64::from(CHOICES), samples))
}

/// Runs `work` once for each sample, after an unmeasured run if requested.
fn sampled(repeat: Repeat, mut work: impl FnMut() -> Result<()>) -> Result<Samples> {
    let mut samples = Samples { time: utc(SystemTime::now()), ..Samples::default() };
    if repeat.warm_up {
        work()?;
    }
    for _ in 0..repeat.samples {
        let start = Instant::now();
        work()?;
        samples.ns.push(nanoseconds(start));
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found_by_their_names() {
        for part in Part::ALL {
            assert_eq!(part.name().parse(), Ok(part));
        }
        assert!("tokenise".parse::<Part>().is_err_and(|why| why.contains("tokenize, detokenize")));
    }
}
