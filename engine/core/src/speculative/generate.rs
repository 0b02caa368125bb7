//! Second half of a generation, with drafts.

use std::time::Instant;

use llama::error::{Error, Result};
use llama::{ALONE, Context, Token, interrupted};
use sampling::Chain;

use super::report::{DIFFERS, MIXTURE};
use super::sameness::BatchComparison;
use super::speculator::{Drafter, Speculator};
use crate::generation::{Generation, Stop, Teller};
use crate::session::Session;

/// Safety factor for choosing a token from a batch. The token's logit must lead by more than this factor times the
/// largest measured difference between batches and single tokens. The factor allows for rounding in both logits and in
/// the cache.
const AHEAD: f32 = 4.0;

/// Generates like [`crate::generate::go_on`], with drafts. The first token, `token`, is already chosen but not yet
/// reported.
pub fn go_on(
    session: &mut Session,
    chain: &mut Chain,
    speculator: &mut Speculator,
    prompt: &[Token],
    first: Token,
    generation: &mut Generation,
    teller: &mut Teller<'_>,
) -> Result<Stop> {
    let mut tokens = speculator.begin(prompt);
    let stop = text(session, chain, speculator, &mut tokens, first, generation, teller);
    let report = &mut speculator.report;
    report.without = speculator.gain.without();
    report.with = generation.decode_tokens_per_second();
    report.loss = speculator.gain.loss();
    report.paused = match (speculator.near, speculator.sameness.is_unknowable()) {
        (true, _) => None,
        (false, true) => Some(MIXTURE),
        (false, false) => speculator.sameness.any_differs().then_some(DIFFERS),
    };
    generation.speculation = Some(report.clone());
    stop
}

