//! Speculative decoding: several tokens that may follow are evaluated together, and those stay that would have been
//! chosen.
//!
//! A draft comes from the text itself ([`lookup`]) or from a smaller model ([`draft_model`]). The model evaluates it in
//! one batch, and the [`Chain`](sampling::Chain) chooses at each place as it would have without: as long as it
//! chooses what was drafted, the next place is valid too. The first other token ends it, and what was evaluated after it
//! is taken back.
//!
//! That gives the same tokens if a batch gives the same logits as single tokens do, to the last bit. Some kernels do and
//! some do not, so it is looked at ([`sameness`]), and where it differs nothing is drafted unless `near` was asked for.

mod draft_model;
mod gain;
mod generate;
mod lookup;
mod report;
mod sameness;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Instant;

use llama::error::{Error, Result};
use llama::options::Drafts;
use llama::{Context, Model, Token};

use crate::live::Live;
use crate::settings::Settings;

pub use draft_model::DraftModel;
pub use gain::Loss;
pub use generate::go_on;
pub use lookup::Lookup;
pub use report::Report;

pub use gain::Gain;
pub use report::DIFFERS;
use report::{MIXTURE, NOT_TAKEN_BACK};
pub use sameness::{Found, Sameness, WIDTHS};

use gain::Clock;

/// Most tokens of a draft.
pub const MOST: u32 = WIDTHS[WIDTHS.len() - 1] as u32 - 1;

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Where drafts come from.
    pub drafts: Drafts,
    /// The smaller model.
    pub model: Option<PathBuf>,
    /// Most tokens of a draft, 1 to [`MOST`].
    pub most: u32,
    /// Threads of the smaller model; without it as many as the large one's.
    pub threads: Option<u32>,
    /// Least probability of a token that the smaller model drafts.
    pub least_p: f32,
    /// Whether it drafts also where a batch rounds otherwise than single tokens do.
    pub near: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { drafts: Drafts::Off, model: None, most: 7, threads: None, least_p: 0.75, near: false }
    }
}

impl Options {
    /// Refuses what cannot be meant.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn check(&self) -> Result<()> {
        let refuse = |why: String| Err(Error::Usage(why));
        if !(1..=MOST).contains(&self.most) {
            return refuse(format!("--draft-max {}: use 1 to {MOST}", self.most));
        }
        if !(0.0..=1.0).contains(&self.least_p) {
            return refuse(format!("--draft-p-min {}: use 0 to 1", self.least_p));
        }
        match (self.drafts, &self.model) {
            (Drafts::Model, None) => {
                refuse("--speculative model: name the smaller model with --draft-model FILE".to_string())
            }
            (Drafts::Lookup, Some(model)) => refuse(format!(
                "--draft-model {} with --speculative lookup: give one of them",
                model.display()
            )),
            _ => Ok(()),
        }
    }
}

/// Where drafts come from.
enum Drafter {
    Lookup(Lookup),
    Model(Box<DraftModel>),
}

/// Drafts for one sequence, and what is known of them.
pub struct Speculator {
    drafter: Drafter,
    most: usize,
    near: bool,
    /// A mixture sends each token to other matrices: that one batch had the same bits says nothing of the next.
    is_mixture: bool,
    sameness: Sameness,
    gain: Gain,
    /// Which of [`WIDTHS`] the next draft is for.
    reach: usize,
    /// Tokens that come before the next prompt.
    before: Vec<Token>,
    report: Report,
}

impl Speculator {
    /// Drafts as `options` want them for what is evaluated in `context`; `None` where they are off.
    ///
    /// # Errors
    /// What [`Options::check`] refuses, a model that cannot take tokens back, and those of [`DraftModel::open`].
    pub fn new(
        options: &Options,
        context: &Context,
        settings: &Settings,
        live: &Live,
    ) -> Result<Option<Self>> {
        options.check()?;
        let drafter = match (options.drafts, &options.model) {
            (Drafts::Off, _) => return Ok(None),
            (Drafts::Model, Some(path)) => {
                draft_model::check_memory(context.model())?;
                let (threads, least_p) = (options.threads, options.least_p);
                let model = DraftModel::open(path, context, threads, least_p, settings, live)?;
                Drafter::Model(Box::new(model))
            }
            (Drafts::Model | Drafts::Lookup, _) => {
                draft_model::check_memory(context.model())?;
                Drafter::Lookup(Lookup::default())
            }
        };
        Ok(Some(Self::with(drafter, options, context, Box::new(Instant::now))))
    }

    fn with(drafter: Drafter, options: &Options, context: &Context, clock: Clock) -> Self {
        Speculator {
            drafter,
            most: options.most as usize,
            near: options.near,
            is_mixture: is_mixture(context.model()),
            sameness: Sameness::default(),
            gain: Gain::new(clock),
            reach: 1.min(WIDTHS.len() - 1),
            before: Vec::new(),
            report: Report::new(options.drafts),
        }
    }

    /// Names the tokens that the sequence holds before the next prompt; without it there are none.
    pub fn after(&mut self, tokens: &[Token]) {
        self.before = tokens.to_vec();
    }

    /// Begins a new text: what is known of the machine stays.
    fn begin(&mut self, prompt: &[Token]) -> Vec<Token> {
        self.report = Report::new(self.report.drafts);
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
    fn width(&self, held: usize, pure: usize, room: usize) -> Option<(usize, Option<Found>)> {
        let widths = WIDTHS[..=self.reach].iter().rev().copied();
        let fits = |width: &usize| *width <= room.min(self.most + 1) && !Sameness::is_between(*width, held);
        widths.filter(fits).find_map(|width| match self.sameness.of(width, held) {
            Some(Found::Differs(_)) if !self.near => None,
            Some(found) => Some((width, Some(found))),
            None => (pure >= width).then_some((width, None)),
        })
    }

    /// A draft was evaluated.
    fn learn(&mut self, drafted: usize, accepted: usize) {
        self.report.steps += 1;
        self.report.drafted += drafted;
        self.report.accepted += accepted;
        self.reach = reach_after(self.reach, drafted, accepted);
    }
}

/// Which of [`WIDTHS`] comes after a draft of `drafted` tokens of which `accepted` were chosen.
pub fn reach_after(reach: usize, drafted: usize, accepted: usize) -> usize {
    match (accepted == drafted, accepted * 2 < drafted) {
        (true, _) => (reach + 1).min(WIDTHS.len() - 1),
        (_, true) => reach.saturating_sub(1),
        _ => reach,
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
