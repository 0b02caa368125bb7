//! The only unsafe code of the engine: owners for llama.cpp's model, context, sampler and thread pool.
//!
//! Everything that can throw or abort goes through the shim's `anneal_*` wrappers; what is called directly
//! only reads fields. Strings from llama.cpp are copied at once.

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use llama_sys as sys;

use crate::error::{Error, Result, readable};
use crate::options::{ContextOptions, FlashAttention, KvType, LoadMode, ModelOptions};
use crate::variant::Variant;

mod batch;
mod clock;
mod collector;
mod embedding;
mod held;
mod log;
mod quantizer;
mod sampler;
mod state;
mod stop;
mod variant;

pub use batch::{Batch, Decoded, MAX_SEQUENCES, SequenceId};
pub(crate) use clock::{ThreadClock, strftime_now, thread_time};
pub use collector::Collector;
pub use embedding::Embedding;
pub(crate) use embedding::Threads;
pub use log::{LogLevel, log_to};
pub(crate) use quantizer::{quantize, quantize_plan, quantize_progress};
pub use sampler::{Candidate, RawChain};

/// A token's number in the vocabulary.
pub type Token = sys::llama_token;

/// The greatest number of threads a pool can have.
pub const MAX_THREADS: u32 = sys::GGML_MAX_N_THREADS;

/// Installs the handlers and initialises the backends. The first call counts; `verbose` lets llama.cpp's log
/// through to stderr.
pub fn start(verbose: bool) {
    // SAFETY: no preconditions; once only by itself.
    unsafe { sys::anneal_start(verbose) }
}

/// Sets or clears the flag that stops interruptible contexts.
pub fn interrupt(on: bool) {
    // SAFETY: stores an atomic.
    unsafe { sys::anneal_interrupt(on) }
}

/// Whether the flag is set.
pub fn interrupted() -> bool {
    // SAFETY: reads an atomic, ignores its argument.
    unsafe { sys::anneal_interrupted(std::ptr::null_mut()) }
}

/// Ends the process without destructors, for when other threads are inside llama.cpp.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions.
    unsafe { sys::anneal_exit_now(code) };
    std::process::abort()
}

/// Version of the linked llama.cpp.
pub fn llama_version() -> String {
    // SAFETY: takes nothing, returns a string literal.
    unsafe { owned(sys::llama_version()) }
}

/// What the linked backends were compiled for and can do, as llama.cpp words it.
pub fn system_info() -> String {
    start(false);
    // SAFETY: the backends are initialised; returns a static buffer that is copied at once.
    unsafe { owned(sys::llama_print_system_info()) }
}

/// Whether a large buffer of the CPU backend asks the kernel for huge pages.
pub fn huge_pages() -> bool {
    start(false);
    // SAFETY: makes a buffer of its own and frees it.
    unsafe { sys::anneal_huge_pages() }
}

/// Whether large buffers made from now on ask for huge pages, in a build that can.
pub fn ask_huge_pages(on: bool) {
    // SAFETY: stores an atomic.
    unsafe { sys::anneal_ask_huge_pages(on) }
}

/// Turns ggml's tiled kernels off for the rest of the process. They look at the environment once, at the first matrix
/// product, so this must come before a model is loaded.
pub fn turn_off_tiled() {
    // SAFETY: at this time nothing but the thread that waits for signals runs beside this one, and it reads no
    // environment; llama.cpp's threads are made later.
    unsafe { std::env::set_var(TILED, "0") }
}

/// The variable that ggml's tiled kernels look at.
pub const TILED: &str = "GGML_CPU_TILED_MM";

/// Whether C and C++ get their memory, as Rust does, from the allocator that was linked in.
#[cfg(any(feature = "jemalloc", feature = "mimalloc"))]
pub fn allocator_serves_cpp() -> bool {
    // SAFETY: `owns` is called with memory that is alive, and only looks it up.
    unsafe { sys::anneal_memory_is(Some(owns)) }
}

#[cfg(all(feature = "mimalloc", not(feature = "jemalloc")))]
unsafe extern "C" fn owns(memory: *const std::ffi::c_void) -> bool {
    // SAFETY: compares the address with those of its arenas.
    unsafe { libmimalloc_sys::mi_is_in_heap_region(memory) }
}

