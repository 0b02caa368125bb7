//! Scheduler: the one thread that owns the context. It takes jobs, plans and evaluates batches, samples tokens, and
//! sends events.
//!
//! The scheduler never waits for a client. Events that a client does not read stay in its slot, and the slot pauses.

mod admit;
mod checkpoint;
mod disk;
mod draft_state;
mod drafts;
mod pool;
mod pool_state;
pub mod rules;
mod score;
mod state;

pub use self::state::Scheduler;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use build_info::Bytes;
use engine_core::checkpoints::Checkpoints;
use engine_core::generate::has_nan;
use llama::error::{Error, Result};
use llama::{Batch, Context, Decoded, thread_time};

use self::draft_state::Drafts;
use self::pool_state::Pool;
use self::rules::{Rules, possible};
use self::score::ScoreRow;
use super::client::Client;
use super::closing::Closing;
use super::done::Done;
use super::finish_reason::FinishReason;
use super::grammar_budget::{self, GrammarBudget};
use super::job::{Job, JobEvent};
use super::metrics::Metrics;
use super::plan::{Active, BatchPart, plan, prefill_beside_decode, stretched};
use super::queue::Inbox;
use super::slot::{RunningRequest, Slot, unstarted};
use crate::log;

/// Interval between checks of slow readers while the scheduler has no other work.
const STALLED: Duration = Duration::from_millis(2);

/// Maximum time to sleep when idle. A new job wakes the thread earlier.
const IDLE: Duration = Duration::from_millis(500);

/// Interval between checks of waiting jobs for disconnected clients and timeouts.
const QUEUE: Duration = Duration::from_millis(20);

impl Scheduler {
    /// Creates a scheduler for the sequences of `context`.
    ///
    /// # Errors
    /// If a batch is too small for the number of slots.
    pub fn new(context: Context, inbox: Arc<Inbox>, metrics: Arc<Metrics>, rules: Rules) -> Result<Self> {
        let slots = context.sequences();
        // A batch is limited to one graph, because a larger batch would only delay generating slots.
        let budget = context.n_ubatch().max(slots + 1);
        if budget > context.n_batch() {
            return Err(Error::Usage(format!(
                "a batch of {} tokens is too small for {slots} slots: it needs room for one token per slot \
                and for part of a prompt\nhint: raise -b above {slots}, or use fewer slots",
                context.n_batch()
            )));
        }
        // All pools of a model add to the same value.
        metrics.slots.add(u64::from(slots));
        let (decode, prefill) = context.threads();
        metrics.decode_threads.add(u64::from(decode));
        metrics.prefill_threads.add(u64::from(prefill));
        let rules = possible(rules, &context);
        Ok(Scheduler {
            slots: (0..slots).map(Slot::new).collect(),
            snapshot_index: metrics.slot_snapshots.add_scheduler(),
            drafts: Drafts::new(&context),
            checkpoints: Checkpoints::default(),
            checkpoints_too_large: false,
            checkpoints_shown: (0, Bytes(0)),
            context,
            inbox,
            metrics,
            rules,
            owners: None,
            batch: Batch::default(),
            budget,
            admissions: 0,
            preempted: Vec::new(),
            leaving: Vec::new(),
            disk: None,
            found: VecDeque::new(),
            grammar_budget: GrammarBudget::default(),
            seconds_per_prompt_token: None,
            looked_at_queue: Instant::now(),
            pool: Pool::default(),
        })
    }

    /// Runs until the inbox is closed and all work is done.
    pub fn run(mut self) {
        loop {
            let closing = self.inbox.closing();
            if closing == Closing::Now {
                return self.end_all();
            }
            if let Some((rules, owners)) = self.inbox.new_rules(&mut self.pool.rules_seen) {
                self.rules = possible(rules, &self.context);
                self.keep_only(owners);
                self.shrink_checkpoints();
            }
            self.look_at_readers();
            self.look_at_clocks();
            self.look_at_disk();
            self.admit();
            self.metrics.slot_snapshots.show(self.snapshot_index, self.slots.iter().map(Slot::shown));
            let active = self.active();
            self.metrics.waiting.set((self.inbox.len() + self.looked_for()) as u64);
            if active.is_empty() {
                let running = self.slots.iter().any(|slot| slot.run.is_some());
                let waiting = !self.leaving.is_empty() || !self.preempted.is_empty() || self.looked_for() > 0;
                let busy = running || waiting;
                match (busy, closing) {
                    (true, _) => std::thread::sleep(STALLED),
                    (false, Closing::Draining) if self.inbox.is_empty() => return self.save_all(),
                    (false, _) => self.inbox.wait(self.pool.index, closing, IDLE),
                }
                continue;
            }
            self.step(&active);
        }
    }

