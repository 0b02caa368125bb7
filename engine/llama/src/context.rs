//! Context: the evaluated tokens of a model, and the memory for evaluating more.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use host::process::ProcFolder;
use llama_sys as sys;

use crate::collector::Collector;
use crate::device_samplers::DeviceSamplers;
use crate::error::{Error, Result};
use crate::message::Message;
use crate::model::Model;
use crate::options::{ContextOptions, FlashAttention, KvType};
use crate::own_kernels;
use crate::thread_count::ThreadCount;
use crate::threadpool::Threadpool;
use crate::token::Token;

/// Evaluated tokens of a model, with everything that is needed to evaluate more.
///
/// A context is `Send`, because llama.cpp accepts calls from any thread. A context is not `Sync`, because
/// llama.cpp accepts only one call at a time.
pub struct Context {
    pub(super) raw: NonNull<sys::llama_context>,
    pub(super) model: Arc<Model>,
    pub(super) decode_pool: Option<Arc<Threadpool>>,
    pub(super) prefill_pool: Option<Arc<Threadpool>>,
    /// Number of decode threads, which follows the load of the machine; `None` if the number is fixed.
    thread_count: Option<ThreadCount>,
    _collector: Option<Arc<Collector>>,
    pub(super) sequences: u32,
    /// Number of rows of logits that a batch may request.
    pub(super) rows: u32,
    pub(super) message: Message,
    pub(super) stop: Option<Arc<AtomicBool>>,
    pub(super) device_samplers: DeviceSamplers,
    /// Number of graphs that were computed.
    pub(super) evaluated: u64,
}

// SAFETY: see the documentation of the type; the model is shared by `Arc` and is `Sync`.
unsafe impl Send for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: owned. The thread pools are fields, so they are freed after the context.
        unsafe { sys::llama_free(self.raw.as_ptr()) }
    }
}

impl Context {
    /// Creates a context of `model` for one sequence.
    ///
    /// # Errors
    /// [`Error::Context`] if llama.cpp cannot create the context.
    pub fn new(model: &Arc<Model>, options: &ContextOptions) -> Result<Self> {
        Self::with(model, options, None)
    }

    /// Creates a context like [`new`](Self::new); `collector` receives the inputs of every matrix.
    ///
    /// # Errors
    /// Errors of [`new`](Self::new).
    pub fn with(
        model: &Arc<Model>,
        options: &ContextOptions,
        collector: Option<Arc<Collector>>,
    ) -> Result<Self> {
        Self::for_sequences(model, options, 1, collector, |_| ())
    }

    /// Creates a context for several sequences that share its cells. `more` changes additional parameters.
    pub(super) fn for_sequences(
        model: &Arc<Model>,
        options: &ContextOptions,
        sequences: u32,
        collector: Option<Arc<Collector>>,
        more: impl FnOnce(&mut sys::llama_context_params),
    ) -> Result<Self> {
        let mut message = Message::new();
        let (err, err_size) = message.parts();
        // SAFETY: `params` is only read. The callbacks are functions of the shim and cannot unwind. One callback
        // ignores its data; the data of the other callback is a field of the context and therefore outlives it.
        let raw = unsafe {
            let mut params = sys::llama_context_default_params();
            params.n_ctx = options.n_ctx;
            params.n_batch = options.n_batch;
            params.n_ubatch = options.n_ubatch;
            params.type_k = kv_type(options.type_k);
            params.type_v = kv_type(options.type_v);
            params.flash_attn_type = flash_attention(options.flash_attention);
            params.offload_kqv = options.kv_offload;
            params.op_offload = options.op_offload;
            model.put_rope(&mut params);
            if options.interruptible {
                params.abort_callback = Some(sys::anneal_interrupted);
            }
            if sequences > 1 {
                params.n_seq_max = sequences;
                params.kv_unified = true;
                // One row of logits is enough for each sequence. By default, llama.cpp reserves a row for every token
                // of a batch.
                params.n_outputs_max = sequences;
            }
            if let Some(collector) = &collector {
                params.cb_eval = Some(sys::anneal_collect);
                params.cb_eval_user_data = collector.data();
            }
            more(&mut params);
            sys::anneal_context_new(model.raw.as_ptr(), &params, err, err_size)
        };
        let raw =
            NonNull::new(raw).ok_or_else(|| Error::Context { n_ctx: options.n_ctx, why: message.text() })?;
        let mut context = Context {
            raw,
            model: Arc::clone(model),
            decode_pool: None,
            prefill_pool: None,
            thread_count: None,
            _collector: collector,
            sequences,
            rows: sequences,
            message,
            stop: None,
            device_samplers: DeviceSamplers::default(),
            evaluated: 0,
        };
        context.adapt()?;
        crate::devices::watch_workers();
        Ok(context)
    }

