//! Evaluates texts to get their embeddings, and groups texts into batches.

use std::sync::Arc;

use build_info::Bytes;
use llama::error::{Error, Result};
use llama::options::ContextOptions;
use llama::{Batch, Decoded, Embedding, Model, Threads, Token};

use super::pooling::{Pool, Pooling};
use crate::context_options::{cache_size, context_options};
use crate::core_lock::Seat;
use crate::runtime_host::RuntimeHost;
use crate::settings::Settings;

/// Maximum number of tokens in a batch. For each token, llama.cpp allocates a row of logits with one value per
/// vocabulary token.
pub const BATCH: u32 = 64;

/// Maximum number of tokens in a batch for models without causal attention, which need the whole text in one batch.
const WHOLE: u32 = 512;

/// Maximum number of texts in a batch.
const TEXTS: u32 = 16;

/// Maximum number of tokens of a pair of texts. A reranker evaluates a pair in one batch.
const PAIR: u32 = 2048;

/// Size of the smallest context in tokens.
const LEAST: u32 = 512;

/// Returns the maximum length, in tokens, of a text that `model` accepts in a server whose context has `n_ctx`
/// tokens.
pub fn longest(model: &Model, n_ctx: u32) -> usize {
    let trained = Some(model.n_ctx_train()).filter(|trained| *trained > 0).unwrap_or(n_ctx);
    let most = if model.is_causal() { n_ctx } else { WHOLE };
    most.min(trained) as usize
}

/// Returns the maximum length, in tokens, of a pair of texts that the reranker `model` accepts.
pub fn longest_pair(model: &Model) -> usize {
    let trained = Some(model.n_ctx_train()).filter(|trained| *trained > 0).unwrap_or(PAIR);
    PAIR.min(trained) as usize
}

/// Reduction of a text's values to one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Pooling of the embeddings of the tokens.
    Pool(Pooling),
    /// Score of a pair of texts, which only a reranker computes.
    Score,
}

/// Evaluator of texts. The evaluator's context grows to the size that the longest text so far requires.
pub struct Evaluator {
    embedding: Embedding,
    reduction: Reduction,
    sequences: u32,
    width: usize,
    /// True if a text may be longer than a batch.
    splits: bool,
    batch: Batch,
    /// Size of the KV cache in bytes.
    pub cache: Bytes,
}

impl Evaluator {
    /// Creates an evaluator for texts of up to `longest` tokens. The evaluator uses the `threads` of another context.
    ///
    /// # Errors
    /// If the evaluator's context does not fit into memory.
    pub fn new(
        model: &Arc<Model>,
        reduction: Reduction,
        longest: usize,
        settings: &Settings,
        threads: &Threads,
    ) -> Result<Self> {
        let splits = reduction != Reduction::Score && model.is_causal();
        let n_ctx = u32::try_from(longest).unwrap_or(u32::MAX / 2).next_power_of_two().max(LEAST);
        let batch = match reduction {
            Reduction::Score => n_ctx,
            Reduction::Pool(_) if splits => BATCH,
            Reduction::Pool(_) => WHOLE,
        };
        let options = ContextOptions {
            n_ctx,
            n_batch: batch,
            n_ubatch: batch,
            ..context_options(model, settings, true)
        };
        let cache = cache_size(model, &options).unwrap_or(Bytes(0));
        // The available memory is read after the model was loaded and its first context was created.
        if let Some(available) = RuntimeHost::read().memory().filter(|available| cache > *available) {
            let mend = "request embeddings of shorter texts, or lower -c";
            let path = model.path().to_path_buf();
            return Err(Error::TooLarge {
                path,
                what: "context for embeddings",
                needed: cache,
                available,
                mend: mend.to_string(),
            });
        }
        // Each additional text needs another recurrent state of the same size.
        let sequences = if model.has_plain_cache() { TEXTS } else { 1 };
        let embedding = match reduction {
            Reduction::Pool(_) => Embedding::new(model, &options, sequences, threads)?,
            Reduction::Score => Embedding::ranking(model, &options, sequences, threads)?,
        };
        Ok(Evaluator {
            embedding,
            reduction,
            sequences,
            width: model.embedding_width(),
            splits,
            batch: Batch::default(),
            cache,
        })
    }

    /// True if the context has room for a text of `tokens` tokens.
    pub fn holds(&self, tokens: usize) -> bool {
        tokens <= self.embedding.n_ctx() as usize
    }