    /// Returns the slots with work for the next batch, in the order of their requests.
    fn active(&self) -> Vec<Active> {
        let slots = self.slots.iter().enumerate();
        let mut active: Vec<(u64, Active)> = slots
            .filter_map(|(slot, state)| {
                let want = state.want()?;
                Some((state.run.as_ref()?.number, Active { slot, want }))
            })
            .collect();
        active.sort_unstable_by_key(|(number, _)| *number);
        active.into_iter().map(|(_, active)| active).collect()
    }

    /// Sends events that were waiting for slow readers. Drops a request if its reader has disconnected or stalls for
    /// too long.
    fn look_at_readers(&mut self) {
        let stall = self.rules.stall;
        for outbox in &mut self.leaving {
            outbox.flush();
        }
        self.leaving.retain(|outbox| outbox.is_stalled() && !outbox.is_lost(stall));
        for slot in &mut self.slots {
            let Some(run) = &mut slot.run else { continue };
            if run.outbox.is_stalled() {
                run.outbox.flush();
            }
            if run.outbox.is_lost(stall) {
                slot.run = None;
                self.metrics.abandoned.add(1);
            }
        }
        let preempted = self.preempted.len();
        self.preempted.retain_mut(|run| {
            run.outbox.flush();
            !run.outbox.is_lost(stall)
        });
        self.metrics.abandoned.add((preempted - self.preempted.len()) as u64);
    }

    /// Ends requests that timed out.
    fn look_at_clocks(&mut self) {
        let now = Instant::now();
        for at in 0..self.slots.len() {
            if self.slots[at].run.as_ref().is_some_and(|run| run.job.deadline <= now) {
                self.finish(at, FinishReason::Deadline);
            }
        }
        while let Some(late) = self.preempted.iter().position(|run| run.job.deadline <= now) {
            let run = self.preempted.remove(late);
            self.finish_run(run, FinishReason::Deadline);
        }
        if now.saturating_duration_since(self.looked_at_queue) < QUEUE {
            return;
        }
        self.looked_at_queue = now;
        for job in self.inbox.take(|job| job.deadline <= now || job.is_abandoned()) {
            match job.is_abandoned() {
                true => self.metrics.abandoned.add(1),
                false => self.tell_unstarted(&job, FinishReason::Deadline),
            }
        }
    }

    fn tell_unstarted(&self, job: &Job, finish: FinishReason) {
        let done = unstarted(job, finish);
        self.metrics.count(&done);
        job.request_log.done(&done);
        // Sending cannot fail, because the channel of a job that never ran is empty.
        let _ = job.events.try_send(JobEvent::Done(Box::new(done)));
    }

    /// Ends the request in slot `at`. The slot's tokens stay in the cache.
    fn finish(&mut self, at: usize, finish: FinishReason) {
        if let Some(run) = self.slots[at].run.take() {
            self.finish_run(run, finish);
        }
    }

    fn finish_run(&mut self, mut run: RunningRequest, finish: FinishReason) {
        let done = run.done(finish, None);
        self.end(run, done);
    }

    fn end(&mut self, run: RunningRequest, done: Done) {
        self.metrics.count(&done);
        run.job.request_log.done(&done);
        if run.job.request_log.is_on() && log::has_prompts() {
            let (prompt, answer) = run.texts(self.context.model());
            run.job.request_log.said(&prompt, &answer);
        }
        self.say_last(run, JobEvent::Done(Box::new(done)));
    }

    fn fail(&mut self, at: usize, error: &Error) {
        if let Some(run) = self.slots[at].run.take() {
            self.metrics.failed.add(1);
            run.job.request_log.failed(error);
            self.say_last(run, JobEvent::Failed(error.to_string()));
        }
    }

    fn say_last(&mut self, mut run: RunningRequest, event: JobEvent) {
        run.outbox.send(event);
        if run.outbox.is_stalled() {
            self.leaving.push(run.outbox);
        }
    }

    fn end_all(mut self) {
        for at in 0..self.slots.len() {
            self.finish(at, FinishReason::Shutdown);
        }
        for run in std::mem::take(&mut self.preempted) {
            self.finish_run(run, FinishReason::Shutdown);
        }
        for job in self.stop_looking().into_iter().chain(self.inbox.take(|_| true)) {
            self.tell_unstarted(&job, FinishReason::Shutdown);
        }
    }

