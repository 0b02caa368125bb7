//! Tests, and the samples of one.

use std::time::Duration;

use engine_core::sequence::Sequence;
use engine_core::settings::MAX_CTX;
use engine_core::split::Session;
use llama::Graphs;
use llama::error::{Error, Result};
use measure::GpuUse;

/// One test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Prompt tokens to evaluate.
    pub n_prompt: u32,
    /// Tokens to generate after them.
    pub n_gen: u32,
    /// Tokens that are in the context already.
    pub n_depth: u32,
}

impl Case {
    /// Tokens that the context must hold. An error for a test that `path` cannot run.
    pub fn n_ctx(&self, path: Path) -> Result<u32> {
        let &Case { n_prompt, n_gen, n_depth } = self;
        let wrong = |why: String| Err(Error::Usage(why));
        if path == Path::EndToEnd && n_prompt == 0 {
            return wrong("--end-to-end needs a prompt: give -p or -pg".to_string());
        }
        if path == Path::EndToEnd && n_depth > 0 {
            return wrong(format!(
                "-d {n_depth}: --end-to-end begins with an empty context; leave -d out, or --end-to-end"
            ));
        }
        let sum = n_prompt.checked_add(n_gen).and_then(|sum| sum.checked_add(n_depth));
        match sum.filter(|sum| *sum <= MAX_CTX) {
            Some(n_ctx) => Ok(n_ctx),
            None => wrong(format!(
                "a test of {n_prompt} prompt tokens and {n_gen} generated ones at depth {n_depth}: a context has at \
                 most {MAX_CTX} tokens"
            )),
        }
    }
}

/// How often a test is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// Samples.
    pub samples: u32,
    /// Whether an unmeasured run comes first.
    pub warm_up: bool,
}

/// What one test measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// Nanoseconds of each sample.
    pub ns: Vec<u64>,
    /// Nanoseconds until the first token of each sample; end to end only.
    pub first_token_ns: Vec<u64>,
    /// Nanoseconds of each generated token, those of all samples in order; end to end the first of each is not among
    /// them, since it comes out of the prefill.
    pub token_ns: Vec<u64>,
    /// Whether prompts were evaluated with weights of their own.
    pub split: bool,
    /// Nanoseconds that handing the sequence over took in each sample; empty where it was not handed over.
    pub hand_over_ns: Vec<u64>,
    /// Graphs of the generated tokens of all samples.
    pub graphs: Graphs,
    /// When it began, RFC 3339 in UTC.
    pub time: String,
    /// What each NVIDIA GPU did from the first sample to the last; `None` where no driver is loaded.
    pub gpus: Option<Vec<GpuUse>>,
}

impl Samples {
    /// Adds what one sample in `session` had of a split layout.
    pub(crate) fn note_split(&mut self, session: &mut Session) {
        self.split |= session.is_split();
        self.hand_over_ns.extend(session.take_hand_over().map(|handed| duration(handed.time)));
    }
}

/// Which path was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// llama-bench's: random tokens, nothing sampled.
    Kernel,
    /// From text to text.
    EndToEnd,
}

impl Path {
    /// As it stands in `anneal_path`.
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
