//! Drafts for one sequence, and the measurements that control them.

use std::time::Instant;

use llama::error::Result;
use llama::options::Drafts;
use llama::{Context, Token};

use super::draft_model::{self, DraftModel};
use super::gain::{Clock, Gain};
use super::lookup::Lookup;
use super::options::SpeculativeOptions;
use super::report::DraftReport;
use super::sameness::{BatchComparison, Sameness, WIDTHS};
use crate::runtime_host::RuntimeHost;
use crate::settings::Settings;

/// Source of drafts.
pub(super) enum Drafter {
    Lookup(Lookup),
    Model(Box<DraftModel>),
}

/// Drafts for one sequence, and the measurements that control them.
pub struct Speculator {
    pub(super) drafter: Drafter,
    pub(super) most: usize,
    pub(super) near: bool,
    pub(super) sameness: Sameness,
    pub(super) gain: Gain,
    /// Index in [`WIDTHS`] for the next draft.
    pub(super) reach: usize,
    /// Tokens that precede the next prompt.
    pub(super) before: Vec<Token>,
    pub(super) report: DraftReport,
}

impl Speculator {
    /// Creates drafts with `options` for the tokens that `context` evaluates; returns `None` if drafts are off.
    ///
    /// # Errors
    /// If [`SpeculativeOptions::check`] refuses the options, or the model cannot remove tokens. Also returns the errors
    /// of [`DraftModel::open`].
    pub fn new(
        options: &SpeculativeOptions,
        context: &Context,
        settings: &Settings,
        runtime_host: &RuntimeHost,
    ) -> Result<Option<Self>> {
        options.check()?;
        let drafter = match (options.drafts, &options.model) {
            (Drafts::Off, _) => return Ok(None),
            (Drafts::Model, Some(path)) => {
                draft_model::check_memory(context.model())?;
                let (threads, least_p) = (options.threads, options.least_p);
                let model = DraftModel::open(path, context, threads, least_p, settings, runtime_host)?;
                Drafter::Model(Box::new(model))
            }
            (Drafts::Model | Drafts::Lookup, _) => {
                draft_model::check_memory(context.model())?;
                Drafter::Lookup(Lookup::default())
            }
        };
        Ok(Some(Self::with(drafter, options, context, Box::new(Instant::now))))
    }

    pub(super) fn with(
        drafter: Drafter,
        options: &SpeculativeOptions,
        context: &Context,
        clock: Clock,
    ) -> Self {
        Speculator {
            drafter,
            most: options.most as usize,
            near: options.near,
            sameness: Sameness::new(context.model()),
            gain: Gain::new(clock),
            reach: 1.min(WIDTHS.len() - 1),
            before: Vec::new(),
            report: DraftReport::new(options.drafts),
        }
    }

    /// Sets the tokens that the sequence contains before the next prompt; none by default.
    pub fn after(&mut self, tokens: &[Token]) {
        self.before = tokens.to_vec();
    }

    /// Begins a new text. Results of earlier comparisons and measurements are kept.
    pub(super) fn begin(&mut self, prompt: &[Token]) -> Vec<Token> {
        self.report = DraftReport::new(self.report.drafts);
        if let Drafter::Lookup(lookup) = &mut self.drafter {
            *lookup = Lookup::default();
        }
        let mut tokens = std::mem::take(&mut self.before);
        tokens.extend(prompt);
        tokens
    }

    /// Returns the width of the next batch: the largest permitted width with a known comparison result, otherwise a
    /// width that must be compared first. `None` if no width is possible. The sequence contains `held` tokens and has
    /// room for `room` more; its last `pure` tokens were evaluated one by one.
    pub(super) fn width(
        &self,
        held: usize,
        pure: usize,
        room: usize,
    ) -> Option<(usize, Option<BatchComparison>)> {
        let widths = WIDTHS[..=self.reach].iter().rev().copied();
        let fits =
            |width: &usize| *width <= room.min(self.most + 1) && !self.sameness.is_between(*width, held);
        widths.filter(fits).find_map(|width| match self.sameness.of(width, held) {
            Some(BatchComparison::Differs(_)) if !self.near => None,
            Some(found) => Some((width, Some(found))),
            None => (pure >= width).then_some((width, None)),
        })
    }

    /// Updates the width after a draft was evaluated.
    pub(super) fn learn(&mut self, drafted: usize, accepted: usize) {
        self.report.steps += 1;
        self.report.drafted += drafted;
        self.report.accepted += accepted;
        self.reach = reach_after(self.reach, drafted, accepted);
    }
}

/// Returns the next index in [`WIDTHS`] after a draft of `drafted` tokens, of which `accepted` were accepted.
pub fn reach_after(reach: usize, drafted: usize, accepted: usize) -> usize {
    match (accepted == drafted, accepted * 2 < drafted) {
        (true, _) => (reach + 1).min(WIDTHS.len() - 1),
        (_, true) => reach.saturating_sub(1),
        _ => reach,
    }
}
