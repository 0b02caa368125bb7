//! Speculative decoding in the scheduler. Drafted tokens are evaluated in the same batch as the token before them.
//! Drafted tokens that the sampler would also have chosen are accepted.
//!
//! Slots share the batch. Generating slots and prompts get their tokens first, and drafts use the remaining room.

use std::time::Instant;

use engine_core::speculative::{self, BatchComparison, DraftModel, MOST, WIDTHS};
use llama::error::{Error, Result};
use llama::{Batch, Context, Decoded, SequenceId, Token};

use super::super::drafts::{DraftSource, Who};
use super::super::plan::{BatchPart, prefill_beside_decode};
use super::draft_state::{StepClass, StepTimes};
use super::state::Scheduler;

/// Slot that gets a draft, its text, and the width of its part of the batch.
struct DraftTarget {
    slot: usize,
    width: usize,
    text: Vec<Token>,
}

impl Scheduler {
    /// Sets the draft model.
    #[must_use]
    pub fn drafting_with(mut self, model: Option<DraftModel>) -> Self {
        self.drafts.model = model.map(Box::new);
        self.drafts.set_threads(self.context.threads());
        self
    }

    /// Drafts tokens for the slots of `parts`, if the batch has room for them.
    ///
    /// # Errors
    /// If an evaluation fails.
    pub(super) fn draft(&mut self, parts: &[BatchPart]) -> Result<()> {
        self.drafts.measured = None;
        self.drafts.asked = false;
        if self.rules.drafts.who == Who::Off {
            return Ok(());
        }
        let deciding: Vec<usize> = parts
            .iter()
            .filter(|part| self.slots[part.slot].run.as_ref().is_some_and(|run| run.next.is_some()))
            .map(|part| part.slot)
            .collect();
        let only_these = deciding.len() == parts.len();
        let rests = std::mem::take(&mut self.drafts.rests);
        if !only_these || deciding.is_empty() {
            return Ok(());
        }
        if let Some(why) = self.drafts.sameness.forbids(self.rules.drafts.near) {
            if deciding.iter().any(|at| self.wants(*at).is_some()) {
                self.drafts.tell(why);
            }
            return Ok(());
        }
        let step = (deciding.len(), deciding.iter().any(|at| self.wants(*at) == Some(DraftSource::Model)));
        self.drafts.measured = Some(step);
        let measured = self.drafts.gains.entry(step).or_insert_with(StepTimes::new);
        measured.wake(Instant::now());
        let gain = &measured.gain;
        let lets = gain.lets_draft();
        let lost = gain.loss().is_some();
        if lost {
            for &at in &deciding {
                if let Some(run) = self.slots[at].run.as_mut().filter(|run| run.draft.wish.is_some()) {
                    run.draft.drafted.turned_off = true;
                }
            }
        }
        let mut targets = Vec::new();
        if lets && !rests {
            let used = parts.iter().map(|part| part.tokens).sum::<u32>();
            // Each slot gets an equal share, so that the first slot does not take all rows.
            let rows = self.context.rows().min(self.budget).saturating_sub(used) as usize / deciding.len();
            for slot in deciding {
                if let Some(width) = self.width_of(slot, rows)?
                    && let Some(text) =
                        self.slots[slot].run.as_ref().and_then(|run| Some(run.text_with(run.next?)))
                {
                    targets.push(DraftTarget { slot, width, text });
                }
            }
            targets = self.catch_up(step, targets)?;
        }
        // The measured step begins here. It excludes the comparison of batches, which would make drafts seem slower
        // than they are, and catching up, whose time is charged separately.
        if let Some(measured) = self.drafts.gains.get_mut(&step) {
            measured.gain.begin();
        }
        targets.into_iter().try_for_each(|target| self.draft_of(target))
    }

    /// Returns the source of drafts for slot `at`, if its request uses drafts.
    fn wants(&self, at: usize) -> Option<DraftSource> {
        let wish = self.slots[at].run.as_ref()?.draft.wish?;
        Some(wish.from).filter(|from| *from == DraftSource::Lookup || self.drafts.model.is_some())
    }

    /// Returns the number of used cells in the context, which influences the evaluation time.
    fn cells(&self) -> usize {
        self.slots.iter().map(|slot| slot.held.len()).sum()
    }

    /// True if `found`, the result of comparing batches, allows drafts.
    fn may(&self, found: Option<BatchComparison>) -> bool {
        found == Some(BatchComparison::Same) || self.rules.drafts.near
    }