#[cfg(feature = "jemalloc")]
unsafe extern "C" fn owns(memory: *const std::ffi::c_void) -> bool {
    let mut memory = memory;
    let (mut arena, mut size) = (0u32, size_of::<u32>());
    // SAFETY: the shim has seen that `malloc` is this program's, so jemalloc knows the address; reads one pointer,
    // writes one number.
    unsafe {
        tikv_jemalloc_sys::mallctl(
            c"arenas.lookup".as_ptr(),
            (&raw mut arena).cast(),
            &mut size,
            (&raw mut memory).cast(),
            size_of_val(&memory),
        ) == 0
    }
}

/// Kind of a compute device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The CPU, or a library that works on it.
    Cpu,
    /// A GPU with memory of its own or shared memory.
    Gpu,
}

/// The devices of the linked backends, with their descriptions.
pub fn devices() -> Vec<(DeviceKind, String)> {
    start(false);
    // SAFETY: the backends are initialised, every index is below the count, descriptions are copied at once.
    unsafe {
        (0..sys::ggml_backend_dev_count())
            .map(|index| {
                let device = sys::ggml_backend_dev_get(index);
                let kind = match sys::ggml_backend_dev_type(device) {
                    sys::GGML_BACKEND_DEVICE_TYPE_GPU | sys::GGML_BACKEND_DEVICE_TYPE_IGPU => DeviceKind::Gpu,
                    _ => DeviceKind::Cpu,
                };
                (kind, owned(sys::ggml_backend_dev_description(device)))
            })
            .collect()
    }
}

/// Names of the linked backends.
pub fn backends() -> Vec<String> {
    start(false);
    // SAFETY: as in `devices`.
    unsafe {
        (0..sys::ggml_backend_reg_count())
            .map(|index| owned(sys::ggml_backend_reg_name(sys::ggml_backend_reg_get(index))))
            .collect()
    }
}

/// What the linked BLAS library calls itself; `None` where there is none.
pub fn blas_library() -> Option<String> {
    let mut text = [0_u8; 256];
    // SAFETY: writes at most the given size, NUL-terminated; needs no initialised backends.
    let found = unsafe { sys::anneal_blas_library(text.as_mut_ptr().cast(), text.len()) };
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    found.then(|| text.to_string_lossy().trim().to_string())
}

/// Whether [`set_blas_threads`] has a say in how many threads the BLAS library uses.
pub fn blas_threads_obeyed() -> bool {
    // SAFETY: compares addresses of functions.
    unsafe { sys::anneal_blas_threads_obeyed() }
}

/// Threads that the BLAS library may use from its next call on; 0 for as many as llama.cpp uses itself.
pub fn set_blas_threads(threads: u32) {
    // SAFETY: stores an atomic.
    unsafe { sys::anneal_blas_set_threads(i32::try_from(threads).unwrap_or(i32::MAX)) }
}

/// # Safety
/// `text` is null or NUL-terminated and alive during the call.
unsafe fn owned(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Where the shim puts a failure's message.
struct Message(Box<[u8; 4096]>);

impl Message {
    fn new() -> Self {
        Self(Box::new([0; 4096]))
    }

    fn parts(&mut self) -> (*mut c_char, usize) {
        (self.0.as_mut_ptr().cast(), self.0.len())
    }

    fn text(&self) -> String {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        readable(&String::from_utf8_lossy(&self.0[..end]))
    }
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::Usage(format!("{} holds a NUL byte: no file can be called so", path.display())))
}

/// A loaded model.
pub struct Model {
    raw: NonNull<sys::llama_model>,
    vocab: *const sys::llama_vocab,
    path: PathBuf,
    repacked: u64,
    n_ctx_train: u32,
    variant: variant::Applied,
}

// SAFETY: llama.cpp never changes a model after loading; its vocabulary is documented as thread-safe, and
// several contexts on several threads may share a model.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: owned, and every context holds an `Arc` of it.
        unsafe { sys::llama_model_free(self.raw.as_ptr()) }
    }
}

impl Model {
    /// Loads `path` with no checks of its own: [`crate::model::open`] makes them first.
    pub fn load(path: &Path, options: &ModelOptions) -> Result<Arc<Model>> {
        Self::load_as(path, options, &Variant::default())
    }

