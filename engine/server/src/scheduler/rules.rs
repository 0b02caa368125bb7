//! Rules of the scheduler.

use std::time::Duration;

use build_info::Bytes;
use llama::options::DeviceSampling;
use llama::{Context, PrefixReuse};

use crate::drafts::Drafting;

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
    /// Returns the maximum number of rows of logits in a batch of `slots` slots.
    pub fn rows(&self, slots: u32) -> u32 {
        self.drafts.rows(slots)
    }
}

/// Returns `rules` without the features that `context` does not support.
pub(super) fn possible(rules: Rules, context: &Context) -> Rules {
    Rules { reuse: rules.reuse && context.model().prefix_reuse() != PrefixReuse::Never, ..rules }
}