    /// Returns the model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Returns the capacity of the context in tokens. llama.cpp rounds the requested number up.
    pub fn n_ctx(&self) -> u32 {
        // SAFETY: reads a field.
        unsafe { sys::llama_n_ctx(self.raw.as_ptr()) }
    }

    /// Returns the maximum number of tokens in one call.
    pub fn n_batch(&self) -> u32 {
        // SAFETY: reads a field.
        unsafe { sys::llama_n_batch(self.raw.as_ptr()) }
    }

    /// Returns the maximum number of tokens in one graph.
    pub fn n_ubatch(&self) -> u32 {
        // SAFETY: reads a field.
        unsafe { sys::llama_n_ubatch(self.raw.as_ptr()) }
    }

    /// Sets the thread pools: `decode` for single tokens and `prefill` for larger batches, or one pool for both.
    pub fn attach(&mut self, decode: Threadpool, prefill: Option<Threadpool>) {
        self.attach_shared(Arc::new(decode), prefill.map(Arc::new));
    }

    /// Uses the thread pools of `other`. The two contexts must never evaluate at the same time, because each graph
    /// needs a whole pool.
    pub fn share_threads(&mut self, other: &Context) {
        if let Some(decode) = &other.decode_pool {
            self.attach_shared(Arc::clone(decode), other.prefill_pool.clone());
        }
        let (decode, prefill) = other.threads();
        self.set_threads(decode, prefill);
    }

    pub(super) fn attach_shared(&mut self, decode: Arc<Threadpool>, prefill: Option<Arc<Threadpool>>) {
        let batch = prefill.as_ref().map_or(std::ptr::null_mut(), |pool| pool.0.as_ptr());
        // SAFETY: both pools live in `self` until the context is freed. The old pools are freed after the context has
        // stopped using them.
        unsafe { sys::llama_attach_threadpool(self.raw.as_ptr(), decode.0.as_ptr(), batch) }
        self.decode_pool = Some(decode);
        self.prefill_pool = prefill;
    }

    /// Puts the threads of prefill to sleep if decode has a separate pool. llama.cpp only does this when a context
    /// switches from one pool to the other. If another context continued instead, the threads of prefill would keep
    /// polling on the cores that decode uses.
    pub fn rest_prefill_threads(&mut self) {
        if let Some(pool) = &self.prefill_pool {
            // SAFETY: the pool is live and runs no graph, because an evaluation borrows the context mutably.
            unsafe { sys::anneal_threadpool_pause(pool.0.as_ptr()) }
        }
    }

    /// Puts all threads to sleep, so that they do not poll while other contexts compute on the same cores. The next
    /// graph wakes them.
    pub fn rest_threads(&mut self) {
        self.rest_prefill_threads();
        if let Some(pool) = &self.decode_pool {
            // SAFETY: as in `rest_prefill_threads`.
            unsafe { sys::anneal_threadpool_pause(pool.0.as_ptr()) }
        }
    }

    /// Fixes the number of threads of the pools that single tokens and larger batches use.
    pub fn set_threads(&mut self, decode: u32, prefill: u32) {
        self.thread_count = None;
        self.set_numbers(decode, prefill);
    }

