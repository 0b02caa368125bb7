//! Assignment of slots: selects a job, its slot, and the cells to keep in the slot.

use std::sync::Arc;

use engine_core::checkpoints;
use llama::PrefixReuse;

use super::super::budget::SharedCharge;
use super::super::job::Job;
use super::super::reuse::{SlotChoice, SlotTokens, choose};
use super::super::scope::{Owners, Scope};
use super::super::slot::RunningRequest;
use super::state::Scheduler;

impl Scheduler {
    /// Gives free slots to preempted requests first, then to waiting jobs.
    pub(super) fn admit(&mut self) {
        self.post_notice();
        while self.slots.iter().any(|slot| slot.run.is_none()) {
            if let Some(run) = self.preempted.first() {
                if !self.has_room_for(run.job.prompt.len()) {
                    break;
                }
                let run = self.preempted.remove(0);
                self.resume(run);
                continue;
            }
            if self.begin_found() {
                continue;
            }
            if !self.may_take_more() {
                break;
            }
            let fits =
                |job: &Job| job.is_abandoned() || (!job.waits() && self.has_room_for(job.prompt.len()));
            let Some(job) = self.inbox.pop(self.pool.index, fits) else { break };
            if job.is_abandoned() {
                self.metrics.abandoned.add(1);
                continue;
            }
            if let Some(job) = self.look_for(job) {
                self.begin(job);
            }
        }
        self.count_busy();
    }

    /// True if the cells that no running request uses suffice for `prompt` tokens and a reserve. Shared cells are
    /// counted several times, so a job may wait longer than necessary.
    pub(super) fn has_room_for(&self, prompt: usize) -> bool {
        /// Number of reserve cells per request, so that a new request is not preempted immediately.
        const MORE: usize = 32;
        let running = self.slots.iter().filter_map(|slot| Some((slot, slot.run.as_ref()?)));
        let taken =
            running.map(|(slot, run)| slot.held.len().max(run.job.prompt.len()) + MORE).sum::<usize>();
        taken == 0 || taken + prompt + MORE <= self.context.n_ctx() as usize
    }

    pub(super) fn begin(&mut self, mut job: Job) {
        let Some((at, keep)) = self.slot_for(&job) else { return self.inbox.put_back(job) };
        // The request has a slot now, so its bytes are no longer charged.
        job.waiting = SharedCharge::default();
        self.admissions += 1;
        self.show_prompt(at, job.scope, &job.prompt);
        self.slots[at].used = self.admissions;
        job.request_log.began(at, keep);
        self.slots[at].run = Some(RunningRequest::new(job, self.admissions, keep));
    }

    fn resume(&mut self, run: RunningRequest) {
        match self.slot_for(&run.job) {
            Some((at, _)) => self.slots[at].run = Some(run),
            None => self.preempted.insert(0, run),
        }
    }

    /// Prepares a slot for `job`. Returns the slot and the number of prompt tokens that it holds.
    fn slot_for(&mut self, job: &Job) -> Option<(usize, u32)> {
        let choice = self.choice_for(job)?;
        let keep = self.prepare(&choice, job);
        let pauses = self.pauses(job);
        let scope = self.lasting(job.scope);
        let slot = &mut self.slots[choice.slot];
        (slot.pauses, slot.scope) = (pauses, scope);
        Some((choice.slot, keep))
    }