    /// The same, as `variant` wants it.
    pub(crate) fn load_as(path: &Path, options: &ModelOptions, variant: &Variant) -> Result<Arc<Model>> {
        start(false);
        let file = c_path(path)?;
        let mut message = Message::new();
        let (err, err_size) = message.parts();
        // SAFETY: `file`, `params` and the message buffer outlive the call.
        let raw = unsafe {
            let mut params = sys::llama_model_default_params();
            params.load_mode = load_mode(options.load_mode);
            params.use_extra_bufts = options.repack;
            params.vocab_only = options.vocab_only;
            sys::anneal_model_load(file.as_ptr(), &params, err, err_size)
        };
        let raw =
            NonNull::new(raw).ok_or_else(|| Error::Load { path: path.to_path_buf(), why: message.text() })?;
        // SAFETY: a live model has a vocabulary that lives as long.
        let vocab = unsafe { sys::llama_model_get_vocab(raw.as_ptr()) };
        // SAFETY: reads a number of this thread.
        let repacked = unsafe { sys::anneal_repacked_bytes() };
        // SAFETY: reads a field.
        let n_ctx_train = unsafe { sys::llama_model_n_ctx_train(raw.as_ptr()) }.max(0).cast_unsigned();
        let applied = variant::Applied::default();
        let path = path.to_path_buf();
        let mut model = Model { raw, vocab, path, repacked, n_ctx_train, variant: applied };
        model.apply(variant)?;
        Ok(Arc::new(model))
    }

    /// The file it came from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `qwen2 1.5B Q4_K - Medium`.
    pub fn description(&self) -> String {
        let mut buffer = [0u8; 256];
        // SAFETY: writes at most the given size with a NUL at the end.
        unsafe {
            sys::llama_model_desc(self.raw.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len());
            owned(buffer.as_ptr().cast())
        }
    }

    /// Value of a scalar metadata key.
    pub fn metadata(&self, key: &str) -> Option<String> {
        let key = CString::new(key).ok()?;
        let mut buffer = [0u8; 256];
        // SAFETY: `key` is NUL-terminated; writes at most the given size with a NUL at the end.
        unsafe {
            let written = sys::llama_model_meta_val_str(
                self.raw.as_ptr(),
                key.as_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
            );
            (written >= 0).then(|| owned(buffer.as_ptr().cast()))
        }
    }

    /// Total size of its tensors in bytes.
    pub fn size(&self) -> u64 {
        // SAFETY: reads a field.
        unsafe { sys::llama_model_size(self.raw.as_ptr()) }
    }

    /// Bytes of the weights that were copied into another layout for the CPU's kernels, to 0.01 MiB.
    pub fn repacked(&self) -> u64 {
        self.repacked
    }

    /// Number of parameters.
    pub fn n_params(&self) -> u64 {
        // SAFETY: reads a field.
        unsafe { sys::llama_model_n_params(self.raw.as_ptr()) }
    }

    /// Context it was trained for.
    pub fn n_ctx_train(&self) -> u32 {
        // As it was loaded: contexts with YaRN change it.
        self.n_ctx_train
    }

    /// Number of layers.
    pub fn n_layer(&self) -> u32 {
        // SAFETY: reads a field.
        unsafe { sys::llama_model_n_layer(self.raw.as_ptr()) }.max(0).cast_unsigned()
    }

    /// Whether every layer keeps K and V for the whole context: no sliding window, no recurrent state.
    pub fn has_plain_cache(&self) -> bool {
        // SAFETY: reads fields.
        unsafe {
            sys::llama_model_n_swa(self.raw.as_ptr()) == 0
                && !sys::llama_model_is_recurrent(self.raw.as_ptr())
                && !sys::llama_model_is_hybrid(self.raw.as_ptr())
        }
    }

    /// Whether it is a decoder only, as text generation here needs it.
    pub fn is_decoder_only(&self) -> bool {
        // SAFETY: reads fields.
        unsafe {
            sys::llama_model_has_decoder(self.raw.as_ptr())
                && !sys::llama_model_has_encoder(self.raw.as_ptr())
        }
    }

    /// Whether it has a vocabulary; without one llama.cpp's tokenizer aborts.
    pub fn has_vocabulary(&self) -> bool {
        // SAFETY: reads a field.
        unsafe { sys::llama_vocab_type(self.vocab) != sys::LLAMA_VOCAB_TYPE_NONE }
    }

