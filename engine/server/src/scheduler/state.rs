//! State of the scheduler's thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use build_info::Bytes;
use engine_core::checkpoints::Checkpoints;
use llama::{Batch, Context};

use super::draft_state::Drafts;
use super::pool_state::Pool;
use super::rules::Rules;
use crate::disk_cache::{Disk, LookupAnswer};
use crate::grammar_budget::GrammarBudget;
use crate::job::Job;
use crate::metrics::Metrics;
use crate::queue::Inbox;
use crate::scope::{Owners, Scope};
use crate::slot::{Outbox, RunningRequest, Slot};

/// State of the scheduler.
pub struct Scheduler {
    pub(super) context: Context,
    pub(super) slots: Vec<Slot>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) rules: Rules,
    /// Owners whose prompts may be reused. `None` before the first reload.
    pub(super) owners: Option<Arc<Owners>>,
    pub(super) batch: Batch,
    /// Maximum number of tokens in a batch.
    pub(super) budget: u32,
    /// Number of admissions so far.
    pub(super) admissions: u64,
    /// Requests that were preempted because no cells were free, the oldest request first.
    pub(super) preempted: Vec<RunningRequest>,
    /// Pending events of ended requests.
    pub(super) leaving: Vec<Outbox>,
    /// Disk cache, if enabled.
    pub(super) disk: Option<Disk<Job>>,
    pub(super) found: VecDeque<LookupAnswer<Job>>,
    /// Sum of the delays that each client's grammars have caused.
    pub(super) grammar_budget: GrammarBudget,
    pub(super) seconds_per_prompt_token: Option<f64>,
    pub(super) looked_at_queue: Instant,
    /// State of this scheduler's pool.
    pub(super) pool: Pool,
    /// Index of this scheduler's slots in the snapshots.
    pub(super) snapshot_index: usize,
    pub(super) drafts: Drafts,
    pub(super) checkpoints: Checkpoints<Scope>,
    /// True if a checkpoint did not fit into the configured memory.
    pub(super) checkpoints_too_large: bool,
    /// Number and size of the checkpoints, as this scheduler added them to the metrics.
    pub(super) checkpoints_shown: (usize, Bytes),
}
