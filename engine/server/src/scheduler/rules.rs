//! Rules of the scheduler.

use std::time::Duration;

use build_info::Bytes;
use llama::options::DeviceSampling;
use llama::{Context, PrefixReuse};

use crate::drafts::Drafting;

/// Minimum number of prompt tokens whose log-probabilities one batch can compute. Each takes a row of logits, which
/// is 1 MiB for a vocabulary of 262,144 tokens.
const PROMPT_ROWS: u32 = 16;

/// Rules of the scheduler.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// True if prompts may reuse cached tokens.
    pub reuse: bool,
    /// Memory for checkpoints of prompts.
    pub checkpoint_memory: Bytes,
    /// Time limit of a batch with generating slots, which limits its prompt tokens
    /// ([`stretched`](crate::plan::stretched)).
    pub step: Duration,
    /// Time after which a request ends if its answer is not read.
    pub stall: Duration,
    /// Configuration of speculative decoding.
    pub drafts: Drafting,
    /// Sampling on a device.
    pub on_device: DeviceSampling,
}

impl Rules {
    /// Returns the maximum number of rows of logits in a batch of `slots` slots. A request for the log-probabilities of
    /// its prompt may use the rows that other requests and drafts do not need.
    pub fn rows(&self, slots: u32) -> u32 {
        self.drafts.rows(slots).max(slots.saturating_add(PROMPT_ROWS))
    }
}

/// Returns `rules` without the features that `context` does not support.
pub(super) fn possible(rules: Rules, context: &Context) -> Rules {
    Rules { reuse: rules.reuse && context.model().prefix_reuse() != PrefixReuse::Never, ..rules }
}
