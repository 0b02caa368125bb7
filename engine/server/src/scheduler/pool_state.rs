//! State of the scheduler as one of several pools.

use crate::pools::SlotPrompt;

/// Of a scheduler: which one it is, and what its threads are set to.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// Its number.
    pub index: usize,
    /// How many changes of the rules it has seen.
    pub rules_seen: u64,
    /// The prompts that its slots hold, where others are told.
    pub(super) shown: Vec<Option<SlotPrompt>>,
    /// Slots that the metrics count as busy because of it.
    pub(super) busy: u64,
    /// Threads where a request names no workload; none where there are no workloads.
    pub(super) own: Option<(u32, u32)>,
    /// What is set now.
    pub(super) set: (u32, u32),
}