    /// Evaluates one batch, samples tokens, and sends them.
    fn step(&mut self, active: &[Active]) {
        let step = stretched(self.rules.step, active);
        let beside = prefill_beside_decode(step, self.seconds_per_prompt_token);
        let mut parts = plan(active, self.budget, beside);
        self.limit_rows(&mut parts);
        self.take_threads(&parts);
        let inbox = Arc::clone(&self.inbox);
        let turn = inbox.seats[self.pool.index].take();
        if let Err(error) = self.draft(&parts).and_then(|()| self.place_sampling(&parts)) {
            if turn.is_shared {
                self.context.rest_threads();
            }
            drop(turn);
            return match error {
                Error::Interrupted => self.inbox.close(Closing::Now),
                error => self.give_up(&parts, &error),
            };
        }
        let (rows, scored) = self.fill(&parts);
        let start = Instant::now();
        let decoded = self.context.decode_batch(&mut self.batch);
        self.context.synchronize();
        if turn.is_shared {
            self.context.rest_threads();
        }
        drop(turn);
        match decoded {
            Ok(Decoded::Done) => {}
            Ok(Decoded::NoRoom) if self.drop_drafts() => return,
            Ok(Decoded::NoRoom) => return self.make_room(),
            // The server is shutting down. Closing the inbox ends every request.
            Err(Error::Interrupted) => return self.inbox.close(Closing::Now),
            Err(error) => return self.give_up(&parts, &error),
        }
        self.count(&parts, start.elapsed());
        for part in &parts {
            self.hold(part);
            self.save_checkpoint(part.slot);
        }
        self.score(&scored);
        let drafted = self.batch.len() > parts.iter().map(|part| part.tokens as usize).sum();
        let mut made = 0;
        for (at, row) in rows {
            match self.choose_tokens(at, row) {
                Ok(tokens) => made += tokens,
                Err(error) => {
                    // The context may still contain drafted tokens that were evaluated.
                    self.context.forget(self.slots[at].sequence, self.slots[at].held.len() as u32);
                    self.fail(at, &error);
                }
            }
        }
        self.measure_step(made, drafted);
    }

    /// Enables sampling on a device for the requests of `parts` that support it.
    fn place_sampling(&mut self, parts: &[BatchPart]) -> Result<()> {
        if sampling::asks_devices(self.rules.on_device, self.context.model()).is_err() {
            return Ok(());
        }
        for part in parts {
            let slot = &mut self.slots[part.slot];
            if let Some(run) = &mut slot.run {
                let (context, chain) = (&mut self.context, &mut run.job.chain);
                let why = match (run.job.logprobs, &run.job.thoughts) {
                    (Some(_), _) => Some("logprobs need all logits"),
                    (None, Some(thoughts)) if thoughts.has_budget() => Some("the thoughts have a budget"),
                    (None, _) => None,
                };
                match why {
                    Some(why) => chain.stay_on_host(context, slot.sequence, why)?,
                    None => chain.place(context, slot.sequence)?,
                }
            }
        }
        Ok(())
    }

    /// Fills the batch with `parts`. Returns the slots that sample a token, with the index of their row of logits, and
    /// the rows for log-probabilities of prompts.
    fn fill(&mut self, parts: &[BatchPart]) -> (Vec<(usize, i32)>, Vec<ScoreRow>) {
        self.batch.clear();
        let (mut rows, mut scored) = (Vec::new(), Vec::new());
        for part in parts {
            let slot = &self.slots[part.slot];
            let Some(run) = &slot.run else { continue };
            let held = slot.held.len();
            if let Some(token) = run.next {
                rows.push((part.slot, self.batch.push(token, held as u32, slot.sequence, true)));
                for (after, token) in run.draft.tokens.iter().enumerate() {
                    self.batch.push(*token, (held + 1 + after) as u32, slot.sequence, true);
                }
                continue;
            }
            let end = held + part.tokens as usize;
            for (position, token) in run.job.prompt.iter().enumerate().take(end).skip(held) {
                let last = position + 1 == run.job.prompt.len();
                let scores = run.scores(position);
                let row = self.batch.push(*token, position as u32, slot.sequence, last || scores);
                if scores {
                    scored.push(ScoreRow { slot: part.slot, next: run.job.prompt[position + 1], row });
                }
                if last {
                    rows.push((part.slot, row));
                }
            }
        }
        (rows, scored)
    }

    /// Records that `part` was evaluated.
    fn hold(&mut self, part: &BatchPart) {
        let slot = &mut self.slots[part.slot];
        let Some(run) = &mut slot.run else { return };
        match run.next {
            Some(token) => {
                slot.held.push(token);
                run.evaluated(token);
            }
            None => {
                self.metrics.prefill_tokens.add(u64::from(part.tokens));
                let held = slot.held.len();
                slot.held.extend(&run.job.prompt[held..held + part.tokens as usize]);
                run.report_progress(slot.held.len());
            }
        }
    }

