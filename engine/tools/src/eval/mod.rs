//! Perplexity of a model on a text, and divergence of the model's probabilities from a reference model's probabilities,
//! computed as in llama-perplexity.
//!
//! The text is split into chunks. Each chunk is evaluated in an empty context. If the model expects a BOS token, that
//! token replaces the chunk's first token. Only the second half of a chunk is scored, because its tokens have enough
//! context before them.
//!
//! Logits are large: the scored half of a chunk takes 150 MB for a vocabulary of 150,000 tokens. Therefore only a
//! window of logits is kept, and both models evaluate the text side by side. If both models do not fit into memory,
//! they run one after the other, and the reference's probabilities are kept in a temporary file.

mod reader;
mod saved;

use std::path::Path;
use std::sync::Arc;

use build_info::Bytes;
use build_info::evaluation::{self, Divergence, Estimate, Pair};
use engine_core::runtime_host::RuntimeHost;
use engine_core::sample_text::TEXT;
use engine_core::settings::Settings;
use gguf::GgufFile;
use llama::error::{Error, Result};
use llama::{Model, Token};
pub(crate) use reader::ChunkContext;
use saved::Saved;
use serde::Serialize;

/// Several kinds of prose, with dialogue, code and numbers.
const PROSE: &str = include_str!("text.txt");

/// Returns the text that is evaluated if none is given: prose, then code, tables and eight writing systems.
pub fn built_in_text() -> String {
    [PROSE, TEXT].join("\n")
}

/// Default number of tokens in a chunk: llama-perplexity's default.
pub const DEFAULT_CHUNK: u32 = 512;

/// Minimum number of tokens in a chunk, so that the scored half is meaningful.
pub const LEAST_CHUNK: u32 = 16;

/// Text as tokens of a model, split into chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkedText {
    tokens: Vec<Token>,
    begin: Option<Token>,
    chunk: usize,
    chunks: usize,
}

impl ChunkedText {
    /// Splits `text` into chunks of `chunk` tokens: all chunks of the text, or at most `most`.
    ///
    /// # Errors
    /// [`Error::TextTooShort`] if the text does not fill one chunk, and errors of the tokenizer.
    pub fn new(model: &Model, text: &str, chunk: u32, most: Option<u32>) -> Result<Self> {
        let tokens = model.tokenize(text)?;
        let (held, size) = (tokens.len(), chunk.max(LEAST_CHUNK) as usize);
        let chunks = (held / size).min(most.map_or(usize::MAX, |most| most as usize));
        if chunks == 0 {
            return Err(Error::TextTooShort { tokens: held, chunk: size });
        }
        Ok(Self { tokens, begin: model.begin_token(), chunk: size, chunks })
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// Returns the number of tokens in a chunk.
    pub fn chunk_size(&self) -> usize {
        self.chunk
    }

    /// Returns the tokens of a chunk as they are evaluated, with the BOS token if the model expects one.
    fn chunk(&self, number: usize) -> Vec<Token> {
        let mut tokens = self.tokens[number * self.chunk..][..self.chunk].to_vec();
        if let Some(begin) = self.begin {
            tokens[0] = begin;
        }
        tokens
    }

    /// Returns the index of the first scored position in a chunk.
    fn first_scored(&self) -> usize {
        self.chunk / 2
    }
}

/// Result of an evaluation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Number of chunks that were evaluated.
    pub chunks: usize,
    /// Number of chunks that were planned.
    pub chunks_planned: usize,
    /// Number of tokens in a chunk.
    pub chunk_tokens: usize,
    /// Number of scored positions.
    pub positions: usize,
    /// True if the evaluation was interrupted.
    pub interrupted: bool,
    /// Perplexity; `None` if the evaluation was interrupted before the end of the first chunk. NaN is `null` in JSON.
    pub perplexity: Option<Estimate>,
    /// Divergence from the reference; `None` without a reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<Divergence>,
}

/// Callback that receives the number of finished chunks and the number of all chunks.
pub type OnProgress<'a> = &'a mut dyn FnMut(u64, u64);

/// Computes the perplexity of `model` on `text`. After an interruption, the result covers the finished chunks.
///
/// # Errors
/// If the context cannot be created, or the evaluation fails.
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

/// Compares `model` with `reference`. Both models are in memory and must have the same vocabulary.
///
/// # Errors
/// If a context cannot be created, or an evaluation fails.
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

/// Probabilities of a reference for a text, in a temporary file.
pub struct Reference {
    saved: Saved,
    /// For each position, the two values that rounding in the file may change: the negative log-probability of the
    /// actual token, and the most likely token.
    exact: Vec<(f64, usize)>,
    text: ChunkedText,
    chunks: usize,
}

impl Reference {
    /// Evaluates `reference` on `text`. After an interruption, the result contains the finished chunks.
    ///
    /// # Errors
    /// [`Error::Temporary`] if the file cannot be written; other errors if the context cannot be created or the
    /// evaluation fails.
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

    /// Returns an empty result if the evaluation of the reference was interrupted; `None` if the reference is
    /// complete.
    pub fn cut_short(&self) -> Option<Evaluation> {
        (self.chunks < self.text.chunks).then(|| compared(&self.text, 0, &[]))
    }

    /// Returns the text.
    pub fn text(&self) -> &ChunkedText {
        &self.text
    }

    /// Compares `model`, which must have the same vocabulary, with the reference.
    ///
    /// # Errors
    /// [`Error::Temporary`] if the file cannot be read; other errors if the context cannot be created or the evaluation
    /// fails.
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

/// Checks that the tokens of both models have the same numbers and texts.
///
/// # Errors
/// [`Error::Vocabularies`] if the vocabularies differ.
pub fn same_vocabulary(model: &Model, reference: &Model) -> Result<()> {
    let (mut one, mut other) = (Vec::new(), Vec::new());
    let differs = |why: String| Error::Vocabularies {
        model: model.path().to_path_buf(),
        reference: reference.path().to_path_buf(),
        why,
    };
    let (tokens, others) = (model.n_vocab(), reference.n_vocab());
    if tokens != others {
        return Err(differs(format!("{tokens} tokens in the first and {others} in the second")));
    }
    for token in 0..tokens.cast_signed() {
        one.clear();
        other.clear();
        model.piece(token, &mut one)?;
        reference.piece(token, &mut other)?;
        if one != other {
            let show = |bytes: &[u8]| format!("{:?}", String::from_utf8_lossy(bytes));
            return Err(differs(format!(
                "token {token} is {} in the first and {} in the second",
                show(&one),
                show(&other)
            )));
        }
    }
    Ok(())
}

/// True if the weights of both files fit into memory at the same time.
///
/// # Errors
/// If either file is not a model.
pub fn fit_together(model: &Path, reference: &Path, runtime_host: &RuntimeHost) -> Result<bool> {
    let weights = |path: &Path| -> Result<u64> { Ok(GgufFile::open(path)?.weights()?.0) };
    let needed = weights(model)?.saturating_add(weights(reference)?);
    Ok(runtime_host.memory().is_none_or(|available| Bytes(needed) <= available))
}

/// Runs `work` on every chunk. Returns the number of chunks that were finished before the end or an interruption.
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
        // With a real vocabulary, a token has about four bytes.
        let text = built_in_text();
        assert!(text.len() / 4 > 5 * DEFAULT_CHUNK as usize, "{}", text.len());
    }
}
