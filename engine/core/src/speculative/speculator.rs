//! Drafts for one sequence, and what is known of them.

use std::time::Instant;

use llama::error::Result;
use llama::options::Drafts;
use llama::{Context, Model, Token};

use super::draft_model::{self, DraftModel};
use super::gain::{Clock, Gain};
use super::lookup::Lookup;
use super::options::SpeculativeOptions;
use super::report::{DraftReport, MIXTURE, NOT_TAKEN_BACK};
use super::sameness::{BatchComparison, Sameness, WIDTHS};
use crate::runtime_host::RuntimeHost;
use crate::settings::Settings;

/// Where drafts come from.
pub(super) enum Drafter {
    Lookup(Lookup),
    Model(Box<DraftModel>),
}

/// Drafts for one sequence, and what is known of them.
pub struct Speculator {
    pub(super) drafter: Drafter,
    pub(super) most: usize,
    pub(super) near: bool,
    /// A mixture sends each token to other matrices: that one batch had the same bits says nothing of the next.
    pub(super) is_mixture: bool,
    pub(super) sameness: Sameness,
    pub(super) gain: Gain,
    /// Which of [`WIDTHS`] the next draft is for.
    pub(super) reach: usize,
    /// Tokens that come before the next prompt.
    pub(super) before: Vec<Token>,
    pub(super) report: DraftReport,
}

impl Speculator {
    /// Drafts as `options` want them for what is evaluated in `context`; `None` where they are off.
    ///
    /// # Errors
    /// Options that [`SpeculativeOptions::check`] refuses, a model that cannot take tokens back, and those of [`DraftModel::open`].
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
            is_mixture: is_mixture(context.model()),
            sameness: Sameness::default(),
            gain: Gain::new(clock),
            reach: 1.min(WIDTHS.len() - 1),
            before: Vec::new(),
            report: DraftReport::new(options.drafts),
        }
    }

    /// Names the tokens that the sequence holds before the next prompt; without it there are none.
    pub fn after(&mut self, tokens: &[Token]) {
        self.before = tokens.to_vec();
    }

    /// Begins a new text: what is known of the machine stays.
    pub(super) fn begin(&mut self, prompt: &[Token]) -> Vec<Token> {
        self.report = DraftReport::new(self.report.drafts);
        if let Drafter::Lookup(lookup) = &mut self.drafter {
            *lookup = Lookup::default();
        }
        let mut tokens = std::mem::take(&mut self.before);
        tokens.extend(prompt);
        tokens
    }

    /// The width of the next batch, after `held` tokens of which the last `pure` were evaluated one by one, and with room
    /// for `room` more: the widest that is allowed and of which something is known, or the one that is to be looked at
    /// first. `None` where there is none.
    pub(super) fn width(
        &self,
        held: usize,
        pure: usize,
        room: usize,
    ) -> Option<(usize, Option<BatchComparison>)> {
        let widths = WIDTHS[..=self.reach].iter().rev().copied();
        let fits = |width: &usize| *width <= room.min(self.most + 1) && !Sameness::is_between(*width, held);
        widths.filter(fits).find_map(|width| match self.sameness.of(width, held) {
            Some(BatchComparison::Differs(_)) if !self.near => None,
            Some(found) => Some((width, Some(found))),
            None => (pure >= width).then_some((width, None)),
        })
    }

    /// A draft was evaluated.
    pub(super) fn learn(&mut self, drafted: usize, accepted: usize) {
        self.report.steps += 1;
        self.report.drafted += drafted;
        self.report.accepted += accepted;
        self.reach = reach_after(self.reach, drafted, accepted);
    }
}

/// Why nothing can be drafted for `model` whatever drafts, if that is so; `near` where other bits will do.
pub fn impossible(model: &Model, near: bool) -> Option<&'static str> {
    match (model.can_take_back(), near || !is_mixture(model)) {
        (false, _) => Some(NOT_TAKEN_BACK),
        (true, false) => Some(MIXTURE),
        (true, true) => None,
    }
}

/// Whether the model chooses among several matrices for each token.
fn is_mixture(model: &Model) -> bool {
    let experts = model
        .metadata("general.architecture")
        .and_then(|architecture| model.metadata(&format!("{architecture}.expert_count")));
    experts.is_some_and(|experts| experts.trim() != "0")
}

/// Which of [`WIDTHS`] comes after a draft of `drafted` tokens of which `accepted` were chosen.
pub fn reach_after(reach: usize, drafted: usize, accepted: usize) -> usize {
    match (accepted == drafted, accepted * 2 < drafted) {
        (true, _) => (reach + 1).min(WIDTHS.len() - 1),
        (_, true) => reach.saturating_sub(1),
        _ => reach,
    }
}
