//! How well a model predicts a text, and how far its probabilities are from a reference's: llama-perplexity's method.
//!
//! The text is cut into chunks. Each is fed to an empty context, the begin token in place of its first where the model
//! wants one, and the second half is scored: by then there is something to predict from.
//!
//! Logits are large (a chunk's scored half takes 150 MB for a vocabulary of 150,000), so only a window of them is ever
//! held: both models go through the text side by side, or, where memory has no room for two, one after the other with
//! the reference's probabilities in a temporary file.

mod reader;
mod saved;

use std::path::Path;
use std::sync::Arc;

use build_info::evaluation::{self, Divergence, Estimate, Pair};
use build_info::{Bytes, kld};
use engine_core::runtime_host::RuntimeHost;
use engine_core::sample_text::TEXT;
use engine_core::settings::Settings;
use gguf::GgufFile;
use llama::error::{Error, Result};
use llama::{Model, Token};
pub(crate) use reader::ChunkContext;
use saved::Saved;
use serde::Serialize;

/// Prose of many kinds, dialogue, code and figures.
const PROSE: &str = include_str!("text.txt");

/// What is evaluated where no text is given: prose, and after it code, tables and eight scripts.
pub fn built_in_text() -> String {
    [PROSE, TEXT].join("\n")
}

/// Tokens of a chunk where nothing is asked for: llama-perplexity's.
pub const DEFAULT_CHUNK: u32 = 512;

/// Fewest tokens of a chunk: half of them have to tell something.
pub const LEAST_CHUNK: u32 = 16;

/// A text as a model's tokens, cut into chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkedText {
    tokens: Vec<Token>,
    begin: Option<Token>,
    chunk: usize,
    chunks: usize,
}

impl ChunkedText {
    /// Cuts `text` into chunks of `chunk` tokens, as many as there are or `most`.
    ///
    /// # Errors
    /// When there is not enough text for one.
    pub fn new(model: &Model, text: &str, chunk: u32, most: Option<u32>) -> Result<Self> {
        let tokens = model.tokenize(text)?;
        let (held, size) = (tokens.len(), chunk.max(LEAST_CHUNK) as usize);
        let chunks = (held / size).min(most.map_or(usize::MAX, |most| most as usize));
        if chunks == 0 {
            return Err(Error::TextTooShort { tokens: held, chunk: size });
        }
        Ok(Self { tokens, begin: model.begin_token(), chunk: size, chunks })
    }

    /// Chunks.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// Tokens in each.
    pub fn chunk_size(&self) -> usize {
        self.chunk
    }

    /// The tokens of a chunk, as they are fed.
    fn chunk(&self, number: usize) -> Vec<Token> {
        let mut tokens = self.tokens[number * self.chunk..][..self.chunk].to_vec();
        if let Some(begin) = self.begin {
            tokens[0] = begin;
        }
        tokens
    }