    /// Returns the greatest allowed batch width for slot `at`, with a draft of up to `most` tokens.
    fn width_of(&mut self, at: usize, most: usize) -> Result<Option<usize>> {
        let cells = self.cells();
        let Some(source) = self.wants(at) else { return Ok(None) };
        let slot = &self.slots[at];
        let Some(run) = slot.run.as_ref().filter(|run| run.next.is_some()) else { return Ok(None) };
        let wish = run.draft.wish.map_or(0, |wish| wish.most);
        let room = (self.context.n_ctx() as usize).saturating_sub(cells + 1);
        let most = most.min(wish as usize).min(room).min(run.left().saturating_sub(1) as usize);
        let reach = run.draft.reach.min(WIDTHS.len() - 1);
        let (sequence, held) = (slot.sequence, slot.held.len());
        let fits = |width: &usize| *width <= most + 1 && !self.drafts.sameness.is_between(*width, cells);
        let candidates: Vec<usize> = WIDTHS[..=reach].iter().copied().rev().filter(fits).collect();
        let mut widest = None;
        for candidate in candidates {
            let found = match self.drafts.sameness.of(candidate, cells) {
                Some(found) => found,
                None => {
                    let Some(last) = self.slots[at].run.as_ref().and_then(|run| run.last_made(candidate))
                    else {
                        continue;
                    };
                    let last = last.to_vec();
                    let rows = look(&mut self.context, &mut self.batch, sequence, held, &last)?;
                    self.drafts.sameness.learn(candidate, cells, rows)
                }
            };
            match self.may(Some(found)) {
                true => widest = widest.max(Some(candidate)),
                false => self.drafts.tell(speculative::DIFFERS),
            }
            // The draft model may return fewer tokens than requested, so the narrower widths must also be compared.
            if widest.is_some() && (source == DraftSource::Lookup || self.rules.drafts.near) {
                break;
            }
        }
        Ok(widest)
    }

    /// Returns the `targets` whose text the draft model has read completely. For other targets, the draft model reads
    /// a part of the text now, for at most the time of a step, because all slots wait. The time counts as a cost of
    /// drafts.
    fn catch_up(&mut self, step: StepClass, targets: Vec<DraftTarget>) -> Result<Vec<DraftTarget>> {
        let mut left = prefill_beside_decode(self.rules.step, self.drafts.seconds_per_token) as usize;
        let mut ready = Vec::with_capacity(targets.len());
        for target in targets {
            let sequence = self.slots[target.slot].sequence;
            let wants = self.wants(target.slot);
            let Some(model) = self.drafts.model.as_mut().filter(|_| wants == Some(DraftSource::Model)) else {
                if wants == Some(DraftSource::Lookup) {
                    ready.push(target);
                }
                continue;
            };
            let behind = model.behind(sequence, &target.text);
            // A draft may read up to this number of tokens.
            let may_be = MOST as usize + 1;
            if behind > may_be && left > 0 {
                let part = left.min(behind - 1);
                let start = Instant::now();
                let read = model.catch_up(sequence, &target.text, part);
                let time = start.elapsed();
                left -= part;
                if let Some(measured) = self.drafts.gains.get_mut(&step) {
                    measured.gain.charge(time);
                }
                if self.drafts.taken(read)?.is_none() {
                    continue;
                }
                if part >= 16 {
                    self.drafts.seconds_per_token = Some(time.as_secs_f64() / part as f64);
                }
            }
            let model = self.drafts.model.as_ref();
            if model.is_some_and(|model| model.behind(sequence, &target.text) <= may_be) {
                ready.push(target);
            }
        }
        Ok(ready)
    }

    /// Drafts tokens for a slot, for the requested batch width or a smaller allowed width.
    fn draft_of(&mut self, DraftTarget { slot, width, text }: DraftTarget) -> Result<()> {
        let (wants, sequence) = (self.wants(slot), self.slots[slot].sequence);
        let cells = self.cells();
        let drafted = match (wants, &mut self.drafts.model) {
            (Some(DraftSource::Model), Some(model)) => {
                self.drafts.asked = true;
                let drafted = model.draft(sequence, &text, width - 1);
                self.drafts.taken(drafted)?
            }
            (Some(DraftSource::Lookup), _) => {
                let run = self.slots[slot].run.as_mut();
                run.map(|run| run.draft.lookup.draft(&text, width - 1))
            }
            _ => None,
        };
        let mut draft = drafted.unwrap_or_default();
        // A short draft is shortened further, to the next allowed width.
        if draft.len() + 1 < width {
            let may = |width: &usize| self.may(self.drafts.sameness.of(*width, cells));
            let fits = WIDTHS.iter().copied().rev().filter(|width| *width <= draft.len() + 1).find(may);
            draft.truncate(fits.unwrap_or(1) - 1);
        }
        if let Some(run) = &mut self.slots[slot].run {
            run.draft.tokens = draft;
        }
        Ok(())
    }

