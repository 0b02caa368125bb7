//! Drafts of a smaller model: what it finds likeliest, as long as it is sure.

use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ffi::{Context, Model, Token};
use crate::live::Live;
use crate::model;
use crate::settings::Settings;

/// How many tokens one vocabulary may have more than the other: some are filled up to a round number.
const MORE: u32 = 128;

/// A small model with a context of its own. Its threads are those of the large one, which waits meanwhile.
pub struct DraftModel {
    context: Context,
    /// The tokens that the context holds.
    held: Vec<Token>,
    /// Tokens that the large model has too.
    shared: u32,
    least_p: f32,
}

impl DraftModel {
    /// Loads the model at `path` for drafts of what `target` says, whose context is `beside`. It uses at most `threads`
    /// of its threads, and drafts as long as its best token has at least the probability `least_p`.
    ///
    /// # Errors
    /// Where it cannot be loaded, where its memory cannot take tokens back, or where its tokens are not `target`'s.
    pub fn open(
        path: &Path,
        beside: &Context,
        threads: Option<u32>,
        least_p: f32,
        settings: &Settings,
        live: &Live,
    ) -> Result<Self> {
        let target = beside.model();
        let draft = model::open(path, settings, live)?;
        check_memory(&draft)?;
        let shared = shared_tokens(target, &draft)?;
        let mut options = model::context_options(&draft, settings, true);
        options.n_ctx = beside.n_ctx();
        let mend = "lower -c, take a smaller draft model, or leave --draft-model out";
        let mut context = model::context_with(&draft, &options, settings, live, mend)?;
        context.share_threads(beside);
        let (decode, prefill) = beside.threads();
        if let Some(threads) = threads {
            if threads == 0 || threads > decode {
                return Err(Error::Usage(format!(
                    "--draft-threads {threads}: use 1 to {decode}, the threads of the large model, which waits meanwhile"
                )));
            }
            context.set_threads(threads, threads.min(prefill));
        }
        Ok(DraftModel { context, held: Vec::new(), shared, least_p })
    }

    /// Tokens of `tokens` that it has yet to evaluate.
    pub fn behind(&self, tokens: &[Token]) -> usize {
        tokens.len() - self.common(tokens)
    }

    /// Up to `most` tokens that may follow `tokens`.
    pub fn draft(&mut self, tokens: &[Token], most: usize) -> Result<Vec<Token>> {
        let mut draft = Vec::new();
        // Beyond its end it is of no use any more.
        let room = (self.context.n_ctx() as usize).saturating_sub(tokens.len());
        let most = most.min(room);
        if most == 0 || tokens.iter().any(|token| token.cast_unsigned() >= self.shared) {
            return Ok(draft);
        }
        // The last is evaluated in any case: its logits are wanted.
        let keep = self.common(tokens).min(tokens.len().saturating_sub(1));
        let kept = self.context.keep(keep);
        self.held.truncate(kept);
        self.evaluate(&tokens[kept..])?;
        loop {
            let (token, p) = best(self.context.logits()?);
            if p < self.least_p || token.cast_unsigned() >= self.shared {
                return Ok(draft);
            }
            draft.push(token);
            if draft.len() == most {
                return Ok(draft);
            }
            self.evaluate(&[token])?;
        }
    }

    fn common(&self, tokens: &[Token]) -> usize {
        self.held.iter().zip(tokens).take_while(|(held, token)| held == token).count()
    }

    fn evaluate(&mut self, tokens: &[Token]) -> Result<()> {
        let done = self.context.decode(tokens);
        if done.is_err() {
            // What of it was evaluated is not known.
            self.context.clear();
            self.held.clear();
            return done;
        }
        self.held.extend(tokens);
        Ok(())
    }
}

/// Refuses a model whose memory cannot take tokens back.
pub(super) fn check_memory(model: &Model) -> Result<()> {
    if model.can_take_back() {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "speculative decoding with {}: this model keeps a state that all tokens change (it is recurrent, or in part), and \
         a draft that turns out wrong could not be taken out of it again; leave --speculative out",
        model.path().display()
    )))
}

/// How many tokens two vocabularies have in common, from the first on; an error where others differ.
fn shared_tokens(target: &Arc<Model>, draft: &Arc<Model>) -> Result<u32> {
    let refuse = |why: String| {
        Err(Error::Usage(format!(
            "--draft-model {}: its vocabulary is not that of {}: {why}; take a smaller model of the same family",
            draft.path().display(),
            target.path().display()
        )))
    };
    let (large, small) = (target.n_vocab(), draft.n_vocab());
    if large.abs_diff(small) > MORE {
        return refuse(format!("it has {small} tokens, not {large}"));
    }
    if draft.begin_token() != target.begin_token() {
        return refuse("texts begin with another token".to_string());
    }
    let shared = large.min(small);
    let (mut one, mut other) = (Vec::new(), Vec::new());
    for token in 0..shared.cast_signed() {
        one.clear();
        other.clear();
        target.piece_with(token, true, &mut one)?;
        draft.piece_with(token, true, &mut other)?;
        if one != other || target.is_end(token) != draft.is_end(token) {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            return refuse(format!("token {token} is {:?}, not {:?}", text(&other), text(&one)));
        }
    }
    Ok(shared)
}

/// The likeliest token, and how likely it is.
fn best(logits: &[f32]) -> (Token, f32) {
    let (mut at, mut greatest) = (0, f32::NEG_INFINITY);
    for (token, &logit) in logits.iter().enumerate() {
        if logit > greatest {
            (at, greatest) = (token, logit);
        }
    }
    let sum: f32 = logits.iter().map(|logit| (logit - greatest).exp()).sum();
    (at as Token, 1.0 / sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_the_first_of_the_greatest_with_its_probability() {
        let (token, p) = best(&[0.0, 2.0, 2.0, -1.0]);
        let sum = 1.0 + 2.0 * 2.0_f32.exp() + (-1.0_f32).exp();
        assert_eq!(token, 1);
        assert!((p - 2.0_f32.exp() / sum).abs() < 1e-6, "{p}");
        // What is no number is never sure.
        assert!(best(&[f32::NAN, 1.0]).1.is_nan());
    }
}
