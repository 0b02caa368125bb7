//! State of a scheduler's pool.

use crate::pools::SlotPrompt;

/// Index and thread counts of a pool.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// Index of the pool.
    pub index: usize,
    /// Number of rule changes that the scheduler has seen.
    pub rules_seen: u64,
    /// Prompts that the slots hold, for the notices.
    pub(super) shown: Vec<Option<SlotPrompt>>,
    /// Number of busy slots that this pool contributes to the metrics.
    pub(super) busy: u64,
    /// Thread counts of requests without a workload. `None` if no workloads are configured.
    pub(super) own: Option<(u32, u32)>,
    /// Thread counts that are currently set.
    pub(super) set: (u32, u32),
}