    /// Drops the drafts of a batch that did not fit. Returns true if the batch had any drafts.
    pub(super) fn drop_drafts(&mut self) -> bool {
        for run in self.slots.iter_mut().filter_map(|slot| slot.run.as_mut()) {
            self.drafts.rests |= !run.draft.tokens.is_empty();
            run.draft.tokens.clear();
        }
        self.drafts.rests
    }

    /// Samples tokens for slot `at`: one token from row `row` of the batch, and more tokens as long as they match the
    /// draft. Returns the number of tokens.
    pub(super) fn choose_tokens(&mut self, at: usize, row: i32) -> Result<usize> {
        let draft = match &mut self.slots[at].run {
            Some(run) => std::mem::take(&mut run.draft.tokens),
            None => return Ok(0),
        };
        let mut accepted = 0;
        loop {
            self.choose_token(at, row + accepted as i32)?;
            let slot = &mut self.slots[at];
            // The loop ends if the request has ended, or if the sampled token differs from the draft.
            let Some(run) = &mut slot.run else { break };
            let Some(next) = run.next.filter(|next| draft.get(accepted) == Some(next)) else { break };
            slot.held.push(next);
            run.evaluated(next);
            accepted += 1;
        }
        if draft.is_empty() {
            return Ok(1);
        }
        let slot = &mut self.slots[at];
        if !self.context.forget(slot.sequence, slot.held.len() as u32) {
            return Err(Error::Decode {
                tokens: draft.len(),
                why: "cannot remove a rejected draft from the context".to_string(),
            });
        }
        self.metrics.drafted_tokens.add(draft.len() as u64);
        self.metrics.accepted_tokens.add(accepted as u64);
        if let Some(run) = &mut slot.run {
            run.draft.learn(draft.len(), accepted);
        }
        Ok(accepted + 1)
    }

    /// Records the measurement of a step that produced `tokens` tokens.
    pub(super) fn measure_step(&mut self, tokens: usize, drafted: bool) {
        let Some(step) = self.drafts.measured.take() else { return };
        let Some(measured) = self.drafts.gains.get_mut(&step) else { return };
        match drafted || self.drafts.asked {
            true => measured.gain.end_drafted(tokens),
            false => measured.gain.end_plain_of(tokens),
        }
        let lost = measured.gain.loss().filter(|_| measured.again.is_none());
        if let Some(loss) = lost {
            self.metrics.drafts_turned_off.add(1);
            let rest = measured.rest(Instant::now()).as_secs();
            tracing::info!(
                "drafts turned off for {} simultaneous requests: {loss}; next attempt in {rest} s",
                step.0
            );
        }
    }
}

/// Logits of the last tokens of a sequence. Each pair contains the logits from one batch and the logits from single
/// tokens.
type Rows = Vec<(Vec<f32>, Vec<f32>)>;

/// Evaluates `last` in one batch and then token by token. Before and after the call, `sequence` holds `held` tokens,
/// which end with `last`.
fn look(
    context: &mut Context,
    batch: &mut Batch,
    sequence: SequenceId,
    held: usize,
    last: &[Token],
) -> Result<Rows> {
    let from = held - last.len();
    let mut evaluate = |context: &mut Context, at: usize, tokens: &[Token]| -> Result<Vec<Vec<f32>>> {
        batch.clear();
        for (index, token) in tokens.iter().enumerate() {
            batch.push(*token, (at + index) as u32, sequence, true);
        }
        match context.decode_batch(batch)? {
            Decoded::Done => {}
            Decoded::NoRoom => {
                let why = "no room for tokens that the context contained before".to_string();
                return Err(Error::Decode { tokens: tokens.len(), why });
            }
        }
        (0..tokens.len()).map(|row| context.logits_at(row as i32).map(<[f32]>::to_vec)).collect()
    };
    let taken_back = |done: bool| match done {
        true => Ok(()),
        false => Err(Error::Decode {
            tokens: last.len(),
            why: "cannot remove tokens from the context".to_string(),
        }),
    };
    taken_back(context.forget(sequence, from as u32))?;
    let together = evaluate(context, from, last)?;
    taken_back(context.forget(sequence, from as u32))?;
    let mut rows = Vec::with_capacity(last.len());
    for (index, (token, row)) in last.iter().zip(together).enumerate() {
        let alone = evaluate(context, from + index, &[*token])?;
        rows.push((row, alone.into_iter().next().unwrap_or_default()));
    }
    Ok(rows)
}
