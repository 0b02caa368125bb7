//! Rules that the scheduler works by.

use std::time::Duration;

use llama::Context;
use llama::options::DeviceSampling;

use crate::drafts::Drafting;

/// How the scheduler works.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Whether prompts may begin with what is in the cache.
    pub reuse: bool,
    /// How long a batch may take in which anyone generates, as far as prompts make it long ([`stretched`](crate::plan::stretched)).
    pub step: Duration,
    /// How long a reader may be behind before its request ends.
    pub stall: Duration,
    /// Speculative decoding.
    pub drafts: Drafting,
    /// Whether a device may choose tokens.
    pub on_device: DeviceSampling,
}

impl Rules {
    /// Rows of logits that a batch of `slots` slots may ask for.
    pub fn rows(&self, slots: u32) -> u32 {
        self.drafts.rows(slots)
    }
}

/// `rules` as far as `context` can work by them.
pub(super) fn possible(rules: Rules, context: &Context) -> Rules {
    Rules { reuse: rules.reuse && context.model().has_plain_cache(), ..rules }
}