    /// Tokens in the vocabulary.
    pub fn n_vocab(&self) -> u32 {
        // SAFETY: reads a field.
        unsafe { sys::llama_vocab_n_tokens(self.vocab) }.max(0).cast_unsigned()
    }

    /// The token that begins a text, if the model wants one.
    pub fn begin_token(&self) -> Option<Token> {
        // SAFETY: reads fields.
        unsafe { sys::llama_vocab_get_add_bos(self.vocab).then(|| sys::llama_vocab_bos(self.vocab)) }
    }

    /// Whether `token` ends a generation.
    pub fn is_end(&self, token: Token) -> bool {
        // SAFETY: looks it up in a set; any number is fine.
        unsafe { sys::llama_vocab_is_eog(self.vocab, token) }
    }

    /// `text` as tokens, with the special tokens that the model wants around it.
    pub fn tokenize(&self, text: &str) -> Result<Vec<Token>> {
        self.tokenize_with(text, true)
    }

    /// The same, with or without (`add_special`) those around it. Special tokens that are written in `text` are what
    /// they say.
    pub fn tokenize_with(&self, text: &str, add_special: bool) -> Result<Vec<Token>> {
        if !self.has_vocabulary() {
            return Err(Error::Tokenize("the model has no vocabulary".to_string()));
        }
        let too_long = || Error::Tokenize(format!("{} bytes are more than llama.cpp takes", text.len()));
        let text_len = i32::try_from(text.len()).map_err(|_| too_long())?;
        // A token is at least a byte, and there are a few specials; a second pass if that is not enough.
        let mut tokens: Vec<Token> = vec![0; text.len() + 8];
        for _ in 0..2 {
            let capacity = i32::try_from(tokens.len()).map_err(|_| too_long())?;
            let mut message = Message::new();
            let (err, err_size) = message.parts();
            let mut threw = false;
            // SAFETY: pointers and lengths belong together and outlive the call.
            let count = unsafe {
                sys::anneal_tokenize(
                    self.vocab,
                    text.as_ptr().cast(),
                    text_len,
                    tokens.as_mut_ptr(),
                    capacity,
                    add_special,
                    true,
                    &mut threw,
                    err,
                    err_size,
                )
            };
            if threw {
                return Err(Error::Tokenize(message.text()));
            }
            match usize::try_from(count) {
                Ok(count) => {
                    tokens.truncate(count);
                    return Ok(tokens);
                }
                Err(_) if count == i32::MIN => return Err(too_long()),
                Err(_) => tokens.resize(count.unsigned_abs() as usize, 0),
            }
        }
        Err(Error::Tokenize("llama.cpp changed its mind about the number of tokens".to_string()))
    }

    /// Appends the bytes of `token` to `bytes`: often less than a whole character, nothing for control tokens.
    pub fn piece(&self, token: Token, bytes: &mut Vec<u8>) -> Result<()> {
        self.piece_with(token, false, bytes)
    }

    /// The same; with `special` a control token is its name.
    pub(crate) fn piece_with(&self, token: Token, special: bool, bytes: &mut Vec<u8>) -> Result<()> {
        let start = bytes.len();
        // Longer than nearly every piece; the second pass takes the length from the first.
        let mut room = 64;
        for _ in 0..2 {
            bytes.resize(start + room, 0);
            let mut message = Message::new();
            let (err, err_size) = message.parts();
            let mut threw = false;
            // SAFETY: writes at most `room` bytes into the part just made.
            let count = unsafe {
                sys::anneal_token_to_piece(
                    self.vocab,
                    token,
                    bytes.as_mut_ptr().add(start).cast(),
                    room as i32,
                    special,
                    &mut threw,
                    err,
                    err_size,
                )
            };
            if threw {
                bytes.truncate(start);
                return Err(Error::Tokenize(message.text()));
            }
            if let Ok(count) = usize::try_from(count) {
                bytes.truncate(start + count);
                return Ok(());
            }
            room = count.unsigned_abs() as usize;
        }
        bytes.truncate(start);
        Ok(())
    }
}

/// A pool of threads that evaluate graphs. The thread that makes it is one of its threads.
pub struct Threadpool(NonNull<sys::ggml_threadpool>);

