//! Pool of a scheduler: its notices, and the thread counts of a batch with several workloads.

use std::sync::Arc;

use llama::Token;

use super::state::Scheduler;
use crate::plan::BatchPart;
use crate::pools::{Notice, SlotPrompt};
use crate::scope::Scope;
use crate::workloads::WorkloadThreads;

impl Scheduler {
    /// Sets the pool's index. If workloads are configured, `own` is the number of threads (decode, prefill) for
    /// requests without a workload.
    #[must_use]
    pub fn in_pool(mut self, index: usize, own: Option<(u32, u32)>) -> Self {
        if let Some((decode, prefill)) = own {
            let before = self.context.threads();
            self.context.set_threads(decode, prefill);
            // The thread pools are large enough for all workloads.
            self.metrics.decode_threads.change(u64::from(before.0), u64::from(decode));
            self.metrics.prefill_threads.change(u64::from(before.1), u64::from(prefill));
            self.pool.set = (decode, prefill);
        }
        self.pool.own = own;
        self.pool.index = index;
        self.pool.shown = vec![None; self.slots.len()];
        self
    }

    /// Posts the free capacity of this pool.
    pub(super) fn post_notice(&mut self) {
        if !self.inbox.has_pools() {
            return;
        }
        let free = self.slots.iter().filter(|slot| slot.run.is_none()).count();
        // Preempted requests and lookups have priority.
        let free = free.saturating_sub(self.preempted.len() + self.looked_for());
        let free = if self.may_take_more() { free } else { 0 };
        let most = self.context.n_ctx() as usize;
        // Maximum length of a prompt that fits, rounded to eighths of the context.
        let room =
            (1..=8).map(|part| most * part / 8).filter(|room| self.has_room_for(*room)).max().unwrap_or(0);
        let notice = Notice { free, room, held: self.pool.shown.iter().flatten().cloned().collect() };
        self.inbox.post(self.pool.index, notice);
    }

    /// Records that slot `at` will hold `prompt`, which belongs to `scope`.
    pub(super) fn show_prompt(&mut self, at: usize, scope: Scope, prompt: &[Token]) {
        if self.inbox.has_pools()
            && let Some(shown) = self.pool.shown.get_mut(at)
        {
            *shown = Some(SlotPrompt { scope, tokens: Arc::from(prompt) });
        }
    }

    /// Records that no request may reuse the tokens of slot `at`.
    pub(super) fn hide_prompt(&mut self, at: usize) {
        if let Some(shown) = self.pool.shown.get_mut(at) {
            *shown = None;
        }
    }

    /// Updates the number of busy slots, to which all pools of the model add.
    pub(super) fn count_busy(&mut self) {
        let busy = self.slots.iter().filter(|slot| slot.run.is_some()).count() as u64;
        self.metrics.slots_busy.change(self.pool.busy, busy);
        self.pool.busy = busy;
    }

    /// Sets the thread counts for a batch of `parts` to the maximum of its requests, so that no request slows down
    /// another.
    pub(super) fn take_threads(&mut self, parts: &[BatchPart]) {
        let Some(own) = self.pool.own else { return };
        let asked = parts.iter().filter_map(|part| self.slots.get(part.slot)?.run.as_ref());
        let threads = WorkloadThreads::most(asked.map(|run| run.job.threads), own);
        if threads != self.pool.set {
            self.context.set_threads(threads.0, threads.1);
            self.drafts.set_threads(threads);
            self.pool.set = threads;
        }
    }
}
