//! Who gets a slot, which one, and what of its cells stays.

use super::super::budget::SharedCharge;
use super::super::job::Job;
use super::super::reuse::{Choice, Held, choose};
use super::super::slot::Run;
use super::Scheduler;

impl Scheduler {
    /// Gives free slots to runs that had to leave theirs, then to jobs that wait.
    pub(super) fn admit(&mut self) {
        self.post_notice();
        while self.slots.iter().any(|slot| slot.run.is_none()) {
            if let Some(run) = self.parked.first() {
                if !self.has_room_for(run.job.prompt.len()) {
                    break;
                }
                let run = self.parked.remove(0);
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

    /// Whether the cells that no running request has will do for `prompt` tokens and some more. Cells that are shared
    /// count for each: at worst it waits.
    pub(super) fn has_room_for(&self, prompt: usize) -> bool {
        /// So that it does not have to leave at once.
        const MORE: usize = 32;
        let running = self.slots.iter().filter_map(|slot| Some((slot, slot.run.as_ref()?)));
        let taken =
            running.map(|(slot, run)| slot.held.len().max(run.job.prompt.len()) + MORE).sum::<usize>();
        taken == 0 || taken + prompt + MORE <= self.context.n_ctx() as usize
    }

    pub(super) fn begin(&mut self, mut job: Job) {
        let Some((at, keep)) = self.slot_for(&job) else { return self.inbox.put_back(job) };
        // It waits no more.
        job.waiting = SharedCharge::default();
        self.admissions += 1;
        self.show_prompt(at, &job.prompt);
        self.slots[at].used = self.admissions;
        job.ticket.began(at, keep);
        self.slots[at].run = Some(Run::new(job, self.admissions, keep));
    }

    fn resume(&mut self, run: Run) {
        match self.slot_for(&run.job) {
            Some((at, _)) => self.slots[at].run = Some(run),
            None => self.parked.insert(0, run),
        }
    }

    /// A slot for `job`, and how many tokens of its prompt it holds.
    fn slot_for(&mut self, job: &Job) -> Option<(usize, u32)> {
        let held: Vec<Held<'_>> = self
            .slots
            .iter()
            .map(|slot| Held { tokens: &slot.held, free: slot.run.is_none(), used: slot.used })
            .collect();
        let choice = choose(&held, &job.prompt, self.rules.reuse && job.cache_prompt)?;
        Some((choice.slot, self.prepare(&choice)))
    }

    /// Makes a slot hold what a prompt shares; says how many tokens that are.
    fn prepare(&mut self, choice: &Choice) -> u32 {
        let sequence = self.slots[choice.slot].sequence;
        self.keep_on_disk(choice.slot, if choice.from == choice.slot { choice.keep } else { 0 });
        let shared = match choice.from == choice.slot {
            true => choice.keep > 0 && self.context.forget(sequence, choice.keep as u32),
            false => {
                let from = self.slots[choice.from].sequence;
                self.slots[choice.slot].held = self.slots[choice.from].held[..choice.keep].to_vec();
                self.slots[choice.slot].saved = self.slots[choice.from].saved;
                self.context.share_prefix(from, sequence, choice.keep as u32)
            }
        };
        if !shared {
            self.empty(choice.slot);
            return 0;
        }
        let slot = &mut self.slots[choice.slot];
        slot.held.truncate(choice.keep);
        self.drafts.trim(sequence, &slot.held);
        slot.saved = slot.saved.min(choice.keep);
        choice.keep as u32
    }

    /// Forgets what slot `at` holds.
    pub(super) fn empty(&mut self, at: usize) {
        self.context.forget(self.slots[at].sequence, 0);
        self.drafts.trim(self.slots[at].sequence, &[]);
        self.slots[at].held.clear();
        self.slots[at].saved = 0;
    }
}