// SAFETY: ggml locks the pool's state itself; it may be freed from another thread than the one that made it.
unsafe impl Send for Threadpool {}
// SAFETY: nothing is done with it through a shared reference but to name it to a context, see `share_threads`.
unsafe impl Sync for Threadpool {}

impl Drop for Threadpool {
    fn drop(&mut self) {
        // SAFETY: owned; a context that uses it is freed first (see `Context::drop`).
        unsafe { sys::anneal_threadpool_free(self.0.as_ptr()) }
    }
}

impl Threadpool {
    /// A pool of `threads` threads. With `cpus` they may run only on those; with `strict` each has one of its
    /// own. `poll` is how eagerly they wait for work, 0 to 100.
    pub fn new(threads: u32, cpus: &[u32], strict: bool, poll: u32) -> Result<Self> {
        let failed = |why: String| Error::Threadpool { threads, why };
        if threads == 0 || threads > MAX_THREADS {
            return Err(failed(format!("a pool has 1 to {MAX_THREADS} threads")));
        }
        start(false);
        let mut message = Message::new();
        let (err, err_size) = message.parts();
        // SAFETY: `params` is initialised by the call before, and only read by the next.
        let raw = unsafe {
            let mut params = sys::ggml_threadpool_params_default(threads.cast_signed());
            for &cpu in cpus {
                if let Some(bit) = params.cpumask.get_mut(cpu as usize) {
                    *bit = true;
                }
            }
            params.strict_cpu = strict;
            params.poll = poll;
            sys::anneal_threadpool_new(&mut params, err, err_size)
        };
        NonNull::new(raw).map(Threadpool).ok_or_else(|| failed(message.text()))
    }
}

/// Tokens evaluated so far and what is needed to evaluate more.
///
/// `Send`: llama.cpp does not care which thread calls, as long as it is one at a time; hence not `Sync`.
pub struct Context {
    raw: NonNull<sys::llama_context>,
    model: Arc<Model>,
    decode_pool: Option<Arc<Threadpool>>,
    prefill_pool: Option<Arc<Threadpool>>,
    _collector: Option<Arc<Collector>>,
    sequences: u32,
    /// Rows of logits that a batch may ask for.
    rows: u32,
    message: Message,
    stop: Option<Arc<AtomicBool>>,
}

// SAFETY: see above; the model is shared by `Arc` and is `Sync`.
unsafe impl Send for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: owned. The pools are fields, so they are freed after this.
        unsafe { sys::llama_free(self.raw.as_ptr()) }
    }
}

impl Context {
    /// A context of `model` for one sequence.
    pub fn new(model: &Arc<Model>, options: &ContextOptions) -> Result<Self> {
        Self::with(model, options, None)
    }

    /// The same; `collector` sees the inputs of every matrix.
    pub(crate) fn with(
        model: &Arc<Model>,
        options: &ContextOptions,
        collector: Option<Arc<Collector>>,
    ) -> Result<Self> {
        Self::for_sequences(model, options, 1, collector, |_| ())
    }