    /// The first scored position of a chunk.
    fn first_scored(&self) -> usize {
        self.chunk / 2
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Chunks evaluated.
    pub chunks: usize,
    /// Chunks that there were to be.
    pub chunks_planned: usize,
    /// Tokens of a chunk.
    pub chunk_tokens: usize,
    /// Positions scored.
    pub positions: usize,
    /// Whether it was stopped before the end.
    pub interrupted: bool,
    /// Perplexity; none when it was stopped before the first chunk. What is no number is `null` in JSON.
    pub perplexity: Option<Estimate>,
    /// Against the reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<Divergence>,
}

/// Told how many chunks are done, of how many.
pub type OnProgress<'a> = &'a mut dyn FnMut(u64, u64);

/// The perplexity of `model` on `text`. When it is interrupted, what there was until then.
pub fn perplexity(
    model: &Arc<Model>,
    text: &ChunkedText,
    settings: &Settings,
    runtime_host: &RuntimeHost,
    on_progress: OnProgress<'_>,
) -> Result<Evaluation> {
    let mut reader = ChunkContext::new(model, text, settings, runtime_host)?;
    let mut nll = Vec::new();
    let done = each_chunk(text, on_progress, |chunk| {
        let mut here = Vec::new();
        reader.chunk(chunk, text.first_scored(), |next, row| {
            here.push(-kld::log_softmax(row)[next as usize]);
            Ok(())
        })?;
        nll.extend(here);
        Ok(())
    })?;
    let perplexity = (!nll.is_empty()).then(|| evaluation::perplexity(&nll));
    Ok(summary(text, done, nll.len(), perplexity, None))
}

/// Compares `model` with `reference`, both in memory, which must have one vocabulary.
pub fn against(
    model: &Arc<Model>,
    reference: &Arc<Model>,
    text: &ChunkedText,
    settings: &Settings,
    runtime_host: &RuntimeHost,
    on_progress: OnProgress<'_>,
) -> Result<Evaluation> {
    let mut one = ChunkContext::new(model, text, settings, runtime_host)?;
    let mut other = ChunkContext::new(reference, text, settings, runtime_host)?;
    let mut pairs = Vec::new();
    let done = each_chunk(text, on_progress, |chunk| {
        let mut here = Vec::new();
        one.begin(chunk, text.first_scored())?;
        other.begin(chunk, text.first_scored())?;
        for window in one.windows(chunk, text.first_scored()) {
            let mut rows: Vec<f32> = Vec::new();
            other.window(chunk, window.clone(), |_, row| {
                rows.extend(row);
                Ok(())
            })?;
            let mut rows = rows.chunks_exact(model.n_vocab() as usize);
            one.window(chunk, window, |next, row| {
                let reference = kld::log_softmax(rows.next().unwrap_or_default());
                here.push(Pair::of(&reference, &kld::log_softmax(row), next as usize));
                Ok(())
            })?;
        }
        pairs.append(&mut here);
        Ok(())
    })?;
    Ok(compared(text, done, &pairs))
}

/// A reference's probabilities over a text, in a file.
pub struct Reference {
    saved: Saved,
    /// Of each position what rounding in the file may change: -ln of the probability of the token that came, and the
    /// most likely one.
    exact: Vec<(f64, usize)>,
    text: ChunkedText,
    chunks: usize,
}

impl Reference {
    /// Evaluates `reference` on `text`. When it is interrupted, the chunks until then are there.
    pub fn save(
        reference: &Arc<Model>,
        text: &ChunkedText,
        settings: &Settings,
        runtime_host: &RuntimeHost,
        on_progress: OnProgress<'_>,
    ) -> Result<Self> {
        let scored = (text.chunk - 1 - text.first_scored()) as u64;
        let row = u64::from(reference.n_vocab()) * 2;
        let mut saved = Saved::new(reference.n_vocab() as usize, Bytes(row * scored * text.chunks as u64))?;
        let mut reader = ChunkContext::new(reference, text, settings, runtime_host)?;
        let mut exact = Vec::new();
        let chunks = each_chunk(text, on_progress, |chunk| {
            reader.chunk(chunk, text.first_scored(), |next, row| {
                let row = kld::log_softmax(row);
                exact.push((-row[next as usize], kld::most_likely(&row)));
                saved.push(&row)
            })
        })?;
        Ok(Self { saved, exact, text: text.clone(), chunks })
    }

    /// What there is to tell where it was interrupted: that the model was not begun.
    pub fn cut_short(&self) -> Option<Evaluation> {
        (self.chunks < self.text.chunks).then(|| compared(&self.text, 0, &[]))
    }

    /// The text.
    pub fn text(&self) -> &ChunkedText {
        &self.text
    }

