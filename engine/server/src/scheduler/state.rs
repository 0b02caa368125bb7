//! State of the scheduler's thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use llama::{Batch, Context};

use super::draft_state::Drafts;
use super::pool_state::Pool;
use super::rules::Rules;
use crate::disk_cache::{Disk, LookupAnswer};
use crate::grammar_budget::GrammarBudget;
use crate::job::Job;
use crate::metrics::Metrics;
use crate::queue::Inbox;
use crate::scope::Owners;
use crate::slot::{Outbox, RunningRequest, Slot};

/// The thread's state.
pub struct Scheduler {
    pub(super) context: Context,
    pub(super) slots: Vec<Slot>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) rules: Rules,
    /// Owners of prompts that may be used; `None` while the first configuration is in force.
    pub(super) owners: Option<Arc<Owners>>,
    pub(super) batch: Batch,
    /// Tokens of a batch.
    pub(super) budget: u32,
    /// Counts admissions.
    pub(super) admissions: u64,
    /// Requests that were preempted for want of cells, the oldest first.
    pub(super) preempted: Vec<RunningRequest>,
    /// Ends that readers have yet to take, of runs that are over.
    pub(super) leaving: Vec<Outbox>,
    /// The prompt cache on the disk, if there is one, and what it has found.
    pub(super) disk: Option<Disk<Job>>,
    pub(super) found: VecDeque<LookupAnswer<Job>>,
    /// Time for which clients' grammars have kept others waiting.
    pub(super) grammar_budget: GrammarBudget,
    pub(super) seconds_per_prompt_token: Option<f64>,
    pub(super) looked_at_queue: Instant,
    /// What several contexts of a model, and several workloads, need.
    pub(super) pool: Pool,
    /// Its index in the snapshots of slots.
    pub(super) snapshot_index: usize,
    pub(super) drafts: Drafts,
}
