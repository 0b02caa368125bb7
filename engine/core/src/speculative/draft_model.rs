//! Drafts from a smaller model: its most likely tokens, as long as they are probable enough.

use std::path::Path;
use std::sync::Arc;

use llama::error::{Error, Result};
use llama::variant::Variant;
use llama::{Batch, Context, Decoded, Model, SequenceId, Token};

use crate::fit::Seats;
use crate::model;
use crate::runtime_host::RuntimeHost;
use crate::settings::{Setting, Settings, Source};

/// Maximum difference between the sizes of two vocabularies, because some vocabularies are padded to a round number.
const MORE: u32 = 128;

/// Small model with a separate context, which has as many sequences as the large model's context. The small model
/// uses the threads of the large model while the large model waits.
pub struct DraftModel {
    context: Context,
    batch: Batch,
    /// Tokens in each sequence of the context.
    held: Vec<Vec<Token>>,
    /// Number of tokens that both vocabularies share.
    shared: u32,
    least_p: f32,
}

impl DraftModel {
    /// Loads the model at `path` as a draft model for `target`, whose context is `beside`. The draft model uses at most
    /// `threads` of the target's threads. It drafts tokens as long as its most likely token has at least the
    /// probability `least_p`.
    ///
    /// # Errors
    /// If the model cannot be loaded, if its memory cannot remove tokens, or if its vocabulary differs from the
    /// vocabulary of `target`.
    pub fn open(
        path: &Path,
        beside: &Context,
        threads: Option<u32>,
        least_p: f32,
        settings: &Settings,
        runtime_host: &RuntimeHost,
    ) -> Result<Self> {
        let draft = Self::load(path, beside.n_ctx(), 1, beside.sequences(), settings, runtime_host)?;
        Self::beside(&draft, beside, threads, least_p, settings, runtime_host)
    }

    /// Loads the model at `path`, with as many of its layers on devices as fit. Reserves memory for `contexts` draft
    /// contexts, each of which serves a large context of `n_ctx` cells and `sequences` sequences. Adapters and RoPE
    /// scaling belong to the large model and are not applied.
    ///
    /// # Errors
    /// If the model cannot be loaded, or its memory cannot remove tokens.
    pub fn load(
        path: &Path,
        n_ctx: u32,
        contexts: u32,
        sequences: u32,
        settings: &Settings,
        runtime_host: &RuntimeHost,
    ) -> Result<Arc<Model>> {
        let seats = Seats { contexts, sequences, rows: sequences };
        let draft = model::open_for(path, &settings_beside(settings, n_ctx, sequences), runtime_host, seats)?;
        check_memory(&draft)?;
        crate::context_options::check_generates(&draft)?;
        Ok(draft)
    }

    /// Creates a draft model from a loaded model: see [`open`](Self::open).
    ///
    /// # Errors
    /// If its vocabulary differs from the large model's, or its context does not fit into memory.
    pub fn beside(
        draft: &Arc<Model>,
        beside: &Context,
        threads: Option<u32>,
        least_p: f32,
        settings: &Settings,
        runtime_host: &RuntimeHost,
    ) -> Result<Self> {
        let shared = shared_tokens(beside.model(), draft)?;
        let sequences = beside.sequences();
        let mut options = crate::context_options::context_options(draft, settings, true);
        options.n_ctx = cells(beside.n_ctx(), sequences);
        let mend = "lower -c, use a smaller draft model, or remove --draft-model";
        let mut context =
            crate::context::context_of(draft, &options, settings, runtime_host, mend, sequences, sequences)?;
        context.share_threads(beside);
        let (decode, prefill) = beside.threads();
        if let Some(threads) = threads {
            if threads == 0 || threads > decode {
                return Err(Error::Usage(format!(
                    "--draft-threads {threads}: use 1 to {decode}, the number of threads of the large model"
                )));
            }
            context.set_threads(threads, threads.min(prefill));
        }
        let held = vec![Vec::new(); sequences as usize];
        Ok(DraftModel { context, batch: Batch::default(), held, shared, least_p })
    }

    /// Sets the number of threads for decode and for prefill.
    pub fn set_threads(&mut self, decode: u32, prefill: u32) {
        self.context.set_threads(decode, prefill);
    }

    /// Removes the tokens of `sequence` after its common prefix with `tokens`, so that the sequence never contains
    /// more tokens than the large model's sequence.
    pub fn trim(&mut self, sequence: SequenceId, tokens: &[Token]) {
        self.keep(sequence, tokens);
    }