    /// Returns the embeddings of `texts`, or one score for each of them. Calls `pause` between two texts. If `pause`
    /// returns true, returns only the results computed so far. Before each batch, `limit` returns the maximum number of
    /// tokens for the batch, or the error that ends the evaluation.
    ///
    /// # Errors
    /// Errors of `limit` and of the evaluation.
    pub fn embed<E: From<Error>>(
        &mut self,
        texts: &[Vec<Token>],
        turn: &Seat,
        mut limit: impl FnMut() -> std::result::Result<u32, E>,
        pause: impl Fn() -> bool,
    ) -> std::result::Result<Vec<Vec<f32>>, E> {
        // An interrupted request may have left tokens in the context.
        self.embedding.clear();
        let most = self.embedding.n_batch();
        let mut found = Vec::with_capacity(texts.len());
        while found.len() < texts.len() && (found.is_empty() || !pause()) {
            let room = if self.splits { limit()?.clamp(1, most) } else { limit().map(|_| most)? };
            let rest = &texts[found.len()..];
            let together = together(rest.iter().map(Vec::len), room as usize, self.sequences as usize);
            match together {
                0 => match self.reduction {
                    Reduction::Pool(pooling) => {
                        found.push(self.alone(&rest[0], pooling, turn, room, &mut limit)?);
                    }
                    Reduction::Score => {
                        let why = "a pair of texts does not fit into a batch".to_string();
                        return Err(Error::Decode { tokens: rest[0].len(), why }.into());
                    }
                },
                _ => found.extend(self.several(&rest[..together], turn)?),
            }
        }
        Ok(found)
    }

    /// Evaluates short texts in one batch.
    fn several(&mut self, texts: &[Vec<Token>], turn: &Seat) -> Result<Vec<Vec<f32>>> {
        self.batch.clear();
        for (sequence, text) in texts.iter().enumerate() {
            for (position, token) in text.iter().enumerate() {
                self.batch.push(*token, position as u32, sequence as u32, true);
            }
        }
        self.evaluate(turn)?;
        let mut row = 0;
        let mut found = Vec::with_capacity(texts.len());
        for (sequence, text) in texts.iter().enumerate() {
            let Reduction::Pool(pooling) = self.reduction else {
                let score = self.embedding.score(sequence as u32)?;
                found.push(Some(vec![score]).filter(|_| score.is_finite()).ok_or(Error::NotANumber)?);
                continue;
            };
            let mut pool = Pool::new(pooling, self.width);
            for _ in text {
                pool.add(self.embedding.row(row)?);
                row += 1;
            }
            found.push(pool.finish().ok_or(Error::NotANumber)?);
        }
        self.embedding.clear();
        Ok(found)
    }

    /// Evaluates a text that is longer than a batch.
    fn alone<E: From<Error>>(
        &mut self,
        text: &[Token],
        pooling: Pooling,
        turn: &Seat,
        first: u32,
        limit: &mut impl FnMut() -> std::result::Result<u32, E>,
    ) -> std::result::Result<Vec<f32>, E> {
        let mut pool = Pool::new(pooling, self.width);
        let (mut at, mut room) = (0, first);
        while at < text.len() {
            if at > 0 {
                room = limit()?.clamp(1, self.embedding.n_batch());
            }
            let end = text.len().min(at + room as usize);
            self.batch.clear();
            for (offset, token) in text[at..end].iter().enumerate() {
                self.batch.push(*token, (at + offset) as u32, 0, true);
            }
            self.evaluate(turn)?;
            for row in 0..end - at {
                pool.add(self.embedding.row(row as i32)?);
            }
            at = end;
        }
        self.embedding.clear();
        Ok(pool.finish().ok_or(Error::NotANumber)?)
    }

    fn evaluate(&mut self, turn: &Seat) -> Result<()> {
        let turn = turn.take();
        let decoded = self.embedding.evaluate(&mut self.batch);
        drop(turn);
        let tokens = self.batch.len();
        match decoded {
            Ok(Decoded::Done) => Ok(()),
            Ok(Decoded::NoRoom) => {
                self.embedding.clear();
                Err(Error::Decode { tokens, why: "the context for embeddings is full".to_string() })
            }
            Err(error) => {
                self.embedding.clear();
                Err(error)
            }
        }
    }
}

/// Returns the number of texts, starting from the first, that fit into a batch of `room` tokens; 0 if the first text
/// does not fit. `lengths` are the texts' lengths in tokens.
fn together(lengths: impl Iterator<Item = usize>, room: usize, most: usize) -> usize {
    let sums = lengths.scan(0, |sum, length| {
        *sum += length;
        Some(*sum)
    });
    sums.take(most).take_while(|sum| *sum <= room).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_texts_go_together() {
        let cases: [(&[usize], usize, usize, usize); 6] = [
            (&[10, 20, 30], 64, 16, 3),
            (&[10, 20, 35], 64, 16, 2),
            (&[65, 1], 64, 16, 0),
            (&[64, 1], 64, 16, 1),
            (&[1; 40], 64, 16, 16),
            (&[1, 1], 64, 1, 1),
        ];
        for (lengths, room, most, expected) in cases {
            assert_eq!(together(lengths.iter().copied(), room, most), expected, "{lengths:?} in {room}");
        }
    }
}