    /// The same for several sequences, which share its cells; `more` sets what else it is to be.
    fn for_sequences(
        model: &Arc<Model>,
        options: &ContextOptions,
        sequences: u32,
        collector: Option<Arc<Collector>>,
        more: impl FnOnce(&mut sys::llama_context_params),
    ) -> Result<Self> {
        let mut message = Message::new();
        let (err, err_size) = message.parts();
        // SAFETY: `params` is only read; the callbacks are the shim's and cannot unwind. One ignores its data, the
        // other's is a field of the context, and so outlives it.
        let raw = unsafe {
            let mut params = sys::llama_context_default_params();
            params.n_ctx = options.n_ctx;
            params.n_batch = options.n_batch;
            params.n_ubatch = options.n_ubatch;
            params.type_k = kv_type(options.type_k);
            params.type_v = kv_type(options.type_v);
            params.flash_attn_type = flash_attention(options.flash_attention);
            model.put_rope(&mut params);
            if options.interruptible {
                params.abort_callback = Some(sys::anneal_interrupted);
            }
            if sequences > 1 {
                params.n_seq_max = sequences;
                params.kv_unified = true;
                // One row of logits for each; else llama.cpp keeps room for one after every token of a batch.
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
            _collector: collector,
            sequences,
            rows: sequences,
            message,
            stop: None,
        };
        context.adapt()?;
        Ok(context)
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Tokens it holds; llama.cpp rounds up.
    pub fn n_ctx(&self) -> u32 {
        // SAFETY: reads a field.
        unsafe { sys::llama_n_ctx(self.raw.as_ptr()) }
    }

    /// Tokens that one call takes.
    pub fn n_batch(&self) -> u32 {
        // SAFETY: reads a field.
        unsafe { sys::llama_n_batch(self.raw.as_ptr()) }
    }

    /// Tokens that one graph takes.
    pub fn n_ubatch(&self) -> u32 {
        // SAFETY: reads a field.
        unsafe { sys::llama_n_ubatch(self.raw.as_ptr()) }
    }

    /// Gives it its threads: `decode` for single tokens, `prefill` for more, or one pool for both.
    pub fn attach(&mut self, decode: Threadpool, prefill: Option<Threadpool>) {
        self.attach_shared(Arc::new(decode), prefill.map(Arc::new));
    }

    /// Gives it the threads of `other`, which must never evaluate at the same time: a graph has its pool for itself.
    pub(crate) fn share_threads(&mut self, other: &Context) {
        if let Some(decode) = &other.decode_pool {
            self.attach_shared(Arc::clone(decode), other.prefill_pool.clone());
        }
        let (decode, prefill) = other.threads();
        self.set_threads(decode, prefill);
    }

    fn attach_shared(&mut self, decode: Arc<Threadpool>, prefill: Option<Arc<Threadpool>>) {
        let batch = prefill.as_ref().map_or(std::ptr::null_mut(), |pool| pool.0.as_ptr());
        // SAFETY: both pools live in `self` until the context is freed; the old ones are freed after it has
        // forgotten them.
        unsafe { sys::llama_attach_threadpool(self.raw.as_ptr(), decode.0.as_ptr(), batch) }
        self.decode_pool = Some(decode);
        self.prefill_pool = prefill;
    }

    /// Lets the threads of prefill sleep, where decode has others: llama.cpp does so when one context changes from
    /// one pool to the other, but not from one context to another, and they would poll beside decode's.
    pub(crate) fn rest_prefill_threads(&mut self) {
        if let Some(pool) = &self.prefill_pool {
            // SAFETY: a live pool, with no graph: evaluation borrows the context mutably.
            unsafe { sys::anneal_threadpool_pause(pool.0.as_ptr()) }
        }
    }

    /// Lets all its threads sleep, where other contexts compute on the same cores: they would poll beside theirs. The next
    /// graph wakes them.
    pub(crate) fn rest_threads(&mut self) {
        self.rest_prefill_threads();
        if let Some(pool) = &self.decode_pool {
            // SAFETY: as in `rest_prefill_threads`.
            unsafe { sys::anneal_threadpool_pause(pool.0.as_ptr()) }
        }
    }

    /// How many threads of the pools single tokens and batches use.
    pub fn set_threads(&mut self, decode: u32, prefill: u32) {
        // SAFETY: stores two numbers; the graph takes no more threads than its pool has.
        unsafe {
            sys::llama_set_n_threads(self.raw.as_ptr(), decode.cast_signed(), prefill.cast_signed());
        }
    }

    /// The two numbers of [`set_threads`](Self::set_threads).
    pub fn threads(&self) -> (u32, u32) {
        // SAFETY: reads two fields.
        unsafe {
            (
                sys::llama_n_threads(self.raw.as_ptr()).cast_unsigned(),
                sys::llama_n_threads_batch(self.raw.as_ptr()).cast_unsigned(),
            )
        }
    }

    /// Evaluates `tokens` after those it holds, in calls of [`n_batch`](Self::n_batch) tokens, and keeps the
    /// logits of the last one.
    pub fn decode(&mut self, tokens: &[Token]) -> Result<()> {
        for chunk in tokens.chunks(self.n_batch().max(1) as usize) {
            let (err, err_size) = self.message.parts();
            // SAFETY: the chunk is only read (the C type has no const), and no longer than n_batch, which
            // llama.cpp asserts. A chunk's length fits: n_batch is at most i32::MAX in `settings`.
            let code = unsafe {
                let tokens = chunk.as_ptr().cast_mut();
                sys::anneal_decode(self.raw.as_ptr(), tokens, chunk.len() as i32, err, err_size)
            };
            match code {
                0 => {}
                2 if self.was_stopped() => return Err(Error::Interrupted),
                code => return Err(self.decode_error(code, chunk.len())),
            }
        }
        Ok(())
    }

    /// Evaluates `tokens` after those it holds, as [`decode`](Self::decode) does, and hands the logits after each
    /// of them to `on_row`, in order.
    ///
    /// # Errors
    /// Those of the evaluation, and those of `on_row`.
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
                0 => {}
                2 if self.was_stopped() => return Err(Error::Interrupted.into()),
                code => return Err(self.decode_error(code, chunk.len()).into()),
            }
            for index in 0..chunk.len() as i32 {
                let (err, err_size) = self.message.parts();
                // SAFETY: returns null where there is no such row.
                let row = unsafe { sys::anneal_logits_at(self.raw.as_ptr(), index, err, err_size) };
                if row.is_null() {
                    return Err(Error::Logits(self.message.text()).into());
                }
                // SAFETY: as in `logits`; the context is borrowed mutably meanwhile.
                on_row(unsafe { std::slice::from_raw_parts(row, self.model.n_vocab() as usize) })?;
            }
        }
        Ok(())
    }

    #[cold]
    fn decode_error(&self, code: i32, tokens: usize) -> Error {
        let why = match code {
            1 => format!("the context of {} tokens is full: raise -c", self.n_ctx()),
            _ => format!("{} (code {code})", self.message.text()),
        };
        Error::Decode { tokens, why }
    }

    /// The logits of the last token evaluated, one for each token of the vocabulary: natural logarithms of
    /// probabilities, but for a constant. There must have been a [`decode`](Self::decode).
    pub fn logits(&mut self) -> Result<&[f32]> {
        let (err, err_size) = self.message.parts();
        // SAFETY: waits for the results; returns null or the last row, see below.
        let row = unsafe { sys::anneal_logits(self.raw.as_ptr(), err, err_size) };
        if row.is_null() {
            return Err(Error::Logits(self.message.text()));
        }
        // SAFETY: a row has as many values as the vocabulary has tokens. It lies in the context's buffer until the
        // next call that evaluates, restores or clears, all of which borrow the context mutably.
        Ok(unsafe { std::slice::from_raw_parts(row, self.model.n_vocab() as usize) })
    }

    /// The same of output row `row` of the last call, counted as llama.cpp counts them; -1 is the last one.
    pub fn logits_at(&mut self, row: i32) -> Result<&[f32]> {
        let (err, err_size) = self.message.parts();
        // SAFETY: as in `logits`; returns null where there is no such row.
        let row = unsafe { sys::anneal_logits_at(self.raw.as_ptr(), row, err, err_size) };
        if row.is_null() {
            return Err(Error::Logits(self.message.text()));
        }
        // SAFETY: as in `logits`.
        Ok(unsafe { std::slice::from_raw_parts(row, self.model.n_vocab() as usize) })
    }

    /// Waits until everything is computed.
    pub fn synchronize(&mut self) {
        // SAFETY: no preconditions.
        unsafe { sys::llama_synchronize(self.raw.as_ptr()) }
    }

    /// Forgets every token; the memory's content stays.
    pub fn clear(&mut self) {
        // SAFETY: the memory belongs to the context; null for models without one, which the call takes.
        unsafe { sys::llama_memory_clear(sys::llama_get_memory(self.raw.as_ptr()), false) }
    }
}

fn load_mode(mode: LoadMode) -> sys::llama_load_mode {
    match mode {
        LoadMode::Auto => sys::LLAMA_LOAD_MODE_AUTO,
        LoadMode::None => sys::LLAMA_LOAD_MODE_NONE,
        LoadMode::Mmap => sys::LLAMA_LOAD_MODE_MMAP,
        LoadMode::Mlock => sys::LLAMA_LOAD_MODE_MLOCK,
        LoadMode::MmapMlock => sys::LLAMA_LOAD_MODE_MMAP_MLOCK,
        LoadMode::DirectIo => sys::LLAMA_LOAD_MODE_DIRECT_IO,
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