    /// Returns the number of `tokens`, the text of `sequence`, that are not evaluated yet.
    pub fn behind(&self, sequence: SequenceId, tokens: &[Token]) -> usize {
        tokens.len() - self.common(sequence, tokens)
    }

    /// Evaluates up to `most` of the tokens that [`behind`](Self::behind) counts. The last token is left for the draft,
    /// which needs its logits.
    ///
    /// # Errors
    /// If the evaluation fails.
    pub fn catch_up(&mut self, sequence: SequenceId, tokens: &[Token], most: usize) -> Result<()> {
        let Some((_, before)) = tokens.split_last().filter(|_| self.knows(tokens)) else { return Ok(()) };
        let from = self.keep(sequence, before);
        let to = before.len().min(from.saturating_add(most));
        self.evaluate(sequence, &before[from..to]).map(drop)
    }

    /// Drafts up to `most` tokens that may follow `tokens`, the text of `sequence`.
    ///
    /// # Errors
    /// If the evaluation fails.
    pub fn draft(&mut self, sequence: SequenceId, tokens: &[Token], most: usize) -> Result<Vec<Token>> {
        let mut draft = Vec::new();
        // The draft model cannot draft beyond the end of its context.
        let room = (self.context.n_ctx() as usize).saturating_sub(tokens.len());
        let most = most.min(room);
        let Some((_, before)) = tokens.split_last().filter(|_| most > 0 && self.knows(tokens)) else {
            return Ok(draft);
        };
        // The last token is always evaluated, because the draft needs its logits.
        let kept = self.keep(sequence, before);
        let mut row = self.evaluate(sequence, &tokens[kept..])?;
        while let Some(last) = row {
            let (token, p) = best(self.context.logits_at(last)?);
            if p < self.least_p || token.cast_unsigned() >= self.shared {
                break;
            }
            draft.push(token);
            if draft.len() == most {
                break;
            }
            row = self.evaluate(sequence, &[token])?;
        }
        Ok(draft)
    }

    /// True if this model has all of `tokens` in its vocabulary.
    fn knows(&self, tokens: &[Token]) -> bool {
        tokens.iter().all(|token| token.cast_unsigned() < self.shared)
    }

    fn common(&self, sequence: SequenceId, tokens: &[Token]) -> usize {
        let held = &self.held[sequence as usize];
        held.iter().zip(tokens).take_while(|(held, token)| held == token).count()
    }

    /// Removes the tokens of `sequence` after its common prefix with `tokens`. Returns the length of the prefix.
    fn keep(&mut self, sequence: SequenceId, tokens: &[Token]) -> usize {
        let common = self.common(sequence, tokens);
        if common == self.held[sequence as usize].len() {
            return common;
        }
        if common == 0 || !self.context.keep_of(sequence, common) {
            return self.empty(sequence);
        }
        self.held[sequence as usize].truncate(common);
        common
    }

    fn empty(&mut self, sequence: SequenceId) -> usize {
        self.context.forget(sequence, 0);
        self.held[sequence as usize].clear();
        0
    }

    /// Evaluates `tokens` after the tokens that `sequence` contains. Returns the row of the last token's logits, or
    /// `None` if the context has no room.
    fn evaluate(&mut self, sequence: SequenceId, tokens: &[Token]) -> Result<Option<i32>> {
        let mut row = None;
        for part in tokens.chunks(self.context.n_batch().max(1) as usize) {
            let held = self.held[sequence as usize].len();
            self.batch.clear();
            for (at, token) in part.iter().enumerate() {
                row = Some(self.batch.push(*token, (held + at) as u32, sequence, at + 1 == part.len()));
            }
            match self.context.decode_batch(&mut self.batch) {
                Ok(Decoded::Done) => self.held[sequence as usize].extend(part),
                // The number of cells is sufficient, so this happens only if the free cells are fragmented. Removing
                // texts only costs the time to evaluate them again.
                Ok(Decoded::NoRoom) => {
                    for sequence in 0..self.context.sequences() {
                        self.empty(sequence);
                    }
                    return Ok(None);
                }
                Err(error) => {
                    // After an error, the number of evaluated tokens is unknown.
                    self.empty(sequence);
                    return Err(error);
                }
            }
        }
        Ok(row)
    }
}

/// Returns the number of cells of a draft context for a large context of `n_ctx` cells. Each sequence contains the
/// large model's tokens and a draft.
fn cells(n_ctx: u32, sequences: u32) -> u32 {
    let more = if sequences > 1 { sequences.saturating_mul(super::options::MOST + 1) } else { 0 };
    n_ctx.saturating_add(more)
}