    /// Lets decode use fewer threads while other programs use the cores, if that is faster. Has no effect with
    /// llama.cpp's kernels, because their results may depend on the number of threads.
    pub fn follow_load(&mut self) {
        let is_own = own_kernels::choice().is_some_and(|choice| choice.is_own());
        self.thread_count = is_own.then(|| ThreadCount::new(self.threads().0));
    }

    fn set_numbers(&mut self, decode: u32, prefill: u32) {
        // SAFETY: stores two numbers; a graph uses no more threads than its pool has.
        unsafe {
            sys::llama_set_n_threads(self.raw.as_ptr(), decode.cast_signed(), prefill.cast_signed());
        }
    }

    /// Runs `evaluate`, which evaluates `tokens` tokens and returns 0 on success. For a single token, the number of
    /// threads depends on the load of the machine.
    pub(super) fn with_threads(&mut self, tokens: usize, evaluate: impl FnOnce(&mut Self) -> i32) -> i32 {
        let Some(mut count) = self.thread_count.take_if(|_| tokens == 1) else { return evaluate(self) };
        let (decode, prefill) = self.threads();
        let is_other = count.for_next_token() != decode;
        if is_other {
            self.set_numbers(count.for_next_token(), prefill);
        }
        let start = Instant::now();
        let code = evaluate(self);
        if code == 0 {
            count.record_token(start, Instant::now(), || ProcFolder::this().waited());
        }
        if is_other {
            self.set_numbers(decode, prefill);
        }
        self.thread_count = Some(count);
        code
    }

    /// Returns the numbers of threads that [`set_threads`](Self::set_threads) sets.
    pub fn threads(&self) -> (u32, u32) {
        // SAFETY: reads two fields.
        unsafe {
            (
                sys::llama_n_threads(self.raw.as_ptr()).cast_unsigned(),
                sys::llama_n_threads_batch(self.raw.as_ptr()).cast_unsigned(),
            )
        }
    }

    /// Evaluates `tokens` after the tokens in the context, in calls of at most [`n_batch`](Self::n_batch) tokens, and
    /// keeps the logits of the last token.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the interrupt flag stops the evaluation; also errors that llama.cpp reports.
    pub fn decode(&mut self, tokens: &[Token]) -> Result<()> {
        for chunk in tokens.chunks(self.n_batch().max(1) as usize) {
            let code = self.with_threads(chunk.len(), |context| {
                let (err, err_size) = context.message.parts();
                // SAFETY: the chunk is only read (the C type is not const) and has at most `n_batch` tokens, as
                // llama.cpp asserts. Its length fits the C type, because `settings` limits `n_batch`.
                unsafe {
                    let tokens = chunk.as_ptr().cast_mut();
                    sys::anneal_decode(context.raw.as_ptr(), tokens, chunk.len() as i32, err, err_size)
                }
            });
            match code {
                0 => self.note_graphs(chunk.len()),
                2 if self.was_stopped() => return Err(Error::Interrupted),
                code => return Err(self.decode_error(code, chunk.len())),
            }
        }
        Ok(())
    }

