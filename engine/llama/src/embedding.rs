//! Contexts that return the embedding of each token of a text.

use std::sync::Arc;

use gguf::GgufFile;
use llama_sys as sys;

use crate::batch::{Batch, Decoded};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::options::ContextOptions;
use crate::threadpool::Threadpool;
use crate::token::SequenceId;

/// Thread pools of a context, which another context can share if the two never evaluate at the same time.
#[derive(Clone)]
pub struct Threads {
    decode: Option<Arc<Threadpool>>,
    prefill: Option<Arc<Threadpool>>,
    counts: (u32, u32),
}

impl Threads {
    /// Combines `decode` for single tokens and `prefill` for larger batches, or one pool for both. `counts` are the
    /// numbers of threads of the two phases.
    pub fn new(decode: Threadpool, prefill: Option<Threadpool>, counts: (u32, u32)) -> Self {
        Threads { decode: Some(Arc::new(decode)), prefill: prefill.map(Arc::new), counts }
    }
}

impl Context {
    /// Uses `threads`. No other context may use `threads` at the same time.
    pub fn take_threads(&mut self, threads: &Threads) {
        if let Some(decode) = &threads.decode {
            self.attach_shared(Arc::clone(decode), threads.prefill.clone());
        }
        self.set_threads(threads.counts.0, threads.counts.1);
    }

    /// Returns the thread pools.
    pub fn pools(&self) -> Threads {
        let (decode, prefill) = (self.decode_pool.clone(), self.prefill_pool.clone());
        Threads { decode, prefill, counts: self.threads() }
    }
}

/// Context whose rows are embeddings: one for each token, before any pooling. For a reranker, the context instead has
/// a score for each text.
pub struct Embedding {
    context: Context,
    width: usize,
}

impl Embedding {
    /// Creates a context of `model` that evaluates up to `sequences` texts together, with the threads of another
    /// context.
    ///
    /// # Errors
    /// [`Error::Context`] if llama.cpp cannot create the context.
    pub fn new(
        model: &Arc<Model>,
        options: &ContextOptions,
        sequences: u32,
        threads: &Threads,
    ) -> Result<Self> {
        Self::with_pooling(model, options, sequences, threads, sys::LLAMA_POOLING_TYPE_NONE)
    }

    /// Creates a context of `model`, which must be a reranker, that returns a [`score`](Self::score) for each text. A
    /// text must not be longer than a batch.
    ///
    /// # Errors
    /// Errors of [`new`](Self::new).
    pub fn ranking(
        model: &Arc<Model>,
        options: &ContextOptions,
        sequences: u32,
        threads: &Threads,
    ) -> Result<Self> {
        Self::with_pooling(model, options, sequences, threads, sys::LLAMA_POOLING_TYPE_RANK)
    }

    fn with_pooling(
        model: &Arc<Model>,
        options: &ContextOptions,
        sequences: u32,
        threads: &Threads,
        pooling: sys::llama_pooling_type,
    ) -> Result<Self> {
        let sequences = sequences.max(1);
        let mut context = Context::for_sequences(model, options, sequences, None, |params| {
            params.n_seq_max = sequences;
            params.kv_unified = true;
            // Each token needs a row, because a text may be longer than a batch.
            params.n_outputs_max = 0;
            params.pooling_type = pooling;
            params.embeddings = true;
        })?;
        context.take_threads(threads);
        Ok(Embedding { context, width: model.embedding_width() })
    }

    /// Returns the capacity of the context in tokens.
    pub fn n_ctx(&self) -> u32 {
        self.context.n_ctx()
    }

    /// Returns the maximum number of tokens in a batch.
    pub fn n_batch(&self) -> u32 {
        self.context.n_batch().min(self.context.n_ubatch())
    }

    /// Evaluates `batch`, in which every token must request a row. The rows are complete when the call returns.
    ///
    /// # Errors
    /// If llama.cpp reports an error.
    pub fn evaluate(&mut self, batch: &mut Batch) -> Result<Decoded> {
        let decoded = self.context.evaluate(batch);
        self.context.synchronize();
        self.context.rest_prefill_threads();
        decoded
    }

    /// Returns the embedding of the token in row `row` of the last batch.
    ///
    /// # Errors
    /// [`Error::Logits`] if the row does not exist.
    pub fn row(&mut self, row: i32) -> Result<&[f32]> {
        let (err, err_size) = self.context.message.parts();
        // SAFETY: returns null if the row does not exist.
        let values = unsafe { sys::anneal_embedding_at(self.context.raw.as_ptr(), row, err, err_size) };
        if values.is_null() {
            return Err(Error::Logits(self.context.message.text()));
        }
        // SAFETY: without pooling, a row has as many values as the model's output is wide. The row stays in the
        // context's buffer until the next evaluation, which borrows `self` mutably.
        Ok(unsafe { std::slice::from_raw_parts(values, self.width) })
    }

    /// Returns the score of the text in `sequence` of the last batch, in a context that [`ranking`](Self::ranking)
    /// created.
    ///
    /// # Errors
    /// [`Error::Logits`] if the batch has no such text.
    pub fn score(&mut self, sequence: SequenceId) -> Result<f32> {
        // SAFETY: waits for the results. Returns null, or a pointer to the model's scores of the text, of which there
        // is at least one.
        let scores =
            unsafe { sys::llama_get_embeddings_seq(self.context.raw.as_ptr(), sequence.cast_signed()) };
        match scores.is_null() {
            true => Err(Error::Logits(format!("no score for text {sequence}"))),
            // SAFETY: see above. The value is copied before the context changes.
            false => Ok(unsafe { *scores }),
        }
    }

    /// Removes all tokens.
    pub fn clear(&mut self) {
        self.context.clear();
    }
}

impl Model {
    /// True if the model file has a classification head that computes all scores of a text. llama.cpp also loads files
    /// without a head. It then reads the scores from an embedding, and aborts if the embedding has fewer values
    /// (src/llama-context.cpp, `LLAMA_POOLING_TYPE_RANK`).
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn has_score_head(&self) -> Result<bool> {
        // This architecture applies `cls.output` to the embedding of each token, before any pooling.
        if self.metadata("general.architecture").as_deref() == Some("qwen35") {
            return Ok(false);
        }
        let first = GgufFile::open(self.path())?;
        let others = first.other_parts()?;
        let rows = |name: &str| {
            let mut tensors = std::iter::once(&first).chain(&others).flat_map(GgufFile::tensors);
            tensors.find(|tensor| tensor.name == name).map(|tensor| tensor.dims.get(1).copied().unwrap_or(1))
        };
        // SAFETY: reads a field.
        let scores = unsafe { sys::llama_model_n_cls_out(self.raw.as_ptr()) };
        // The last matrix of the head computes the scores.
        Ok(rows("cls.output.weight").or_else(|| rows("cls.weight")) == Some(u64::from(scores)))
    }

    /// Returns the number of values of an embedding.
    pub fn embedding_width(&self) -> usize {
        // SAFETY: reads a field.
        unsafe { sys::llama_model_n_embd_out(self.raw.as_ptr()) }.max(0).cast_unsigned() as usize
    }
}