/// Adapts the large model's `settings` to the draft model. The context has its own size, which is not limited to the
/// draft model's training context length.
fn settings_beside(settings: &Settings, n_ctx: u32, sequences: u32) -> Settings {
    let n_ctx = Setting { value: cells(n_ctx, sequences), source: Source::LiveHost };
    Settings { variant: Variant::default(), n_ctx, ..settings.clone() }
}

/// Refuses a model whose memory cannot remove tokens.
pub(super) fn check_memory(model: &Model) -> Result<()> {
    if model.can_take_back() {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "cannot use speculative decoding with {}: rejected draft tokens cannot be removed from this model's \
        recurrent state\nhint: remove --speculative",
        model.path().display()
    )))
}

/// Returns the number of tokens that two vocabularies share, counted from the first token.
///
/// # Errors
/// If tokens other than padding differ.
fn shared_tokens(target: &Arc<Model>, draft: &Arc<Model>) -> Result<u32> {
    let refuse = |why: String| {
        Err(Error::Usage(format!(
            "--draft-model {}: its vocabulary differs from the vocabulary of {}: {why}\nhint: use a smaller model of \
             the same family",
            draft.path().display(),
            target.path().display()
        )))
    };
    if !draft.has_vocabulary() {
        return refuse("the draft model has no vocabulary".to_string());
    }
    let (large, small) = (target.n_vocab(), draft.n_vocab());
    if large.abs_diff(small) > MORE {
        return refuse(format!("it has {small} tokens, not {large}"));
    }
    if draft.begin_token() != target.begin_token() {
        return refuse("the begin tokens differ".to_string());
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

/// Returns the most likely token and its probability.
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
    use llama::offload::Placed;

    use super::*;
    use crate::fit::EstimatedModel;
    use crate::settings::Requested;

    #[test]
    fn the_best_is_the_first_of_the_greatest_with_its_probability() {
        let (token, p) = best(&[0.0, 2.0, 2.0, -1.0]);
        let sum = 1.0 + 2.0 * 2.0_f32.exp() + (-1.0_f32).exp();
        assert_eq!(token, 1);
        assert!((p - 2.0_f32.exp() / sum).abs() < 1e-6, "{p}");
        // A NaN probability never reaches the minimum.
        assert!(best(&[f32::NAN, 1.0]).1.is_nan());
    }

    /// Checks the amount of memory that `--gpu-layers auto` reserves, here on the host.
    #[test]
    fn its_context_takes_what_was_estimated_before_it_was_loaded() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("tiny.gguf");
        gguf::synth::write(&path, &gguf::synth::SynthOptions::new(gguf::synth::Preset::Tiny))
            .expect("a model");
        let runtime_host = RuntimeHost::default();
        let requested = Requested { decode_threads: Some(1), repack: Some(false), ..Requested::default() };
        let settings = Settings::resolve(&requested, &runtime_host).expect("valid");
        let model = model::open(&path, &settings, &runtime_host).expect("it loads");
        let taken = |context: &mut Context| {
            let taken = context.taken().expect("told");
            (taken.iter().map(|one| one.cache).sum(), taken.iter().map(|one| one.compute).sum())
        };
        for sequences in [1, 4] {
            let large = model::shared_context(&model, &settings, &runtime_host, sequences, sequences)
                .expect("a context");
            let mut draft = DraftModel::beside(&model, &large, None, 0.5, &settings, &runtime_host)
                .expect("a draft model");
            let seats = Seats { contexts: 1, sequences, rows: sequences };
            let own = settings_beside(&settings, large.n_ctx(), sequences);
            let file = gguf::GgufFile::open(&path).expect("a model");
            let checked = gguf::check::model(&[&file]).expect("a good model");
            let subject =
                EstimatedModel::new(&[&file], &checked, &own, &runtime_host, &Placed::default(), seats);
            let needs = subject.and_then(|subject| subject.needs(&own.offload())).expect("an estimate");
            let (cache, compute): (u64, u64) = taken(&mut draft.context);
            assert_eq!((needs[0].cache_bytes.0, needs[0].compute_bytes.0), (cache, compute), "{sequences}");
            // The draft context is larger than the large model's, although both models are the same.
            assert_eq!(draft.context.n_ctx() > large.n_ctx(), sequences > 1);
        }
    }
}