    /// Evaluates `tokens` after the tokens in the context, like [`decode`](Self::decode), and passes the logits after
    /// each token to `on_row`, in order.
    ///
    /// # Errors
    /// If the evaluation fails; also the errors of `on_row`.
    pub fn decode_all<E: From<Error>>(
        &mut self,
        tokens: &[Token],
        mut on_row: impl FnMut(&[f32]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        for chunk in tokens.chunks(self.n_batch().max(1) as usize) {
            let (err, err_size) = self.message.parts();
            // SAFETY: as in `decode`.
            let code = unsafe {
                let tokens = chunk.as_ptr().cast_mut();
                sys::anneal_decode_all(self.raw.as_ptr(), tokens, chunk.len() as i32, err, err_size)
            };
            match code {
                0 => self.note_graphs(chunk.len()),
                2 if self.was_stopped() => return Err(Error::Interrupted.into()),
                code => return Err(self.decode_error(code, chunk.len()).into()),
            }
            for index in 0..chunk.len() as i32 {
                let (err, err_size) = self.message.parts();
                // SAFETY: returns null if the row does not exist.
                let row = unsafe { sys::anneal_logits_at(self.raw.as_ptr(), index, err, err_size) };
                if row.is_null() {
                    return Err(Error::Logits(self.message.text()).into());
                }
                // SAFETY: as in `logits`; the context is borrowed mutably during the call.
                on_row(unsafe { std::slice::from_raw_parts(row, self.model.n_vocab() as usize) })?;
            }
        }
        Ok(())
    }

    #[cold]
    pub(super) fn decode_error(&self, code: i32, tokens: usize) -> Error {
        let why = match code {
            1 => format!("the context of {} tokens is full\nhint: raise -c", self.n_ctx()),
            _ => format!("{} (code {code})", self.message.text()),
        };
        Error::Decode { tokens, why }
    }

    /// Returns the logits of the last evaluated token, one for each token of the vocabulary. The logits are natural
    /// logarithms of probabilities, up to a constant. Call [`decode`](Self::decode) first.
    ///
    /// # Errors
    /// [`Error::Logits`] if no logits are available.
    pub fn logits(&mut self) -> Result<&[f32]> {
        let (err, err_size) = self.message.parts();
        // SAFETY: waits for the results; returns null, or a pointer to the last row.
        let row = unsafe { sys::anneal_logits(self.raw.as_ptr(), err, err_size) };
        if row.is_null() {
            return Err(Error::Logits(self.message.text()));
        }
        // SAFETY: a row has as many values as the vocabulary has tokens. The row is in the context's buffer until the
        // next call that evaluates, restores or clears; all of these borrow the context mutably.
        Ok(unsafe { std::slice::from_raw_parts(row, self.model.n_vocab() as usize) })
    }

    /// Returns the logits of output row `row` of the last call, in llama.cpp's numbering; -1 is the last row.
    ///
    /// # Errors
    /// [`Error::Logits`] if the row does not exist.
    pub fn logits_at(&mut self, row: i32) -> Result<&[f32]> {
        let (err, err_size) = self.message.parts();
        // SAFETY: as in `logits`; returns null if the row does not exist.
        let row = unsafe { sys::anneal_logits_at(self.raw.as_ptr(), row, err, err_size) };
        if row.is_null() {
            return Err(Error::Logits(self.message.text()));
        }
        // SAFETY: as in `logits`.
        Ok(unsafe { std::slice::from_raw_parts(row, self.model.n_vocab() as usize) })
    }

    /// Waits until all computations are finished.
    pub fn synchronize(&mut self) {
        // SAFETY: no preconditions.
        unsafe { sys::llama_synchronize(self.raw.as_ptr()) }
    }

    /// Removes all tokens. The memory is not overwritten.
    pub fn clear(&mut self) {
        // SAFETY: the memory belongs to the context. It is null for models without a memory, and the call accepts
        // null.
        unsafe { sys::llama_memory_clear(sys::llama_get_memory(self.raw.as_ptr()), false) }
    }
}

fn flash_attention(mode: FlashAttention) -> sys::llama_flash_attn_type {
    match mode {
        FlashAttention::Auto => sys::LLAMA_FLASH_ATTN_TYPE_AUTO,
        FlashAttention::On => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
        FlashAttention::Off => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
    }
}

fn kv_type(kind: KvType) -> sys::ggml_type {
    match kind {
        KvType::F32 => sys::GGML_TYPE_F32,
        KvType::F16 => sys::GGML_TYPE_F16,
        KvType::Bf16 => sys::GGML_TYPE_BF16,
        KvType::Q8_0 => sys::GGML_TYPE_Q8_0,
        KvType::Q5_0 => sys::GGML_TYPE_Q5_0,
        KvType::Q5_1 => sys::GGML_TYPE_Q5_1,
        KvType::Q4_0 => sys::GGML_TYPE_Q4_0,
        KvType::Q4_1 => sys::GGML_TYPE_Q4_1,
        KvType::Iq4Nl => sys::GGML_TYPE_IQ4_NL,
    }
}
