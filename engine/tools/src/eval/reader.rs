//! Evaluation of a text, chunk by chunk.

use std::ops::Range;
use std::sync::Arc;

use engine_core::model;
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{CTX_STEP, Settings};
use llama::error::Result;
use llama::options::ContextOptions;
use llama::{Collector, Context, Model, Token};

use super::ChunkedText;

/// Maximum size, in bytes, of the logits of one call. A call keeps the logits of all its tokens.
const LOGITS: usize = 128 << 20;

/// Context that evaluates chunks.
pub struct ChunkContext {
    context: Context,
    /// Number of tokens in one call.
    window: usize,
}

impl ChunkContext {
    /// Creates a context of `model` for the chunks of `text`.
    ///
    /// # Errors
    /// If the context cannot be created.
    pub fn new(
        model: &Arc<Model>,
        text: &ChunkedText,
        settings: &Settings,
        runtime_host: &RuntimeHost,
    ) -> Result<Self> {
        Self::with(model, text, settings, runtime_host, None)
    }

    /// Creates a context like [`new`](Self::new); `collector` receives the inputs of every matrix.
    ///
    /// # Errors
    /// If the context cannot be created.
    pub fn collecting(
        model: &Arc<Model>,
        text: &ChunkedText,
        settings: &Settings,
        runtime_host: &RuntimeHost,
        collector: &Arc<Collector>,
    ) -> Result<Self> {
        Self::with(model, text, settings, runtime_host, Some(Arc::clone(collector)))
    }

    fn with(
        model: &Arc<Model>,
        text: &ChunkedText,
        settings: &Settings,
        runtime_host: &RuntimeHost,
        collector: Option<Arc<Collector>>,
    ) -> Result<Self> {
        let row = size_of::<f32>() * model.n_vocab().max(1) as usize;
        let most = text.chunk_size().min(settings.n_batch.value as usize);
        // The prefill kernels need at least 64 tokens to be efficient.
        let window = (LOGITS / row).clamp(64.min(most), most);
        let options = ContextOptions {
            n_ctx: (text.chunk_size() as u32).next_multiple_of(CTX_STEP),
            n_batch: window as u32,
            n_ubatch: settings.n_ubatch.value.min(window as u32),
            type_k: settings.type_k.value,
            type_v: settings.type_v.value,
            flash_attention: settings.flash_attention.value,
            interruptible: true,
            kv_offload: settings.kv_offload.value,
            op_offload: settings.op_offload.value,
        };
        let mend = "use shorter chunks with --ctx";
        let context = model::context_collecting(model, &options, settings, runtime_host, mend, collector)?;
        let window = window.min(context.n_batch() as usize).max(1);
        Ok(Self { context, window })
    }

    /// Evaluates the tokens before the scored positions of `chunk` in the empty context.
    ///
    /// # Errors
    /// If the evaluation fails.
    pub fn begin(&mut self, chunk: &[Token], first_scored: usize) -> Result<()> {
        self.context.clear();
        self.context.decode(&chunk[..first_scored])
    }

    /// Splits the scored positions into parts for [`window`](Self::window). The last token is not scored, because no
    /// token follows it.
    pub fn windows(
        &self,
        chunk: &[Token],
        first_scored: usize,
    ) -> impl Iterator<Item = Range<usize>> + use<> {
        let (end, window) = (chunk.len() - 1, self.window);
        (first_scored..end).step_by(window).map(move |start| start..end.min(start + window))
    }

    /// Evaluates the tokens of `window`. For each token, passes the following token to `on_row`, with the logits that
    /// predict it.
    ///
    /// # Errors
    /// If the evaluation fails; also the errors of `on_row`.
    pub fn window(
        &mut self,
        chunk: &[Token],
        window: Range<usize>,
        mut on_row: impl FnMut(Token, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let mut next = chunk[window.start + 1..].iter();
        self.context.decode_all(&chunk[window], |row| on_row(next.next().copied().unwrap_or_default(), row))
    }

    /// Evaluates a whole chunk, like [`begin`](Self::begin) and [`window`](Self::window).
    ///
    /// # Errors
    /// If the evaluation fails; also the errors of `on_row`.
    pub fn chunk(
        &mut self,
        chunk: &[Token],
        first_scored: usize,
        mut on_row: impl FnMut(Token, &[f32]) -> Result<()>,
    ) -> Result<()> {
        self.begin(chunk, first_scored)?;
        self.windows(chunk, first_scored).try_for_each(|window| self.window(chunk, window, &mut on_row))
    }
}