    /// Returns the tokens that each slot holds, as a request of `scope` may see them.
    fn held_for(&self, scope: Scope) -> Vec<SlotTokens<'_>> {
        let held = self.slots.iter().map(|slot| SlotTokens {
            tokens: &slot.held,
            own: slot.scope == Some(scope),
            free: slot.run.is_none(),
            used: slot.used,
        });
        held.collect()
    }

    /// Returns `scope`. `None` if its owner's key was removed after the request arrived, so that no request reuses
    /// the prompt.
    pub(super) fn lasting(&self, scope: Scope) -> Option<Scope> {
        Some(scope).filter(|scope| self.owners.as_ref().is_none_or(|owners| owners.has(scope.owner())))
    }

    /// Drops the prompts of clients that are not in `owners`. Prompts of running requests stay until their slot is
    /// reused, but no other request may use them.
    pub(super) fn keep_only(&mut self, owners: Arc<Owners>) {
        self.checkpoints.retain(|scope| owners.has(scope.owner()));
        self.owners = Some(owners);
        for at in 0..self.slots.len() {
            let Some(scope) = self.slots[at].scope else { continue };
            if self.lasting(scope).is_some() {
                continue;
            }
            match self.slots[at].run.is_some() {
                true => self.slots[at].scope = None,
                false => self.empty(at),
            }
            self.hide_prompt(at);
        }
    }

    /// Returns the positions in the prompt at which checkpoints are saved, as numbers of tokens.
    pub(super) fn pauses(&self, job: &Job) -> Vec<usize> {
        match self.saves_checkpoints() && job.cache_prompt {
            true => checkpoints::positions(self.context.model(), &job.prompt, &job.message_ends),
            false => Vec::new(),
        }
    }

    /// Chooses a slot for `job`, and the tokens to reuse. `None` if no slot is free.
    pub(super) fn choice_for(&self, job: &Job) -> Option<SlotChoice> {
        let held = self.held_for(job.scope);
        if !(self.rules.reuse && job.cache_prompt) {
            return choose(&held, &job.prompt, |_, _| 0);
        }
        let reuse = self.context.model().prefix_reuse();
        if reuse == PrefixReuse::AnyToken {
            return choose(&held, &job.prompt, |common, _| common);
        }
        let most = job.prompt.len().saturating_sub(1);
        let known = self.checkpoints.of(job.scope, &job.prompt[..most]);
        let lengths: Vec<usize> = known.map(|cut| cut.tokens).collect();
        let up_to = |most| lengths.iter().copied().filter(|length| *length <= most).max().unwrap_or(0);
        let choice = choose(&held, &job.prompt, |common, whole| if whole { common } else { up_to(common) })?;
        // If the model's memory consists only of a state, a checkpoint does not need the tokens of a slot.
        match up_to(most) {
            longest if reuse == PrefixReuse::StateAlone && longest > choice.keep => {
                let oldest = choose(&held, &job.prompt, |_, _| 0)?;
                Some(SlotChoice { keep: longest, ..oldest })
            }
            _ => Some(choice),
        }
    }

    /// Prepares the chosen slot and its prefix for `job`. Returns the number of tokens that the slot then holds.
    fn prepare(&mut self, choice: &SlotChoice, job: &Job) -> u32 {
        let sequence = self.slots[choice.slot].sequence;
        let kept = &job.prompt[..choice.keep];
        let whole = self.slots[choice.from].held == kept;
        let stays = choice.from == choice.slot && self.slots[choice.slot].held.starts_with(kept);
        self.keep_on_disk(choice.slot, if stays { choice.keep } else { 0 });
        if choice.from == choice.slot && !stays {
            // The checkpoint and the slot's tokens belong to different texts.
            self.empty(choice.slot);
        }
        let shared = match choice.from == choice.slot {
            true => choice.keep > 0,
            false => {
                let from = self.slots[choice.from].sequence;
                if self.slots[choice.slot].scope != self.slots[choice.from].scope {
                    // The draft model also must not reuse another client's text.
                    self.drafts.trim(sequence, &[]);
                }
                self.slots[choice.slot].saved = self.slots[choice.from].saved;
                self.context.share_prefix(from, sequence, choice.keep as u32)
            }
        };
        if !shared || !self.cut(sequence, job.scope, kept, whole) {
            self.empty(choice.slot);
            return 0;
        }
        let slot = &mut self.slots[choice.slot];
        slot.held = kept.to_vec();
        self.drafts.trim(sequence, &slot.held);
        slot.saved = slot.saved.min(choice.keep);
        choice.keep as u32
    }

    /// Empties slot `at`.
    pub(super) fn empty(&mut self, at: usize) {
        self.context.forget(self.slots[at].sequence, 0);
        self.drafts.trim(self.slots[at].sequence, &[]);
        self.slots[at].held.clear();
        self.slots[at].scope = None;
        self.slots[at].saved = 0;
    }
}
