//! Tests of a benchmark, and their samples.

use std::time::Duration;

use engine_core::settings::MAX_CTX;
use llama::Graphs;
use llama::error::{Error, Result};
use measure::GpuUse;

/// Token counts of one test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Number of prompt tokens to evaluate.
    pub n_prompt: u32,
    /// Number of tokens to generate after the prompt.
    pub n_gen: u32,
    /// Number of tokens in the context before the test.
    pub n_depth: u32,
}

impl Case {
    /// Returns the size of the context in tokens.
    ///
    /// # Errors
    /// If `path` cannot run this test.
    pub fn n_ctx(&self, path: Path) -> Result<u32> {
        let &Case { n_prompt, n_gen, n_depth } = self;
        let wrong = |why: String| Err(Error::Usage(why));
        if path == Path::EndToEnd && n_prompt == 0 {
            return wrong("--end-to-end needs a prompt\nhint: use -p or -pg".to_string());
        }
        if path == Path::EndToEnd && n_depth > 0 {
            return wrong(format!(
                "-d {n_depth}: --end-to-end begins with an empty context\nhint: remove -d or --end-to-end"
            ));
        }
        let sum = n_prompt.checked_add(n_gen).and_then(|sum| sum.checked_add(n_depth));
        match sum.filter(|sum| *sum <= MAX_CTX) {
            Some(n_ctx) => Ok(n_ctx),
            None => wrong(format!(
                "cannot test {n_prompt} prompt tokens and {n_gen} generated tokens at depth {n_depth}: \
                together they exceed the largest context ({MAX_CTX} tokens)"
            )),
        }
    }
}

/// Number of samples of a test, with or without a warm-up run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// Number of samples.
    pub samples: u32,
    /// True if a warm-up run that is not measured comes first.
    pub warm_up: bool,
}

/// Measured values of one test.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// Time of each sample in nanoseconds.
    pub ns: Vec<u64>,
    /// Time to the first token in nanoseconds, for each sample on the end-to-end path.
    pub first_token_ns: Vec<u64>,
    /// Time of each generated token in nanoseconds, for all samples in order. On the end-to-end path, the first token
    /// of each sample is excluded, because prefill computes its logits.
    pub token_ns: Vec<u64>,
    /// Graphs for the generated tokens of all samples.
    pub graphs: Graphs,
    /// Start time of the test, as RFC 3339 in UTC.
    pub time: String,
    /// Utilisation of each NVIDIA GPU from the first sample to the last; `None` if no driver is loaded.
    pub gpus: Option<Vec<GpuUse>>,
}

/// Measured path: the kernels alone, or all steps from text to text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// llama-bench's path: random tokens without sampling.
    Kernel,
    /// From prompt text to answer text.
    EndToEnd,
}

impl Path {
    /// Returns the name in the field `anneal_path`.
    pub fn name(self) -> &'static str {
        match self {
            Path::Kernel => "kernel",
            Path::EndToEnd => "end_to_end",
        }
    }
}

pub(crate) fn duration(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