fn text(
    session: &mut Session,
    chain: &mut Chain,
    speculator: &mut Speculator,
    tokens: &mut Vec<Token>,
    first: Token,
    generation: &mut Generation,
    teller: &mut Teller<'_>,
) -> Result<Stop> {
    let begin = tokens.len();
    if let Some(stop) = teller.take(first, chain, generation)? {
        return Ok(stop);
    }
    tokens.push(first);
    loop {
        if interrupted() {
            return Ok(Stop::Interrupted);
        }
        // A draft is not a prompt, so the decode context always evaluates drafts.
        let context = session.context();
        // The last token is not evaluated yet.
        let made = tokens.len() - 1 - begin;
        let held = context.held();
        let room = (context.n_ctx() as usize).saturating_sub(held);
        let room = room.min(teller.most().saturating_sub(generation.tokens.len()));
        let step = step(context, chain, speculator, tokens, made, room, generation, teller);
        match step {
            Ok(None) => {}
            Ok(Some(stop)) => return Ok(stop),
            Err(Error::Interrupted) => {
                // Drafted tokens that were not accepted must not stay in the context.
                let context = session.context();
                if context.held() > held {
                    context.keep(held);
                }
                return Ok(Stop::Interrupted);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Evaluates the last of `tokens`, with a draft if one is found, and chooses the tokens that follow. `made` of the
/// earlier tokens were generated. `room` is the number of tokens that can be evaluated.
#[expect(clippy::too_many_arguments, reason = "each argument is a separate part of the generation's state")]
fn step(
    context: &mut Context,
    chain: &mut Chain,
    speculator: &mut Speculator,
    tokens: &mut Vec<Token>,
    made: usize,
    room: usize,
    generation: &mut Generation,
    teller: &mut Teller<'_>,
) -> Result<Option<Stop>> {
    let (held, last) = (context.held(), tokens.len() - 1);
    let room = room.min(context.n_batch() as usize);
    let may = speculator.gain.lets_draft() && (speculator.near || !speculator.sameness.is_unknowable());
    let mut width = may.then(|| speculator.width(held, made, room)).flatten();
    while let Some((unknown, None)) = width {
        let start = Instant::now();
        speculator.sameness.look(context, &tokens[last - unknown..last])?;
        speculator.report.looking += start.elapsed();
        width = speculator.width(held, made, room);
    }
    let found = width.and_then(|(width, found)| Some((width, found?)));
    if let (Some(_), Drafter::Model(model)) = (found, &mut speculator.drafter)
        && model.behind(ALONE, tokens) > super::options::MOST as usize + 1
    {
        // The evaluation of a prompt is not timed as a step, because such a long step would look like a loss.
        let start = Instant::now();
        model.catch_up(ALONE, tokens, usize::MAX)?;
        speculator.report.prompt += start.elapsed();
    }
    speculator.gain.begin();
    let draft = match (found, &mut speculator.drafter) {
        (None, _) => Vec::new(),
        (Some((width, _)), Drafter::Lookup(lookup)) => lookup.draft(tokens, width - 1),
        (Some((width, _)), Drafter::Model(model)) => model.draft(ALONE, tokens, width - 1)?,
    };
    let cost_time = found.is_some() && matches!(speculator.drafter, Drafter::Model(_));
    let (draft, found) = speculator.cut(draft, held, found);
    if draft.is_empty() {
        context.decode(&tokens[last..])?;
        let token = chain.sample(context, -1)?;
        let stop = tell(token, chain, tokens, generation, teller)?;
        match cost_time {
            true => speculator.gain.end_drafted(1),
            false => speculator.gain.end_plain(),
        }
        return Ok(stop);
    }
    verify(context, chain, speculator, tokens, &draft, found, generation, teller)
}

/// Reports `token` and appends it to `tokens`, unless the generation ends with `token`.
fn tell(
    token: Token,
    chain: &Chain,
    tokens: &mut Vec<Token>,
    generation: &mut Generation,
    teller: &mut Teller<'_>,
) -> Result<Option<Stop>> {
    let stop = teller.take(token, chain, generation)?;
    if stop.is_none() {
        tokens.push(token);
    }
    Ok(stop)
}

/// Evaluates the last of `tokens` followed by `draft`. Accepts the drafted tokens that would have been chosen without
/// a draft, and chooses one more token.
#[expect(clippy::too_many_arguments, reason = "each argument is a separate part of the generation's state")]
fn verify(
    context: &mut Context,
    chain: &mut Chain,
    speculator: &mut Speculator,
    tokens: &mut Vec<Token>,
    draft: &[Token],
    found: BatchComparison,
    generation: &mut Generation,
    teller: &mut Teller<'_>,
) -> Result<Option<Stop>> {
    let held = context.held();
    let batch: Vec<Token> = [&tokens[tokens.len() - 1..], draft].concat();
    context.decode_all(&batch, |_| Ok::<(), Error>(()))?;
    let mut told = 0;
    let (stop, accepted) = loop {
        let choice = choose(context, chain, told, found)?;
        let token = match choice {
            Some(token) => token,
            None => {
                // The lead is too small for a decision, so the token is evaluated as a single token, as it would be
                // without a draft.
                speculator.report.near_ties += 1;
                context.keep(held + told);
                context.decode(&batch[told..=told])?;
                chain.choose(context.logits()?)?
            }
        };
        chain.accept_generated(token)?;
        let stop = tell(token, chain, tokens, generation, teller)?;
        let is_drafted = draft.get(told) == Some(&token);
        told += 1;
        if choice.is_none() || !is_drafted || stop.is_some() {
            break (stop, told - usize::from(!is_drafted));
        }
    };
    // As without a draft, the context holds all tokens except the last chosen one.
    context.keep((held + told).min(context.held()));
    speculator.gain.end_drafted(told);
    speculator.learn(draft.len(), accepted);
    Ok(stop)
}

/// Returns the token that row `at` of the last batch selects; `None` if rounding could change the choice.
fn choose(
    context: &mut Context,
    chain: &mut Chain,
    at: usize,
    found: BatchComparison,
) -> Result<Option<Token>> {
    let row = context.logits_at(at as i32)?;
    let token = chain.choose(row)?;
    match found {
        // Sampling has no margin to compare, so a choice is possible only if the most likely token is always chosen.
        BatchComparison::Differs(worst) if chain.takes_best() => {
            let mut less = row.to_vec();
            if let Some(logit) = usize::try_from(token).ok().and_then(|token| less.get_mut(token)) {
                *logit -= AHEAD * worst;
            }
            Ok((chain.choose(&less)? == token).then_some(token))
        }
        _ => Ok(Some(token)),
    }
}

impl Speculator {
    /// Shortens `draft` so that the batch has a width that has been compared with single tokens.
    fn cut(
        &self,
        mut draft: Vec<Token>,
        held: usize,
        found: Option<(usize, BatchComparison)>,
    ) -> (Vec<Token>, BatchComparison) {
        let Some((width, found)) = found else { return (Vec::new(), BatchComparison::Same) };
        if draft.len() + 1 == width {
            return (draft, found);
        }
        let (width, found) = self
            .width(held, 0, draft.len() + 1)
            .and_then(|(width, found)| Some((width, found?)))
            .unwrap_or((1, BatchComparison::Same));
        draft.truncate(width - 1);
        (draft, found)
    }
}