    fn choose_token(&mut self, at: usize, row: i32) -> Result<()> {
        let slot = &mut self.slots[at];
        let Some(run) = &mut slot.run else { return Ok(()) };
        if run.job.max_tokens == 0 {
            self.finish(at, FinishReason::Length);
            return Ok(());
        }
        // A sampler would choose a token even from NaN logits, so they are checked once per request, as in
        // `generate`.
        let on_device = self.context.samples_on_device(slot.sequence);
        if run.is_fresh() && !on_device && has_nan(self.context.logits_at(row)?) {
            return Err(Error::NotANumber);
        }
        let constrained = run.job.chain.is_constrained().then(thread_time);
        let before = run.job.chain.device_report().tokens_on_device;
        let chosen = run.choose(&mut self.context, slot.sequence, row);
        let by_device = run.job.chain.device_report().tokens_on_device - before;
        self.metrics.device_tokens.add(if chosen.is_ok() { by_device as u64 } else { 0 });
        let took = constrained.map(|begun| grammar_budget::counted(thread_time().saturating_sub(begun)));
        let client = run.job.client.clone();
        self.metrics.decode_tokens.add(u64::from(chosen.is_ok()));
        let room = slot.held.len() < self.context.n_ctx() as usize;
        let model = Arc::clone(self.context.model());
        let done = chosen.and_then(|token| run.take(token, &model, room));
        // Failed requests have also delayed other requests.
        if let Some(took) = took.filter(|took| !took.is_zero()) {
            run.grammar_time += took;
            self.count_hold(&client, took);
        }
        if let Some(done) = done?
            && let Some(run) = self.slots[at].run.take()
        {
            self.end(run, done);
        }
        Ok(())
    }

    /// Counts the time that a grammar of `client` took, if another client waited meanwhile. If `client` exceeds its
    /// limit, ends the request of `client` that caused the longest delay.
    fn count_hold(&mut self, client: &Client, time: Duration) {
        let runs = || self.slots.iter().filter_map(|slot| slot.run.as_ref()).chain(&self.preempted);
        let others = runs().any(|run| run.job.client != *client) || self.inbox.has_others(client);
        if !others || !self.grammar_budget.add(client, time, Instant::now()) {
            return;
        }
        let its = self.slots.iter().enumerate().filter_map(|(at, slot)| Some((at, slot.run.as_ref()?)));
        let worst = its.filter(|(_, run)| run.job.client == *client).max_by_key(|(_, run)| run.grammar_time);
        if let Some((at, time)) = worst.map(|(at, run)| (at, run.grammar_time)) {
            self.fail(at, &Error::Sampler(grammar_budget::why(time)));
        }
    }

    fn count(&mut self, parts: &[BatchPart], time: Duration) {
        self.metrics.batches.add(1);
        self.metrics.batch_invariant.set(u64::from(self.context.model().is_batch_invariant()));
        self.metrics.batch_tokens.add(self.batch.len() as u64);
        self.metrics.batch_time.add_time(time);
        // Small batches have a fixed cost that would distort the time per token, as would log-probabilities of prompts.
        let tokens = self.batch.len();
        if parts.iter().any(|part| part.tokens >= 16) && !parts.iter().any(|part| self.is_scoring(part.slot))
        {
            let now = time.as_secs_f64() / tokens as f64;
            let before = self.seconds_per_prompt_token.unwrap_or(now);
            self.seconds_per_prompt_token = Some(before * 0.75 + now * 0.25);
        }
    }

    /// Frees cells after a batch did not fit and was not evaluated. Empties the least recently used idle slot. If no
    /// slot is idle, preempts the newest running request, which resumes when cells are free.
    fn make_room(&mut self) {
        let idle = self.slots.iter().enumerate();
        let idle = idle.filter(|(_, slot)| slot.run.is_none() && !slot.held.is_empty());
        if let Some(at) = idle.min_by_key(|(_, slot)| slot.used).map(|(at, _)| at) {
            self.keep_on_disk(at, 0);
            return self.empty(at);
        }
        let running = self.slots.iter().enumerate();
        let mut running: Vec<(u64, usize)> =
            running.filter_map(|(at, slot)| Some((slot.run.as_ref()?.number, at))).collect();
        running.sort_unstable();
        let Some(&(number, at)) = running.last() else { return };
        match running.len() {
            1 => self.finish(at, FinishReason::ContextFull),
            _ => {
                if let Some(mut run) = self.slots[at].run.take() {
                    run.preempt();
                    run.job.request_log.preempted();
                    self.metrics.preempted.add(1);
                    let place = self.preempted.partition_point(|other| other.number < number);
                    self.preempted.insert(place, run);
                }
            }
        }
        self.empty(at);
    }

    /// Fails all requests of a failed batch, and empties their slots, whose contents are unknown.
    fn give_up(&mut self, parts: &[BatchPart], error: &Error) {
        for part in parts {
            self.fail(part.slot, error);
            self.empty(part.slot);
        }
    }
}
