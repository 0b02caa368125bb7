//! Use of the disk cache by the scheduler: decides when to search the cache and which tokens to write.
//!
//! If the disk may hold more of a prompt than any slot, the prompt is looked up before its job gets a slot. Before a
//! slot's tokens are replaced, they are written to the disk if that saves time. The scheduler's thread only copies
//! states into and out of the context.

use std::time::{Duration, Instant};

use engine_core::cache::checkpointed::{parts, stored};
use engine_core::cache::{BLOCK, Loaded, PromptCacheRequest};
use engine_core::checkpoints::CheckpointState;
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::Settings;
use llama::error::{Error, Result};
use llama::{PrefixReuse, Token};

use super::state::Scheduler;
use crate::budget::SharedCharge;
use crate::closing::Closing;
use crate::disk_cache::{Disk, LookupAnswer};
use crate::finish_reason::FinishReason;
use crate::job::Job;
use crate::scope::Scope;
use crate::slot::{RunningRequest, Slot};

/// Maximum number of checkpoints that are written with a state. The longest checkpoints are written.
const CUTS: usize = 4;

/// Maximum time for pending lookups during shutdown.
const LAST_LOOK: Duration = Duration::from_secs(1);

fn common(one: &[Token], other: &[Token]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

impl Scheduler {
    /// Enables the disk cache. If the model does not support it, shows a warning and continues without the cache.
    ///
    /// # Errors
    /// If the threads of the cache cannot be started.
    pub fn with_disk(
        mut self,
        cache: Option<PromptCacheRequest>,
        settings: &Settings,
        runtime_host: &RuntimeHost,
    ) -> Result<Self> {
        let Some(cache) = cache else { return Ok(self) };
        let n_ctx = self.context.n_ctx();
        match cache.open(self.context.model(), n_ctx, settings, runtime_host) {
            Ok((store, key)) => self.disk = Some(Disk::start(store, key, n_ctx, self.metrics.clone())?),
            Err(error) => {
                llama::notice::warn(&error.to_string());
            }
        }
        Ok(self)
    }

    /// Returns the number of jobs that have no slot yet and whose lookup is pending or has ended.
    pub(super) fn looked_for(&self) -> usize {
        self.disk.as_ref().map_or(0, Disk::asked) + self.found.len()
    }

    /// Receives results of lookups, and drops jobs whose client has disconnected.
    pub(super) fn look_at_disk(&mut self) {
        let Some(disk) = &mut self.disk else { return };
        self.found.extend(std::iter::from_fn(|| disk.answer()));
        let now = Instant::now();
        for answer in std::mem::take(&mut self.found) {
            match (answer.job.is_abandoned(), answer.job.deadline <= now) {
                (true, _) => self.metrics.abandoned.add(1),
                (false, true) => self.tell_unstarted(&answer.job, FinishReason::Deadline),
                (false, false) => self.found.push_back(answer),
            }
        }
    }

    /// Returns all jobs whose lookup is pending or has ended, for the shutdown.
    pub(super) fn stop_looking(&mut self) -> Vec<Job> {
        let mut jobs: Vec<Job> = self.found.drain(..).map(|answer| answer.job).collect();
        let start = Instant::now();
        while let Some(disk) = self.disk.as_mut().filter(|disk| disk.asked() > 0) {
            match disk.answer() {
                Some(answer) => jobs.push(answer.job),
                None if start.elapsed() > LAST_LOOK => break,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        jobs
    }

    /// True if another lookup may start: free slots outnumber lookups, and no job is waiting for room after its lookup.
    /// A job that waits for room cannot be overtaken.
    pub(super) fn may_take_more(&self) -> bool {
        let free = self.slots.iter().filter(|slot| slot.run.is_none()).count();
        self.found.is_empty() && free > self.looked_for()
    }

    /// Starts a lookup for `job` if the disk may hold more of its prompt than any slot. Otherwise returns the job.
    pub(super) fn look_for(&mut self, job: Job) -> Option<Job> {
        let most = job.prompt.len().saturating_sub(1);
        let wanted = self.rules.reuse && job.cache_prompt && most >= BLOCK;
        if !wanted || self.disk.is_none() {
            return Some(job);
        }
        let have = self.choice_for(&job).map_or(0, |choice| choice.keep);
        if have + BLOCK > most {
            return Some(job);
        }
        let Some(disk) = &mut self.disk else { return Some(job) };
        let (scope, prompt) = (job.scope.digest(), job.prompt.clone());
        disk.look_up(job, scope, prompt, have).err()
    }

    /// Starts the next job whose lookup has ended. Returns false if no such job exists, or if it does not fit.
    pub(super) fn begin_found(&mut self) -> bool {
        let Some(next) = self.found.front() else { return false };
        if !self.has_room_for(next.job.prompt.len()) {
            return false;
        }
        let Some(LookupAnswer { job, loaded, .. }) = self.found.pop_front() else { return false };
        match loaded {
            Some(loaded) => self.begin_with(job, loaded),
            None => self.begin(job),
        }
        true
    }

    fn begin_with(&mut self, mut job: Job, loaded: Loaded) {
        let choice = self.choice_for(&job);
        let most = loaded.common.min(job.prompt.len() - 1);
        let keep = self.usable(&loaded, most);
        let Some(choice) = choice.filter(|choice| keep >= choice.keep + BLOCK) else {
            // A slot now holds nearly as much of the prompt as the disk.
            return self.begin(job);
        };
        let at = choice.slot;
        self.keep_on_disk(at, 0);
        self.empty(at);
        if !self.free_cells(loaded.tokens.len()) {
            return self.begin(job);
        }
        if let Err(error) = self.restore(at, &loaded, keep) {
            self.empty(at);
            if let Some(disk) = &self.disk {
                disk.refused(&loaded, error.to_string());
            }
            return self.begin(job);
        }
        // The request has a slot now, so its bytes are no longer charged.
        job.waiting = SharedCharge::default();
        self.take_checkpoints(&loaded, keep, job.scope);
        self.metrics.cache_hits.add(1);
        self.metrics.cache_tokens.add(keep as u64);
        self.admissions += 1;
        self.show_prompt(at, job.scope, &job.prompt);
        let scope = self.lasting(job.scope);
        let pauses = self.pauses(&job);
        let slot = &mut self.slots[at];
        slot.pauses = pauses;
        (slot.held, slot.scope, slot.saved) = (loaded.tokens, scope, keep);
        slot.held.truncate(keep);
        slot.used = self.admissions;
        job.request_log.began(at, keep as u32);
        slot.run = Some(RunningRequest::new(job, self.admissions, keep as u32));
    }

    /// Adds the checkpoints of `loaded` up to its first `keep` tokens to the memory, where other prompts of `scope` can
    /// find them.
    fn take_checkpoints(&mut self, loaded: &Loaded, keep: usize, scope: Scope) {
        if !self.saves_checkpoints() {
            return;
        }
        let Some(scope) = self.lasting(scope) else { return };
        let Some((_, cuts)) = parts(self.context.model(), &loaded.content.state) else { return };
        for cut in cuts.into_iter().filter(|cut| cut.tokens <= keep) {
            let tokens = &loaded.tokens[..cut.tokens];
            if !self.checkpoints.contains(scope, tokens) {
                self.add_checkpoint(scope, tokens.to_vec(), cut.state.to_vec());
            }
        }
    }

    /// Returns how many of the first `most` tokens of `loaded` can be restored.
    fn usable(&self, loaded: &Loaded, most: usize) -> usize {
        let model = self.context.model();
        if model.prefix_reuse() == PrefixReuse::AnyToken {
            return most;
        }
        let cuts = parts(model, &loaded.content.state).map(|(_, cuts)| cuts);
        let ends = cuts.into_iter().flatten().map(|cut| cut.tokens).chain([loaded.tokens.len()]);
        ends.filter(|end| *end <= most).max().unwrap_or(0)
    }

    /// Restores the first `keep` tokens of `loaded` into slot `at`.
    fn restore(&mut self, at: usize, loaded: &Loaded, keep: usize) -> Result<()> {
        let failed = |why: &str| Err(Error::State { what: "restore", why: why.to_string() });
        let sequence = self.slots[at].sequence;
        let Some((state, cuts)) = parts(self.context.model(), &loaded.content.state) else {
            return failed("its checkpoints have wrong lengths");
        };
        self.context.restore_sequence(sequence, state)?;
        if !self.context.holds(sequence, loaded.tokens.len()) {
            return failed("its tokens are at the wrong positions");
        }
        match cuts.iter().find(|cut| cut.tokens == keep) {
            Some(cut) if keep < loaded.tokens.len() => {
                self.context.restore_checkpoint(sequence, cut.state, keep)
            }
            _ if self.context.forget(sequence, keep as u32) => Ok(()),
            _ => failed("its last tokens cannot be removed"),
        }
    }

    /// Frees cells for `more` tokens by emptying idle slots. Returns false if the cells do not suffice. Shared cells
    /// are counted several times.
    fn free_cells(&mut self, more: usize) -> bool {
        loop {
            let taken: usize = self.slots.iter().map(|slot| slot.held.len()).sum();
            if taken + more <= self.context.n_ctx() as usize {
                return true;
            }
            let idle = self.slots.iter().enumerate();
            let idle = idle.filter(|(_, slot)| slot.run.is_none() && !slot.held.is_empty());
            let Some((at, _)) = idle.min_by_key(|(_, slot)| slot.used) else { return false };
            self.keep_on_disk(at, 0);
            self.empty(at);
        }
    }

    /// Returns the number of tokens after the first `keep` tokens of slot `at` that only this slot holds: neither the
    /// disk nor another slot has them. 0 if writing them would not save time.
    fn worth_keeping(&self, at: usize, keep: usize) -> usize {
        let Some(disk) = &self.disk else { return 0 };
        let (slot, held) = (&self.slots[at], self.slots[at].held.len());
        // Tokens without a scope cannot be reused.
        if slot.scope.is_none() {
            return 0;
        }
        let is_other = |(other, state): &(usize, &Slot)| *other != at && state.scope == slot.scope;
        let others = self.slots.iter().enumerate().filter(is_other);
        let others = match self.context.model().prefix_reuse() {
            PrefixReuse::AnyToken => others.map(|(_, other)| common(&other.held, &slot.held)).max(),
            // Another slot cannot be truncated to the common tokens.
            _ => None,
        };
        let others = others.unwrap_or(0);
        let new = held.saturating_sub(keep.max(slot.saved).max(others));
        if disk.is_worth(new, held, self.seconds_per_prompt_token) { new } else { 0 }
    }

    /// Queues the tokens of slot `at` for writing, if that saves time. Call this before the tokens after the first
    /// `keep` are dropped.
    pub(super) fn keep_on_disk(&mut self, at: usize, keep: usize) {
        let worth = self.worth_keeping(at, keep) > 0;
        if worth && self.disk.as_ref().is_some_and(Disk::has_room) {
            self.hand_over(at);
        }
    }

    fn hand_over(&mut self, at: usize) {
        let Some(disk) = &mut self.disk else { return };
        let slot = &mut self.slots[at];
        let Some(scope) = slot.scope else { return };
        // A state must never be stored under the wrong tokens.
        if !self.context.holds(slot.sequence, slot.held.len()) {
            return disk.failed("cannot write a prompt to the disk cache: the context holds other tokens");
        }
        match self.context.save_sequence(slot.sequence) {
            Ok(state) => {
                let mut cuts: Vec<CheckpointState<'_>> = self.checkpoints.of(scope, &slot.held).collect();
                cuts.sort_unstable_by_key(|cut| cut.tokens);
                let last = cuts.len().saturating_sub(CUTS);
                let state = stored(self.context.model(), state, &cuts[last..]);
                disk.save(scope.digest(), slot.held.clone(), state);
                slot.saved = slot.held.len();
            }
            Err(error) => disk.failed(&format!("cannot write a prompt to the disk cache: {error}")),
        }
    }

    /// Writes the tokens of all slots, the most recently used slot first, until the shutdown cancels all work.
    pub(super) fn save_all(&mut self) {
        let mut order: Vec<usize> = (0..self.slots.len()).collect();
        order.sort_unstable_by_key(|at| std::cmp::Reverse(self.slots[*at].used));
        let inbox = self.inbox.clone();
        let stop = || inbox.closing() == Closing::Now;
        for at in order {
            if self.worth_keeping(at, 0) == 0 {
                // The slot is emptied. Otherwise, two slots that share a prefix would each rely on the other to write
                // the prefix.
                self.slots[at].held.clear();
                continue;
            }
            if !self.disk.as_ref().is_some_and(|disk| disk.wait_for_room(stop)) {
                return;
            }
            self.hand_over(at);
        }
        if let Some(disk) = &self.disk {
            disk.wait_for_writes(stop);
        }
    }
}
