//! The scheduler and the prompt cache on the disk: when it is asked, what is kept there.
//!
//! A prompt of which the disk may hold more than any slot does is looked for before it gets a slot. What a slot holds is
//! written when something else takes its place and it is worth it. Only copying into and out of the context is done on
//! this thread.

use std::time::{Duration, Instant};

use engine_core::cache::{BLOCK, Loaded, PromptCacheRequest};
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::Settings;
use llama::Token;
use llama::error::{Error, Result};

use super::state::Scheduler;
use crate::closing::Closing;
use crate::disk_cache::{Disk, LookupAnswer};
use crate::finish_reason::FinishReason;
use crate::job::Job;
use crate::reuse::choose;
use crate::slot::{RunningRequest, Slot};

/// How long lookups may take once everything has to end now.
const LAST_LOOK: Duration = Duration::from_secs(1);

fn common(one: &[Token], other: &[Token]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

impl Scheduler {
    /// The same with `cache`, if there is one and the model lets: else it says why not, and goes on without.
    ///
    /// # Errors
    /// Where there are no threads for it.
    pub fn with_disk(
        mut self,
        cache: Option<PromptCacheRequest>,
        settings: &Settings,
        runtime_host: &RuntimeHost,
    ) -> Result<Self> {
        let Some(cache) = cache else { return Ok(self) };
        let n_ctx = self.context.n_ctx();
        // Prompts have the same weights as tokens here, whatever the settings say of a split layout.
        match cache.open(self.context.model(), n_ctx, false, settings, runtime_host) {
            Ok((store, key)) => self.disk = Some(Disk::start(store, key, n_ctx, self.metrics.clone())?),
            Err(error) => {
                llama::notice::warn(&error.to_string());
            }
        }
        Ok(self)
    }

    /// Jobs that are looked for, or were found and have no slot yet.
    pub(super) fn looked_for(&self) -> usize {
        self.disk.as_ref().map_or(0, Disk::asked) + self.found.len()
    }

    /// Takes answers, and lets go of jobs that nobody waits for any more.
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

    /// All jobs that are looked for or were found, at the end of everything.
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

    /// Whether there are more free slots than jobs that are looked for. One that was found and has no room is not passed.
    pub(super) fn may_take_more(&self) -> bool {
        let free = self.slots.iter().filter(|slot| slot.run.is_none()).count();
        self.found.is_empty() && free > self.looked_for()
    }

    /// Asks the disk for `job`, if it may hold more of the prompt than a slot does; else gives it back.
    pub(super) fn look_for(&mut self, job: Job) -> Option<Job> {
        let most = job.prompt.len().saturating_sub(1);
        let wanted = self.rules.reuse && job.cache_prompt && most >= BLOCK;
        let Some(disk) = self.disk.as_mut().filter(|_| wanted) else { return Some(job) };
        let own = self.slots.iter().filter(|slot| slot.scope == Some(job.scope));
        let have = own.map(|slot| common(&slot.held, &job.prompt)).max().unwrap_or(0);
        if have + BLOCK > most {
            return Some(job);
        }
        let (scope, prompt) = (job.scope.digest(), job.prompt.clone());
        disk.look_up(job, scope, prompt, have).err()
    }

    /// Begins the next job that was looked for; false where there is none, or no room for it.
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

    fn begin_with(&mut self, job: Job, loaded: Loaded) {
        let choice = choose(&self.held_for(job.scope), &job.prompt, true);
        let keep = loaded.common.min(job.prompt.len() - 1);
        let Some(choice) = choice.filter(|choice| keep >= choice.keep + BLOCK) else {
            // A slot has nearly as much by now.
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
        self.metrics.cache_hits.add(1);
        self.metrics.cache_tokens.add(keep as u64);
        self.admissions += 1;
        self.show_prompt(at, job.scope, &job.prompt);
        let scope = self.lasting(job.scope);
        let slot = &mut self.slots[at];
        (slot.held, slot.scope, slot.saved) = (loaded.tokens, scope, keep);
        slot.held.truncate(keep);
        slot.used = self.admissions;
        job.request_log.began(at, keep as u32);
        slot.run = Some(RunningRequest::new(job, self.admissions, keep as u32));
    }

    fn restore(&mut self, at: usize, loaded: &Loaded, keep: usize) -> Result<()> {
        let sequence = self.slots[at].sequence;
        self.context.restore_sequence(sequence, &loaded.content.state)?;
        let whole = self.context.holds(sequence, loaded.tokens.len());
        if whole && self.context.forget(sequence, keep as u32) {
            return Ok(());
        }
        Err(Error::State { what: "restore", why: "its tokens are not where they should be".to_string() })
    }

    /// Makes room for `more` tokens by emptying slots that nobody uses; false where that is not enough. Cells that are
    /// shared count for each.
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

    /// How many tokens the disk would get that neither it, nor another slot, nor the first `keep` tokens of slot `at`
    /// have; 0 where that is not worth it.
    fn worth_keeping(&self, at: usize, keep: usize) -> usize {
        let Some(disk) = &self.disk else { return 0 };
        let (slot, held) = (&self.slots[at], self.slots[at].held.len());
        // What belongs to nobody is of use to nobody.
        if slot.scope.is_none() {
            return 0;
        }
        let is_other = |(other, state): &(usize, &Slot)| *other != at && state.scope == slot.scope;
        let others = self.slots.iter().enumerate().filter(is_other);
        let others = others.map(|(_, other)| common(&other.held, &slot.held)).max().unwrap_or(0);
        let new = held.saturating_sub(keep.max(slot.saved).max(others));
        if disk.is_worth(new, held, self.seconds_per_prompt_token) { new } else { 0 }
    }

    /// Hands what slot `at` holds to the disk's thread before all but its first `keep` tokens are forgotten, if it is
    /// worth it.
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
        // Nothing may be kept under tokens that are not its own.
        if !self.context.holds(slot.sequence, slot.held.len()) {
            return disk.failed("a prompt is not kept on the disk: the context holds something else");
        }
        match self.context.save_sequence(slot.sequence) {
            Ok(state) => {
                disk.save(scope.digest(), slot.held.clone(), state);
                slot.saved = slot.held.len();
            }
            Err(error) => disk.failed(&format!("a prompt is not kept on the disk: {error}")),
        }
    }

    /// Writes what the slots hold, those first that were used last, until everything has to end.
    pub(super) fn save_all(&mut self) {
        let mut order: Vec<usize> = (0..self.slots.len()).collect();
        order.sort_unstable_by_key(|at| std::cmp::Reverse(self.slots[*at].used));
        let inbox = self.inbox.clone();
        let stop = || inbox.closing() == Closing::Now;
        for at in order {
            if self.worth_keeping(at, 0) == 0 {
                // Or each of two that share a prefix would rely on the other.
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