    /// Compares `model`, of the same vocabulary, with it.
    pub fn against(
        &mut self,
        model: &Arc<Model>,
        settings: &Settings,
        runtime_host: &RuntimeHost,
        on_progress: OnProgress<'_>,
    ) -> Result<Evaluation> {
        if let Some(nothing) = self.cut_short() {
            return Ok(nothing);
        }
        let Self { saved, exact, text, .. } = self;
        let mut reader = ChunkContext::new(model, text, settings, runtime_host)?;
        saved.rewind()?;
        let mut pairs = Vec::new();
        let mut exact = exact.iter();
        let done = each_chunk(text, on_progress, |chunk| {
            let mut here = Vec::new();
            reader.chunk(chunk, text.first_scored(), |next, row| {
                let row = kld::log_softmax(row);
                let rounded = Pair::of(&saved.next()?, &row, next as usize);
                here.push(match exact.next() {
                    Some(&(reference_nll, top)) => {
                        Pair { reference_nll, same_top: top == kld::most_likely(&row), ..rounded }
                    }
                    None => rounded,
                });
                Ok(())
            })?;
            pairs.append(&mut here);
            Ok(())
        })?;
        Ok(compared(text, done, &pairs))
    }
}

/// Sees that both models mean the same by the same number.
///
/// # Errors
/// When they do not.
pub fn same_vocabulary(model: &Model, reference: &Model) -> Result<()> {
    let (mut one, mut other) = (Vec::new(), Vec::new());
    let differs = |why: String| Error::Vocabularies {
        model: model.path().to_path_buf(),
        reference: reference.path().to_path_buf(),
        why,
    };
    let (tokens, others) = (model.n_vocab(), reference.n_vocab());
    if tokens != others {
        return Err(differs(format!("{tokens} tokens against {others}")));
    }
    for token in 0..tokens.cast_signed() {
        one.clear();
        other.clear();
        model.piece(token, &mut one)?;
        reference.piece(token, &mut other)?;
        if one != other {
            let show = |bytes: &[u8]| format!("{:?}", String::from_utf8_lossy(bytes));
            return Err(differs(format!("token {token} is {} and {}", show(&one), show(&other))));
        }
    }
    Ok(())
}

/// Whether the weights of both files find room at once.
///
/// # Errors
/// When one is no model.
pub fn fit_together(model: &Path, reference: &Path, runtime_host: &RuntimeHost) -> Result<bool> {
    let weights = |path: &Path| -> Result<u64> { Ok(GgufFile::open(path)?.weights()?.0) };
    let needed = weights(model)?.saturating_add(weights(reference)?);
    Ok(runtime_host.memory().is_none_or(|available| Bytes(needed) <= available))
}

/// Runs `work` on every chunk; how many were done until the end or an interruption.
pub(crate) fn each_chunk(
    text: &ChunkedText,
    on_progress: OnProgress<'_>,
    mut work: impl FnMut(&[Token]) -> Result<()>,
) -> Result<usize> {
    on_progress(0, text.chunks as u64);
    for number in 0..text.chunks {
        match work(&text.chunk(number)) {
            Err(Error::Interrupted) => return Ok(number),
            other => other?,
        }
        on_progress(number as u64 + 1, text.chunks as u64);
    }
    Ok(text.chunks)
}

fn compared(text: &ChunkedText, done: usize, pairs: &[Pair]) -> Evaluation {
    let nll: Vec<f64> = pairs.iter().map(|pair| pair.nll).collect();
    let perplexity = (!nll.is_empty()).then(|| evaluation::perplexity(&nll));
    summary(text, done, pairs.len(), perplexity, evaluation::divergence(pairs))
}

fn summary(
    text: &ChunkedText,
    done: usize,
    positions: usize,
    perplexity: Option<Estimate>,
    against: Option<Divergence>,
) -> Evaluation {
    Evaluation {
        chunks: done,
        chunks_planned: text.chunks,
        chunk_tokens: text.chunk,
        positions,
        interrupted: done < text.chunks,
        perplexity,
        against,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_begins_with_the_begin_token_where_there_is_one() {
        let text = |begin| ChunkedText { tokens: (0..40).collect(), begin, chunk: 16, chunks: 2 };
        assert_eq!(text(None).chunk(1), (16..32).collect::<Vec<_>>());
        let marked = text(Some(99)).chunk(1);
        assert_eq!((marked[0], &marked[1..]), (99, &(17..32).collect::<Vec<_>>()[..]));
    }

    #[test]
    fn an_interruption_keeps_what_was_whole() {
        let text = ChunkedText { tokens: (0..64).collect(), begin: None, chunk: 16, chunks: 4 };
        let (mut told, mut count) = (Vec::new(), 0);
        let done = each_chunk(&text, &mut |done, total| told.push((done, total)), |_| {
            count += 1;
            if count == 3 { Err(Error::Interrupted) } else { Ok(()) }
        });
        assert!(matches!(done, Ok(2)));
        assert_eq!(told, [(0, 4), (1, 4), (2, 4)]);
        let found = compared(&text, 2, &[]);
        assert!(found.interrupted && found.perplexity.is_none() && found.against.is_none());
    }

    #[test]
    fn the_built_in_text_is_enough_for_several_chunks() {
        // Some four bytes a token with a real vocabulary.
        let text = built_in_text();
        assert!(text.len() / 4 > 5 * DEFAULT_CHUNK as usize, "{}", text.len());
    }
}
